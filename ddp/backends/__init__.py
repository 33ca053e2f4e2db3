"""How replicas are brought together: one file for each backend, which needs torch and is imported on use.

Owns the registry, and what must be known of a backend before it is used. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Flag, auto
from typing import Any

from ddp.core.world import World
from ddp.registry import Registry, loaded


class SyncKind(Flag):
    """When a backend acts. Each is a protocol of `ddp.backends.base`."""

    STEP = auto()
    """Inside every step: `StepExchange`."""
    COLLECTIVE = auto()
    """Between steps, in a collective that all ranks wait for: `CollectiveAverage`."""
    SNAPSHOT = auto()
    """Between steps, from snapshots, while ranks go on: `SnapshotAverage`."""


@dataclass(frozen=True)
class BackendSpec:
    """What must be known of a backend before it is used."""

    module: str
    """Has `Backend`, a rank's side; with `SyncKind.SNAPSHOT` also `Reducer`, the coordinator's."""
    sync: SyncKind
    torch_native: bool = False
    """It is PyTorch's own: what it exchanges goes through PyTorch's process groups and through nothing else."""
    checkpoints: bool = True
    """Whether runs on it can save checkpoints and resume from them."""

    lacks: tuple[str, ...] = ()
    """Step settings that it does not support: `fp16`, `compile`."""
    shares_gpu: bool = True
    """Its ranks may train on one GPU, and meet over gloo."""

    @property
    def averages(self) -> bool:
        """Whether it brings replicas together between steps, so that any policy goes with it."""
        return bool(self.sync & (SyncKind.COLLECTIVE | SyncKind.SNAPSHOT))


_OURS = {
    "nccl": BackendSpec("ddp.backends.allreduce", SyncKind.STEP | SyncKind.COLLECTIVE),
    "cpu": BackendSpec("ddp.backends.snapshot", SyncKind.SNAPSHOT),
    "zero1": BackendSpec("ddp.backends.zero1", SyncKind.STEP),
    "zero2": BackendSpec("ddp.backends.zero2", SyncKind.STEP),
    "zero3": BackendSpec("ddp.backends.zero3", SyncKind.STEP, lacks=("compile",)),
    "torch_ddp": BackendSpec("ddp.backends.torch_ddp", SyncKind.STEP, torch_native=True),
    "torch_fsdp": BackendSpec(
        # Over gloo its ranks on a GPU end by signal 11 (torch 2.11).
        "ddp.backends.torch_fsdp",
        SyncKind.STEP,
        torch_native=True,
        checkpoints=False,
        lacks=("compile",),
        shares_gpu=False,
    ),
    "torch_zero1": BackendSpec("ddp.backends.torch_zero1", SyncKind.STEP, torch_native=True, checkpoints=False),
    "torch_local_sgd": BackendSpec(
        # Its averages come inside the optimizer, which a rank whose gradients overflow would leave out.
        "ddp.backends.torch_local_sgd",
        SyncKind.STEP,
        torch_native=True,
        checkpoints=False,
        lacks=("fp16",),
    ),
}
BACKENDS: Registry[BackendSpec] = Registry("backends", _OURS, loaded(BackendSpec))

_NEEDED = "{} cannot go on without a rank; the modes of backends nccl and cpu can (nccl_sync, cpu_async, ...)"


def paired_backends() -> tuple[str, ...]:
    """Return the names of the backends that go with any policy."""
    return tuple(name for name, spec in BACKENDS.items() if spec.averages)


def is_torch_native(name: str | None) -> bool:
    """Return whether `name`, which may be of no backend, is one of PyTorch's own."""
    return name is not None and name in BACKENDS and BACKENDS[name].torch_native


def check_sharing(name: str | None, device: str, gpus: int, ranks: int) -> None:
    """Raise ValueError for `ranks` of one host that would share `gpus` with a backend that cannot."""
    if device == "cuda" and gpus < ranks and name is not None and name in BACKENDS and not BACKENDS[name].shares_gpu:
        raise ValueError(f"{ranks} ranks on {gpus} GPU(s), but {name} needs a GPU for every rank; use device=cpu")


def world_of(name: str, size: int, samples: int, batch: int, epochs: int, **settings: Any) -> World:
    """Return the world of a run on backend `name`; `settings`: further fields of it.

    A backend that acts inside steps alone cannot go on without a rank: what the rank held of the model is gone."""
    spec = BACKENDS[name]
    blocking, in_step = SyncKind.SNAPSHOT not in spec.sync, SyncKind.STEP in spec.sync
    if not spec.averages:
        settings |= {"indispensable": _NEEDED.format(name), "tolerate_loss": False}
    return World(size, samples, batch, epochs, blocking, in_step, **settings)

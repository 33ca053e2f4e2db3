"""The backends, which synchronise replicas: one file each, which needs torch and is imported when used.

Owns the registry of backends, and their properties that must be known before use. Imports no torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag, auto
from importlib.util import find_spec
from typing import Any

from ddp.core.network.links import Links
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.registry import Registry, loaded


class SyncKind(Flag):
    """When a backend synchronises. Each kind has a protocol in `ddp.backends.base`."""

    STEP = auto()
    """Inside every step: `StepExchange`."""
    COLLECTIVE = auto()
    """Between steps, in a collective that all ranks wait for: `CollectiveAverage`."""
    SNAPSHOT = auto()
    """Between steps, from snapshots, while ranks go on: `SnapshotAverage`."""


@dataclass(frozen=True)
class BackendSpec:
    """Properties of a backend that are known before use."""

    module: str
    """Module with `Backend`, a rank's side; with `SyncKind.SNAPSHOT` also `Reducer`, the coordinator's side."""
    sync: SyncKind
    torch_native: bool = False
    """Whether it is one of PyTorch's own, which exchange through PyTorch's process groups alone."""
    checkpoints: bool = True
    """Whether runs with it can save checkpoints and resume from them."""

    lacks: tuple[str, ...] = ()
    """Step settings that it does not support: `fp16`, `compile`."""
    shares_gpu: bool = True
    """Whether several ranks can train on one GPU, communicating over gloo."""
    service: str = ""
    """Module with `serving(job)`, the context of a run in the coordinator's process; empty: it needs none."""

    @property
    def averages(self) -> bool:
        """Whether it averages replicas between steps, so that it works with any policy."""
        return bool(self.sync & (SyncKind.COLLECTIVE | SyncKind.SNAPSHOT))


_OURS = {
    "nccl": BackendSpec("ddp.backends.allreduce", SyncKind.STEP | SyncKind.COLLECTIVE),
    "cpu": BackendSpec("ddp.backends.snapshot", SyncKind.SNAPSHOT),
    "zero1": BackendSpec("ddp.backends.zero1", SyncKind.STEP),
    "zero2": BackendSpec("ddp.backends.zero2", SyncKind.STEP),
    "zero3": BackendSpec("ddp.backends.zero3", SyncKind.STEP, lacks=("compile",)),
    "torch_ddp": BackendSpec("ddp.backends.torch_ddp", SyncKind.STEP, torch_native=True),
    "torch_fsdp": BackendSpec(
        # Over gloo, ranks on a GPU end by signal 11 (torch 2.11).
        "ddp.backends.torch_fsdp",
        SyncKind.STEP,
        torch_native=True,
        checkpoints=False,
        lacks=("compile",),
        shares_gpu=False,
    ),
    "torch_zero1": BackendSpec("ddp.backends.torch_zero1", SyncKind.STEP, torch_native=True, checkpoints=False),
    "torch_local_sgd": BackendSpec(
        # It averages inside the optimizer's step, which a rank whose gradients overflow would skip.
        "ddp.backends.torch_local_sgd",
        SyncKind.STEP,
        torch_native=True,
        checkpoints=False,
        lacks=("fp16",),
    ),
}
_EXTRAS = {
    "torchft": BackendSpec(
        "ddp.backends.torchft",
        SyncKind.STEP | SyncKind.COLLECTIVE,
        lacks=("compile",),
        shares_gpu=False,
        service="ddp.backends.torchft_lighthouse",
    ),
}
"""Backends of a package that is an extra, by its name."""
_HERE = {name: spec for name, spec in _EXTRAS.items() if find_spec(name) is not None}
BACKENDS: Registry[BackendSpec] = Registry("backends", _OURS | _HERE, loaded(BackendSpec))
BACKENDS.absent |= {name: name for name in _EXTRAS.keys() - _HERE.keys()}

_NEEDED = "{} cannot go on without a rank; the modes of backends nccl and cpu can (nccl_sync, cpu_async, ...){}"
_AGAIN = "; cluster.restart starts all ranks again, from the last checkpoint"


def paired_backends(virtual: bool = False) -> tuple[str, ...]:
    """Return the names of the backends that work with any policy. `virtual`: only those without a service of their own,
    which can train all ranks in one process."""
    return tuple(name for name, spec in BACKENDS.items() if spec.averages and not (virtual and spec.service))


def preload_of(name: str | None) -> tuple[str, ...]:
    """Return the modules that the fork server imports for a backend of an extra, which loads slowly."""
    return (BACKENDS[name].module,) if name in _HERE else ()


def is_torch_native(name: str | None) -> bool:
    """Return whether `name` is one of PyTorch's own backends. Unknown names are accepted."""
    return name is not None and name in BACKENDS and BACKENDS[name].torch_native


def check_sharing(name: str | None, device: str, gpus: int, ranks: int) -> None:
    """Raise ValueError if `ranks` of one host would have to share `gpus` and the backend does not support it."""
    if device == "cuda" and gpus < ranks and name is not None and name in BACKENDS and not BACKENDS[name].shares_gpu:
        raise ValueError(f"{ranks} ranks on {gpus} GPU(s), but {name} needs a GPU for every rank; use device=cpu")


def check_link_faults(faults: Sequence[Fault], name: str, links: Links | None) -> None:
    """Raise ValueError for a fault that slows a link down where no transfer of a rank uses a link."""
    spec, slow = BACKENDS[name], next((fault for fault in faults if fault.kind == "link"), None)
    if slow is not None and (links is None or spec.torch_native or SyncKind.SNAPSHOT in spec.sync):
        raise ValueError(f"fault {slow}: no collective goes over links here; set cluster.links with nccl_* or zero*")


def world_of(name: str, size: int, samples: int, batch: int, epochs: int, **settings: Any) -> World:
    """Return the `World` of a run on backend `name`; `settings`: further fields.

    A backend that acts only inside steps cannot continue without a rank, as the rank's part of the model would be lost."""
    spec = BACKENDS[name]
    blocking, in_step = SyncKind.SNAPSHOT not in spec.sync, SyncKind.STEP in spec.sync
    if not spec.averages:
        settings |= {"indispensable": _NEEDED.format(name, _AGAIN * spec.checkpoints), "tolerate_loss": False}
    return World(size, samples, batch, epochs, blocking, in_step, **settings)

"""Who is held to the oracle, by which rule, and what of a state is compared.

Knows no models of the harness and no settings: what is trained comes as an `OracleCourse`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from bench.prove.oracle import OracleCourse, Rule
from ddp.backends import BACKENDS
from ddp.core.policies import Policy
from ddp.replica.task import Job
from ddp.tensor_digest import tensor_digest

OURS = Rule(scaled="gradient", buffers="mean")
TORCH = Rule(scaled="loss", buffers="own")
APART = ("zero3", "torch_fsdp")
"""Backends whose parameters lie in memory of their own."""


EACH_PASS = ("zero2", "zero3", "torch_fsdp")
"""Backends that keep no whole gradients from one pass of a step to the next."""


@dataclass(frozen=True)
class Entrant:
    """A backend that acts inside steps, on a transport."""

    engine: str
    """A key of `ddp.backends.BACKENDS`; empty: one rank alone."""
    transport: str
    rule: Rule
    exact: int
    """Up to so many ranks the order of its sums is known, and its bits are those of the oracle."""
    module: str = ""
    """Where its `Backend` is, if not with the engine."""


def entrant(backend: str) -> Entrant:
    """Return how a backend that acts inside steps is held to the oracle; empty: one rank alone."""
    spec = BACKENDS.get(backend)
    if spec is None:
        return Entrant("", "auto", OURS, 1)
    rule = replace(TORCH if spec.torch_native else OURS, flat=backend not in APART, each_pass=backend in EACH_PASS)
    if spec.torch_native:
        return Entrant(backend, "gloo", rule, 2)
    return Entrant(backend, "memory", rule, 64)


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return the digest of all bits."""
    return tensor_digest(state.values())


def distance(state: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference of two values of two states; infinite where the names differ."""
    if state.keys() != other.keys():
        return float("inf")
    gaps = [
        float((state[name].double() - value.double()).abs().max()) for name, value in other.items() if value.numel()
    ]
    return max(gaps, default=0.0)


@dataclass(frozen=True)
class ProofEntry:
    """A course of an entrant."""

    entrant: Entrant
    course: OracleCourse
    policy: Policy
    truth: Path | None = None
    """Folder of the oracle's states, `<step>.pt`; None: nobody compares on the spot."""
    only: tuple[str, ...] | None = None
    """What of a state is compared; None: all."""
    every_step: bool = True
    """Whether the state is assembled and compared after every step, not after the last one alone."""


def job_of(entry: ProofEntry, scratch: Path) -> Job:
    """Return the job by which ranks make replicas and backends."""
    course, who = entry.course, entry.entrant
    return Job(
        course.task,
        course.epochs,
        course.batch,
        course.seed,
        course.world_size,
        entry.policy,
        who.engine or "nccl",
        scratch,
        transport=who.transport,
        device="cpu",
        step=course.how,
    )


def shown(state: Mapping[str, Tensor], only: tuple[str, ...] | None) -> dict[str, Tensor]:
    """Return what of a state is compared."""
    return {name: value for name, value in state.items() if only is None or name in only}


def against(state: Mapping[str, Tensor], digest: str, truth: Path, name: str) -> float:
    """Return the largest difference of a state to the oracle's; read only where the bits differ."""
    if (truth / f"{name}.sha256").read_text(encoding="utf-8") == digest:
        return 0.0
    return distance(state, torch.load(truth / f"{name}.pt"))

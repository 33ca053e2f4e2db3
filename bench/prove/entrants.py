"""Which backends are compared with the oracle, by which rule, and which part of the state is compared.

Knows no models of the harness and no settings: it gets what to train as an `OracleCourse`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from bench.prove.oracle import OracleCourse, Rule
from ddp.backends import BACKENDS
from ddp.core.policies import Policy
from ddp.core.settings.averaging import Averaging
from ddp.replica.task import Job
from ddp.tensor_digest import tensor_digest

OURS = Rule(scaled="gradient", buffers="mean")
TORCH = Rule(scaled="loss", buffers="own")
SERVED = Rule(scaled="loss", buffers="mean")
"""torchft's backend, whose buffers are averaged by ours."""
APART = ("zero3", "torch_fsdp")
"""Backends whose parameters each have separate memory."""


EACH_PASS = ("zero2", "zero3", "torch_fsdp")
"""Backends that keep no whole gradients between the passes of a step."""


@dataclass(frozen=True)
class Entrant:
    """A backend that synchronizes inside steps, on a transport."""

    engine: str
    """A key of `ddp.backends.BACKENDS`; empty: a single rank."""
    transport: str
    rule: Rule
    exact: int
    """Most ranks for which the order of its sums is known, so that its bits must equal the oracle's."""
    module: str = ""
    """Module of its `Backend`; empty: the engine's own."""


def entrant(backend: str) -> Entrant:
    """Return how to compare a backend that synchronizes inside steps with the oracle; an empty name means a single
    rank."""
    spec = BACKENDS.get(backend)
    if spec is None:
        return Entrant("", "auto", OURS, 1)
    rule = replace(TORCH if spec.torch_native else OURS, flat=backend not in APART, each_pass=backend in EACH_PASS)
    if spec.service:
        return Entrant(backend, "auto", SERVED, 2)
    if spec.torch_native:
        return Entrant(backend, "gloo", rule, 2)
    return Entrant(backend, "memory", rule, 64)


def fingerprint(state: Mapping[str, Tensor]) -> str:
    """Return the digest of all values, bit for bit."""
    return tensor_digest(state.values())


def distance(state: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the largest difference between tensors of two states, as of `gap`; infinite if their names differ."""
    if state.keys() != other.keys():
        return float("inf")
    return max((gap(state[name], value) for name, value in other.items() if value.numel()), default=0.0)


def gap(own: Tensor | float, other: Tensor | float) -> float:
    """Return the largest difference of values, as a fraction of the largest finite value of `other` if that is above 1;
    infinite if one is not finite, but 0 if both are the same infinity, or no numbers."""
    first, second = (torch.as_tensor(side, dtype=torch.float64) for side in (own, other))
    alike = (first == second) | (first.isnan() & second.isnan())
    apart = (first - second).abs().nan_to_num(math.inf, math.inf).where(~alike, 0.0).max()
    return float(apart / second.abs().where(second.isfinite(), 0.0).max().clamp(min=1.0))


def largest(differences: Iterable[float]) -> float | None:
    """Return the largest difference, None of none; infinite if one is not a number, which `max` may pass over."""
    return max((math.inf if math.isnan(each) else each for each in differences), default=None)


@dataclass(frozen=True)
class ProofEntry:
    """A course to train with an entrant."""

    entrant: Entrant
    course: OracleCourse
    policy: Policy
    truth: Path | None = None
    """Folder of the oracle's states, `<step>.pt`; None: the ranks do not compare."""
    only: tuple[str, ...] | None = None
    """Names of the compared tensors; None: all."""
    every_step: bool = True
    """Whether to assemble and compare the state after every step; else only after the last."""
    averaging: Averaging = field(default_factory=Averaging)
    """How replicas are averaged, where they are."""


def job_of(entry: ProofEntry, scratch: Path) -> Job:
    """Return the job from which ranks build their replicas and backends."""
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
        averaging=entry.averaging,
    )


def shown(state: Mapping[str, Tensor], only: tuple[str, ...] | None) -> dict[str, Tensor]:
    """Return the part of a state that is compared."""
    return {name: value for name, value in state.items() if only is None or name in only}


def against(state: Mapping[str, Tensor], digest: str, truth: Path, name: str) -> float:
    """Return the largest difference from the oracle's state, which is read only if the digests differ."""
    if (truth / f"{name}.sha256").read_text(encoding="utf-8") == digest:
        return 0.0
    return distance(state, torch.load(truth / f"{name}.pt"))

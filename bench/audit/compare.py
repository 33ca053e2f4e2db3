"""Compares a step that was done again with what the engine did, up to rounding.

How far roundings carry is measured: the step is done once more from parameters that are off by a rounding or two. What the
engine did may differ by `SLACK` times what that changes. Pure but for torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from bench.audit.again import Done
from bench.audit.kept import BUFFERS, OPTIMIZER, PARAMETERS, KeptStep, Name, Part

SLACK = 16.0
"""Sums in another order, vector units that begin elsewhere: several roundings, of which the one that is tried is typical."""
SHAKES = 4
"""How often a loss is taken with parameters that are off, at most."""
ROUNDINGS = 2.0
"""By how much parameters are off where the step is done once more, in the type's epsilon."""
DEVICE_ROUNDING = 2.0**-11
"""The same on a GPU, whose multiplications may have ten bits."""

AT_ONCE = 8.0
"""By so much more they are off for steps of many ranks in one operation, none of whose sums is in the usual order."""


@dataclass(frozen=True)
class StepDifference:
    """What is not as it should be."""

    what: str
    engine: str
    audit: str
    excess: float
    """In what it may be off."""

    def __str__(self) -> str:
        return f"{self.what}: {self.engine} in the run, {self.audit} done again"


def shake_of(parameters: Sequence[Tensor]) -> float:
    """Return by how much parameters are to be off, of themselves, to see how far roundings carry."""
    if any(p.device.type != "cpu" for p in parameters):
        return DEVICE_ROUNDING
    kinds = [torch.finfo(p.dtype).eps for p in parameters if p.is_floating_point()]
    return ROUNDINGS * max(kinds, default=torch.finfo(torch.float32).eps)


def identical(engine: Mapping[Name, Sequence[Part]], own: Done, losses: Sequence[Sequence[float | None]]) -> bool:
    """Return whether the losses and the state after a step have the same bits: nothing is to be measured then."""
    same = engine.keys() == own.after.keys() and [list(each) for each in losses] == own.losses
    return same and all(_distance(parts, own.after[name])[0] == 0.0 for name, parts in engine.items())


def ranks_apart(group: Sequence[KeptStep], own_buffers: bool) -> Iterator[StepDifference]:
    """Yield what a rank has otherwise than the first one behind a step of all, by digests, but for its `own_buffers`."""
    first = {name: parts[0] for name, parts in group[0].after.items() if len(parts) == 1 and parts[0].every == 1}
    for each in group[1:]:
        for name, parts in each.after.items():
            if name in first and not (own_buffers and name.kind == BUFFERS):
                for digest in {part.digest for part in parts if part.digest} - {first[name].sha256}:
                    what = f"{name} of rank {each.rank}"
                    yield StepDifference(
                        what, digest[:16], f"{first[name].sha256[:16]} on the first rank and", math.inf
                    )


def losses_apart(
    engine: Sequence[float | None],
    own: Sequence[float],
    at: str,
    rounding: float,
    shaken: Callable[[int], Sequence[float]],
    floor: float = 0.0,
) -> list[StepDifference]:
    """Return what differs of the losses on the batches of one rank. `rounding`: what each may be off besides, of itself;
    `shaken`: gives them as they are with the parameters off, the n-th time: once a loss may stay as it is by chance;
    `floor`: what each may be off in any case."""
    apart = []
    for batch, (ours, again) in enumerate(zip(engine, own, strict=True)):
        off = math.inf if ours is None else abs(ours - again)
        slack, number = floor, 0
        while slack < off < math.inf and number < SHAKES:
            least = max(SLACK * torch.finfo(torch.float32).eps, rounding) * abs(again)
            slack = max(slack, least, SLACK * abs(shaken(number)[batch] - again))
            number += 1
        if not off <= slack:
            sides = "not finite" if ours is None else f"{ours:.9g}", f"{again:.9g}"
            apart.append(StepDifference(f"loss{at}", *sides, off / slack if slack else math.inf))
    return apart


def states_apart(
    engine: Mapping[Name, Sequence[Part]], before: Mapping[Name, Tensor], own: Done, shaken: Done, rounding: float
) -> tuple[list[StepDifference], float]:
    """Return what differs of the state after a step, the model first, worst first; and the largest difference, in what is
    allowed. `rounding`: what each change may be off besides, of itself."""
    figures = {name: _figures(name, before, own, shaken) for name in own.after}
    usual = median([noise / size for size, noise in figures.values() if size > 0.0] or [0.0])
    apart, largest = [], 0.0
    for name, parts in engine.items():
        if name not in own.after:
            apart.append(StepDifference(str(name), "there", "not there", math.inf))
            continue
        size, noise = figures[name]
        least = _epsilon(own.after[name]) * _norm(own.after[name])
        # Of what is nothing but roundings (a bias before batch norm) two runs have little in common, its squares less.
        slack = SLACK * max(noise * (SLACK if noise * SLACK > size else 1.0), usual * size, least)
        slack = max(slack, rounding * size)
        difference, count = _distance(parts, own.after[name])
        # Of a sample of the values, as large a part of what is allowed.
        share = math.sqrt(count / max(own.after[name].numel(), 1))
        excess = difference / (slack * share) if slack and share else (math.inf if difference else 0.0)
        largest = max(largest, excess) if math.isfinite(excess) else largest
        if not excess <= 1.0:
            apart.append(_named(name, parts, before, own, excess))
    for name in own.after.keys() - engine.keys():
        apart.append(StepDifference(str(name), "not there", "there", math.inf))
    return sorted(apart, key=lambda each: (OPTIMIZER in each.what, -each.excess)), largest


def _figures(name: Name, before: Mapping[Name, Tensor], own: Done, shaken: Done) -> tuple[float, float]:
    """Return the size of a tensor's change in the step, and how much of it was another with the parameters off."""
    if name.kind == PARAMETERS:
        return _norm(own.moves[name]), _norm(own.moves[name].double() - shaken.moves[name].double())
    after, other = own.after[name].double(), shaken.after.get(name)
    first = before.get(name)
    size = _norm(after) if first is None else _norm(after - first.to(after.device).double())
    return size, 0.0 if other is None else _norm(after - other.double())


def _norm(tensor: Tensor) -> float:
    norm = float(torch.linalg.vector_norm(tensor.double() if not tensor.is_complex() else tensor))
    return norm if math.isfinite(norm) else 0.0


def _epsilon(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0


def _pairs(parts: Sequence[Part], tensor: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return what is kept of a tensor, part by part, beside the same values of `tensor`, in double precision."""
    flat, kept = _real(tensor.reshape(-1).cpu()), [part for part in parts if part.values is not None]
    stretches = [
        flat[part.start :][:: part.every][: len(_real(part.values))] for part in kept if part.values is not None
    ]
    return [
        (_real(p.values).double(), s.double()) for p, s in zip(kept, stretches, strict=True) if p.values is not None
    ]


def _real(values: Tensor) -> Tensor:
    return torch.view_as_real(values).reshape(-1) if values.is_complex() else values


def _distance(parts: Sequence[Part], own: Tensor) -> tuple[float, int]:
    """Return the L2 distance of what is kept to `own`, and of how many values; infinite where one alone is not finite."""
    square, count = 0.0, 0
    for ours, again in _pairs(parts, own):
        same = (ours == again) | (ours.isnan() & again.isnan())  # infinities too
        square += float((ours - again).masked_fill(same, 0.0).square().sum())
        count += len(ours)
    return (math.sqrt(square) if math.isfinite(square) else math.inf), count


def _named(
    name: Name, parts: Sequence[Part], before: Mapping[Name, Tensor], own: Done, excess: float
) -> StepDifference:
    """Return a difference as how far the tensor moved, in the run and done again: of as many values."""
    engine, again = (torch.cat(values) for values in zip(*_pairs(parts, own.after[name]), strict=True))
    if name not in before or len(engine) < 2:
        return StepDifference(str(name), f"{_norm(engine):.6g}", f"{_norm(again):.6g}", excess)
    first = torch.cat([values for _, values in _pairs(parts, before[name])])
    ours, other, apart = (_norm(difference) for difference in (engine - first, again - first, engine - again))
    return StepDifference(f"change of {name}", f"{ours:.4g}", f"{other:.4g} ({apart:.2g} apart)", excess)

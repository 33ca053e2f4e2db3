"""Compares a repeated step with that of the run, up to rounding.

The effect of rounding is measured: the step is repeated once more from parameters that are perturbed by one or two
roundings. The run may differ by `SLACK` times the change that this makes. Pure but for torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from bench.audit.kept_files import BUFFERS, OPTIMIZER, PARAMETERS, KeptStep, Name, Part
from bench.audit.repeated.repeated_step import Done

SLACK = 16.0
"""Factor for sums in another order and other vectorization: several roundings, of which the measured one is typical."""
SHAKES = 4
"""Most perturbations that are tried for a loss, or for the state after many steps."""
ROUNDINGS = 2.0
"""Perturbation of the parameters, in units of the type's epsilon."""
DEVICE_ROUNDING = 2.0**-11
"""The same on a GPU, relative, as its matrix products may have mantissas of ten bits."""

AT_ONCE = 8.0
"""Factor on the perturbation for many ranks in one operation, as all its sums have another order."""


@dataclass(frozen=True)
class StepDifference:
    """A value of the run that the repeated step does not confirm."""

    what: str
    engine: str
    audit: str
    excess: float
    """The difference, as a multiple of the allowed one."""

    def __str__(self) -> str:
        return f"{self.what}: {self.engine} in the run, {self.audit} recomputed"


def shake_of(parameters: Sequence[Tensor]) -> float:
    """Return the relative perturbation of the parameters that measures the effect of rounding."""
    if any(p.device.type != "cpu" for p in parameters):
        return DEVICE_ROUNDING
    kinds = [torch.finfo(p.dtype).eps for p in parameters if p.is_floating_point()]
    return ROUNDINGS * max(kinds, default=torch.finfo(torch.float32).eps)


def identical(engine: Mapping[Name, Sequence[Part]], own: Done, losses: Sequence[Sequence[float | None]]) -> bool:
    """Return whether losses and final state are equal bit for bit, so that no perturbation needs to be measured."""
    same = engine.keys() == own.after.keys() and [list(each) for each in losses] == own.losses
    return same and all(_distance(parts, own.after[name])[0] == 0.0 for name, parts in engine.items())


def ranks_apart(group: Sequence[KeptStep], own_buffers: bool) -> Iterator[StepDifference]:
    """Yield the tensors in which a rank differs from the first one after a step of all ranks, by digests. With
    `own_buffers`, buffers may differ."""
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
    """Return the losses of one rank that differ. `rounding`: relative difference that is allowed besides; `shaken`:
    losses with the n-th perturbation (several, as a single one may leave a loss unchanged by chance); `floor`: absolute
    difference that is always allowed."""
    apart = []
    for batch, (ours, again) in enumerate(zip(engine, own, strict=True)):
        if ours is None and not math.isfinite(again):
            continue
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
    """Return the tensors of the final state that differ, the model before the optimizer, worst first; and the largest
    difference as a multiple of the allowed one. `rounding`: relative difference of each change that is allowed
    besides."""
    figures = {name: _figures(name, before, own, shaken) for name in own.after}
    usual = median([noise / size for size, noise in figures.values() if size > 0.0] or [0.0])
    apart, largest = [], 0.0
    for name, parts in engine.items():
        if name not in own.after:
            apart.append(StepDifference(str(name), "present", "missing", math.inf))
            continue
        size, noise = figures[name]
        least = _epsilon(own.after[name]) * _norm(own.after[name])
        # Tensors whose change is only rounding (a bias before batch norm) differ between runs, and their squares even
        # more.
        slack = SLACK * max(noise * (SLACK if noise * SLACK > size else 1.0), usual * size, least)
        slack = max(slack, rounding * size)
        difference, count = _distance(parts, own.after[name])
        # If only some of the values were kept, the allowance shrinks accordingly.
        share = math.sqrt(count / max(own.after[name].numel(), 1))
        excess = difference / (slack * share) if slack and share else (math.inf if difference else 0.0)
        largest = max(largest, excess) if math.isfinite(excess) else largest
        if not excess <= 1.0:
            apart.append(_named(name, parts, before, own, excess))
    for name in own.after.keys() - engine.keys():
        apart.append(StepDifference(str(name), "missing", "present", math.inf))
    return sorted(apart, key=lambda each: (OPTIMIZER in each.what, -each.excess)), largest


def _figures(name: Name, before: Mapping[Name, Tensor], own: Done, shaken: Done) -> tuple[float, float]:
    """Return the size of a tensor's change in the step, and the part of it that the perturbation changes."""
    if name.kind == PARAMETERS:
        return _norm(own.moves[name]), _norm(own.moves[name].double() - shaken.moves[name].double())
    after, other = own.after[name].double(), shaken.after.get(name)
    first = before.get(name)
    size = _norm(after) if first is None else _norm(after - first.to(after.device).double())
    return size, 0.0 if other is None else _norm(after - other.double())


def _norm(tensor: Tensor) -> float:
    """Return the norm of the finite values: others allow no difference, and must not take the allowance of the rest."""
    values = tensor.double() if not tensor.is_complex() else tensor
    norm = float(torch.linalg.vector_norm(values.where(values.isfinite(), 0.0)))
    return norm if math.isfinite(norm) else 0.0


def _epsilon(tensor: Tensor) -> float:
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() or tensor.is_complex() else 0.0


def _pairs(parts: Sequence[Part], tensor: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the kept parts of a tensor, each with the same elements of `tensor`, in double precision."""
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
    """Return the L2 distance between the kept values and `own`, and their number. The distance is infinite if a value
    is not finite on one side only."""
    square, count = 0.0, 0
    for ours, again in _pairs(parts, own):
        same = (ours == again) | (ours.isnan() & again.isnan())  # infinities, too
        square += float((ours - again).masked_fill(same, 0.0).square().sum())
        count += len(ours)
    return (math.sqrt(square) if math.isfinite(square) else math.inf), count


def _named(
    name: Name, parts: Sequence[Part], before: Mapping[Name, Tensor], own: Done, excess: float
) -> StepDifference:
    """Return the difference as the tensor's change in the run and in the repetition, over the kept values."""
    engine, again = (torch.cat(values) for values in zip(*_pairs(parts, own.after[name]), strict=True))
    if name not in before or len(engine) < 2:
        return StepDifference(str(name), f"{_norm(engine):.6g}", f"{_norm(again):.6g}", excess)
    first = torch.cat([values for _, values in _pairs(parts, before[name])])
    ours, other, apart = (_norm(difference) for difference in (engine - first, again - first, engine - again))
    return StepDifference(f"change of {name}", f"{ours:.4g}", f"{other:.4g} ({apart:.2g} apart)", excess)

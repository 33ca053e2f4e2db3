"""Compares figures that ranks recorded of their steps with repeated steps: gradient norms, and the training metric of
bundled models. Must not use the engine."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from bench.audit.audit_input import AuditOrder, StepReport
from bench.audit.bundled.definitions import DEFINITIONS, NEAR
from bench.audit.documented.rules import left_out_roundings
from bench.audit.documented.seeds import seed_others
from bench.audit.kept_files import KeptStep
from bench.audit.repeated.compare import SLACK, StepDifference
from bench.audit.repeated.repeated_step import Bench, Done
from bench.audit.repeated.rows import TRIES
from bench.audit.repeated.step_scalars import Totals
from bench.audit.reports import of_step
from bench.results.audit_file import AuditItem

CLOSE = 1e-5
"""Relative tolerance of a sum in single precision in another order."""
FACTOR, DOUBLED = 2.0**16, 2_000
"""Initial loss scale in fp16; and steps without overflow after which it doubles."""


def figures_apart(
    order: AuditOrder, bench: Bench, group: Sequence[KeptStep], own: Done, shaken: Done | None
) -> Iterator[StepDifference]:
    """Yield the figures of a step or row that differ. `shaken`: repetition with perturbed parameters; None: the
    repetition equals the run bit for bit, so only the sums of the figures are rounded."""
    left_out = _left_out(order, group[0], own)
    # A resumed run counts norms from 0.
    if order.planned and not order.resumed and left_out is not None:
        yield from _norms(order, bench, group, own, shaken, left_out)
    for place, each in enumerate(group if order.numbered else ()):  # a rank that returned counts its steps from 0
        yield from _metric(order, each, own.metrics[place], None if shaken is None else shaken.metrics[place])


def scalars_apart(
    order: AuditOrder, group: Sequence[KeptStep], own: Done, shaken: Done | None, again: Callable[[], Done]
) -> list[StepDifference]:
    """Return the recorded scalars that differ from the repeated ones, except for those that differ at each repetition,
    such as times. Names on one side only are ignored, as code that records every tenth step counts steps itself."""
    apart = dict[tuple[int, str], StepDifference]()
    for place, step in enumerate(group if order.numbered and order.model not in DEFINITIONS else ()):
        for name, (total, calls) in _totals(of_step(step, order.reports)).items():
            if name not in own.scalars[place]:
                continue
            wanted, times = own.scalars[place][name]
            slack = CLOSE * abs(wanted)
            if shaken is not None:
                slack += SLACK * abs(wanted - shaken.scalars[place].get(name, (wanted, 0))[0]) + len(step.batches)
            if calls != times or (math.isfinite(total) and math.isfinite(wanted) and abs(total - wanted) > slack):
                sides = f"{total:.6g} of {calls}", f"{wanted:.6g} of {times}"
                apart[place, name] = StepDifference(f"{name!r} of rank {step.rank}", *sides, math.inf)
    for seed in range(TRIES if apart and not order.model else 0):
        seed_others(seed)
        then = again()
        for place, name in [*apart]:
            if then.scalars[place].get(name) != own.scalars[place][name]:
                del apart[place, name]
    return list(apart.values())


def _totals(reports: Sequence[StepReport]) -> Totals:
    """Return name -> (sum, calls); NaN for a sum that is not finite."""
    totals = defaultdict[str, tuple[float, int]](lambda: (0.0, 0))
    for each in reports:
        for name, total, calls in each.scalars:
            totals[name] = totals[name][0] + (math.nan if total is None else total), totals[name][1] + calls
    return totals


def _left_out(order: AuditOrder, step: KeptStep, own: Done) -> int | None:
    """Return the number of earlier steps that overflowed in fp16 and have no norm; each halved the loss scale. None:
    not known, as the scale has doubled, or a step of this row overflows."""
    if order.step.precision != "fp16":
        return 0
    value, steps = step.scale
    halvings, early = math.log2(FACTOR / value), counted_from(order, step) < DOUBLED
    whole = own.scale == (value, steps + len(own.norms))
    return int(halvings) if early and whole and value > 1.0 and halvings >= 0.0 and halvings.is_integer() else None


def _norms(
    order: AuditOrder, bench: Bench, group: Sequence[KeptStep], own: Done, shaken: Done | None, left_out: int
) -> Iterator[StepDifference]:
    first, begin = group[0], counted_from(order, group[0]) - left_out
    parameters = list(bench.parameters.values())
    # For a sum of squares in the gradients' type: one rounding of random sign for each value.
    unit = max(torch.finfo(parameter.dtype).eps for parameter in parameters if parameter.is_floating_point())
    rounding = unit * math.sqrt(sum(parameter.numel() for parameter in parameters))
    rounding = max(rounding, left_out_roundings(order.step) / SLACK)
    least = underflow(parameters)
    for number, again in enumerate(own.norms):
        other = again if shaken is None else shaken.norms[number]
        slack = max(SLACK * max(abs(again - other), rounding * again), least)
        for who, norm in _recorded(order, first, begin + number):
            if not abs(norm - again) <= slack:
                line = f"norm of the gradients of step {begin + number}{who}"
                yield StepDifference(line, f"{norm:.6g}", f"{again:.6g}", math.inf)


def underflow(parameters: Iterable[Tensor]) -> float:
    """Return the largest norm of gradients that a sum of squares may lose, as each square is 0 below the least normal
    number of its type."""
    kinds = ((each.numel(), torch.promote_types(each.dtype, torch.float32)) for each in parameters)
    return math.sqrt(sum(count * torch.finfo(kind).tiny for count, kind in kinds))


def counted_from(order: AuditOrder, step: KeptStep) -> int:
    """Return the number that a rank's figures use for this step."""
    # If ranks are threads, a step of all ranks is a whole window.
    return step.averages if order.one_process and step.together else step.step


def _recorded(order: AuditOrder, first: KeptStep, step: int) -> Iterator[tuple[str, float]]:
    """Yield (subject, recorded norm) of a step; for sharded gradients the norm of all ranks together."""
    ranks = range(len(order.norms)) if first.together else [first.rank]
    known = {rank: norm for rank in ranks if rank < len(order.norms) for at, norm in order.norms[rank] if at == step}
    norms = {rank: norm for rank, norm in known.items() if norm is not None}
    if not order.in_shards or not first.together:
        yield from ((f" on rank {rank}", norm) for rank, norm in norms.items())
    elif len(norms) == order.world_size:
        yield "", math.sqrt(sum(norm**2 for norm in norms.values()))


def _metric(order: AuditOrder, step: KeptStep, again: float, other: float | None) -> Iterator[StepDifference]:
    """Compare the training metric in a step's reports with its definition."""
    reports = of_step(step, order.reports)
    totals = [total for each in reports for _, total, _ in each.scalars if total is not None]
    if math.isnan(again) or not totals or any(len(each.scalars) != 1 for each in reports):
        return
    # A sample whose two best answers are nearly equal may be counted either way, unless bits are equal.
    slack = NEAR * abs(again) + (0.0 if other is None else SLACK * abs(again - other) + len(step.batches))
    if not abs(sum(totals) - again) <= slack:
        yield StepDifference(f"training metric of rank {step.rank}", f"{sum(totals):.6g}", f"{again:.6g}", math.inf)


def weighed(order: AuditOrder) -> Iterator[AuditItem]:
    """Compare the weight of the training metric in all reports with their samples: bundled models record it for each
    sample."""
    if not order.model:
        return
    for each in order.reports:
        for name, _, calls in each.scalars:
            if calls != each.samples:
                line = f"{name} was recorded for {calls} samples, {each.samples} were trained"
                place: dict[str, Any] = {"rank": each.rank, "epoch": each.epoch, "step": each.first}
                yield AuditItem(what="report", outcome="different", line=line, **place)
                return

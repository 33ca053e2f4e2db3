"""Compares what ranks reported of a step with what they kept of it, which other modules repeat. Must not use the
engine.

A kept step has a report of its own. So losses, rates and samples in the record are those of known steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isclose
from typing import Any

from bench.audit.audit_input import AuditOrder, StepReport
from bench.audit.documented.schedule_places import Place, step_of
from bench.audit.kept_files import KeptStep
from bench.audit.repeated.repeated_step import Bench
from bench.base.grouping import grouped
from bench.results.audit_file import AuditItem

NEAR = 1e-6
"""Relative tolerance: a loss is summed in double precision, sums of several in another order."""
LEAST, PLACES = 2, 64
"""Least number of reports to see a constant rate; and points per epoch, or per range, at which the schedule is
computed."""
SAME = 1e-9
"""Relative tolerance: a rate is computed in the same way from the same number."""


def judged(steps: Sequence[KeptStep], reports: Sequence[StepReport]) -> Iterator[AuditItem]:
    """Compare each step with its reports. Steps without reports of their own, as of earlier versions, are left out."""
    by_rank = grouped((report.rank, report) for report in reports)
    for step in steps:
        if own := of_step(step, by_rank[step.rank]):
            line = "; ".join(_differences(step, own))
            place = {"rank": step.rank, "epoch": step.epoch, "step": step.step}
            yield AuditItem(
                what="report", outcome="different" if line else "equal", line=line, files=[step.file], **place
            )


def of_step(step: KeptStep, reports: Sequence[StepReport]) -> list[StepReport]:
    """Return the reports of exactly this step, or row of steps; [] if a report also covers others."""
    first, last = step.step, step.step + len(step.batches)
    own = [each for each in reports if each.rank == step.rank and first <= each.first < each.last <= last]
    return own if sum(each.last - each.first for each in own) == len(step.batches) else []


def _differences(step: KeptStep, own: Sequence[StepReport]) -> Iterator[str]:
    """Yield the reported values that differ from the kept step."""
    if epochs := {each.epoch for each in own} - {step.epoch}:
        yield f"epoch {epochs.pop()} was reported, {step.epoch} was trained"
    sizes = [stop - start for start, stop in step.batches]
    samples = sum(each.samples for each in own)
    if samples != sum(sizes):
        yield f"{samples} samples were reported, {sum(sizes)} were trained"
    sums = [each.loss_sum for each in own]
    losses = [loss for loss, size in zip(step.losses, sizes, strict=True) if size]
    if None not in sums:  # a loss that is not finite, of a step that fp16 leaves out, is not reported
        reported = sum(each for each in sums if each is not None)
        parts = [loss * size for loss, size in zip(losses, filter(None, sizes), strict=True) if loss is not None]
        if not isclose(reported, sum(parts), rel_tol=NEAR, abs_tol=NEAR * sum(map(abs, parts))):
            yield f"a sum of losses of {reported:.6g} was reported, {sum(parts):.6g} was trained"
    if step.rates and not isclose(own[-1].lr, step.rates[0], rel_tol=NEAR):
        yield f"a learning rate of {own[-1].lr:.6g} was reported, {step.rates[0]:.6g} was set"


def rates(order: AuditOrder, bench: Bench) -> Iterator[AuditItem]:
    """Compare the rate of every report with the schedule's at its place, unless a callback may set rates."""
    count = 0
    if order.misplaced:
        yield AuditItem(what="rate", outcome="different", line=order.misplaced)
    for report in order.reports if bench.task.epoch_callback is None else ():
        if report.seen is None:
            continue
        if apart := _off_schedule(report.lr, report.seen, bench):
            place: dict[str, Any] = {"rank": report.rank, "epoch": report.epoch, "step": report.last - 1}
            yield AuditItem(what="rate", outcome="different", line=apart, **place)
            return
        count += 1
    if count:
        yield AuditItem(what="rate", outcome="equal", line=f"{count} learning rates are the schedule's")


def _off_schedule(rate: float, seen: Place, bench: Bench) -> str:
    """Say how a rate differs from those of the schedule between two places; empty: it does not. Of a range that does
    not hold it, points in between are computed, and it is widened by the largest step between two of them."""
    low, high = seen
    due = [bench.rates(place)[0] for place in seen]
    if _within(rate, due):
        return ""
    due = [bench.rates(low + (high - low) * part / PLACES)[0] for part in range(PLACES + 1)]
    step = max(abs(after - before) for before, after in pairwise(due))
    if _within(rate, [min(due) - step, max(due) + step]):
        return ""
    line = f"a learning rate of {rate:.6g} was reported after {low:g} samples, {due[0]:.6g} is due"
    return f"{line}; after {high:g} samples {due[-1]:.6g} would be" if high > low else line


def _within(rate: float, due: Sequence[float]) -> bool:
    least, most = min(due), max(due)
    return least <= rate <= most or any(
        isclose(rate, each, rel_tol=SAME, abs_tol=SAME * SAME) for each in (least, most)
    )


def resumed_rates(order: AuditOrder, bench: Bench) -> Iterator[AuditItem]:
    """Compare the rates after a resumption with those before it in the same epoch. If they are constant on both sides,
    and the schedule is, they must be equal. A callback, which may set rates, is called when an epoch begins."""
    sides = grouped(
        ((report.rank, report.epoch, report.resumes), report)
        for report in (order.reports if order.resumed and order.planned else ())
    )
    lasts = {(rank, epoch): side[-1].lr for (rank, epoch, _), side in sides.items()}
    for (rank, epoch, resumes), after in sides.items():
        before = sides.get((rank, epoch, resumes - 1), ())
        pair = [[report.lr for report in side] for side in (before, after)]
        if min(map(len, pair)) < LEAST or any(not isclose(max(each), min(each), rel_tol=SAME) for each in pair):
            continue
        (was, *_), (now, *_) = pair
        # The schedule is tested over adjoining epochs, too: by the samples that all have seen, a rank may be in another
        # epoch.
        places = (max(epoch + part / PLACES, 0.0) for part in range(-PLACES, 2 * PLACES + 1))
        due = {bench.rates(place * bench.rules.samples)[0] for place in places}
        first = lasts.get((rank, epoch - 1), was)
        # A callback's rates may have milestones of their own. Wrong is a rate that loses the callback's factor, or has
        # it twice.
        lost, twice = isclose(now, first, rel_tol=NEAR), isclose(now * first, was * was, rel_tol=NEAR)
        known = bench.task.epoch_callback is None or lost or twice
        if len(due) == 1 and known and not isclose(was, now, rel_tol=NEAR):
            line = f"the learning rate was {was:.6g} before the run was resumed in this epoch, and {now:.6g} after"
            place: dict[str, Any] = {"rank": rank, "epoch": epoch, "step": after[0].first}
            yield AuditItem(what="rate", outcome="different", line=line, **place)
            return


def in_turn(order: AuditOrder, steps: Sequence[KeptStep]) -> Iterator[AuditItem]:
    """Compare what ranks trained in their kept steps with what they were granted."""
    for step in steps if order.planned and not order.resumed else ():
        turns = order.turns.get(step.rank, ())
        for number, work in enumerate(() if step.together else step.batches, step.step):
            due = step_of(turns, number)
            if due is not None and due != (step.epoch, *work):
                line = f"positions {work[0]} to {work[1]} of epoch {step.epoch} were trained in step {number}, "
                line += f"{due[1]} to {due[2]} of epoch {due[0]} were due"
                place: dict[str, Any] = {"rank": step.rank, "epoch": step.epoch, "step": number, "files": [step.file]}
                yield AuditItem(what="positions", outcome="different", line=line, **place)
                return

"""Counts a run's steps by counters in its state: batch norms count their forward passes in training mode, optimizers
their steps.

This finds passes in the wrong mode, which are too rare to be in a kept step, and passes and steps that are superfluous
or missing. Must not use the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

from torch import Tensor

from bench.audit.audit_input import AuditOrder
from bench.audit.kept_files import BUFFERS, OPTIMIZER, KeptStep, Parts
from bench.audit.repeated.between import adjoining
from bench.audit.repeated.figures import DOUBLED, FACTOR
from bench.audit.repeated.repeated_step import Bench, several
from bench.base.grouping import grouped
from bench.results.audit_file import AuditItem
from ddp.core.settings.steps import PLAIN

COUNTER = "num_batches_tracked"
"""Buffer of PyTorch's batch norms that counts their passes."""
Counts = dict[str, float]
"""Name of a counter -> its value."""
LossScale = tuple[float, int]
"""(Factor of the loss in fp16, steps since it changed)."""
OF = " of "
"""Separates the name of an optimizer's counter from the parameter whose steps it counts."""


def counted(
    order: AuditOrder, steps: Sequence[KeptStep], skipping: Callable[[], bool] = lambda: False
) -> Iterator[AuditItem]:
    """Compare the counters before the kept steps of a rank, or of all ranks if they step separately. Each must have
    counted the same number per step. Only for runs that went as planned. `skipping`: whether a step may skip norms at
    random; called at most once."""
    skipping = cache(skipping)
    by_rank = _by_rank(steps)
    together = order.world_size == 1 or all(each.together for each in by_rank.get(0, ()))
    if not order.planned or (order.one_process and order.world_size > 1):
        return
    for rank, own in sorted(by_rank.items()):
        if len(own) > 1 and not (together and rank):
            yield from _counted(order, own, together, skipping)


def updates(order: AuditOrder) -> Iterator[AuditItem]:
    """Compare the calls of each rank's optimizer with the steps that the rank reported since the last resumption. Not for
    fp16, which skips steps."""
    if not order.unbroken or order.step.precision == "fp16" or (order.one_process and order.world_size > 1):
        return
    for rank, work in enumerate(order.works):
        own = [report for report in order.reports if report.rank == rank]
        present = [report for report in own if report.resumes == own[-1].resumes]
        steps = max(report.last for report in present) - min(report.first for report in present) if own else 0
        if work.updates is not None and steps:
            line = f"{steps} steps were reported, its optimizer made {work.updates}" if work.updates != steps else ""
            yield AuditItem(what="chain", outcome="different" if line else "equal", line=line, rank=rank)


def scales(order: AuditOrder, steps: Sequence[KeptStep], left: Mapping[str, LossScale]) -> Iterator[AuditItem]:
    """Look for a loss scale in fp16 that has grown more often than the steps of all ranks allow, that should have grown, or
    that a step did not leave to the next as the repeated step did. `left`: file of a step, or row, that the audit
    confirmed -> what it leaves."""
    if order.step.precision != "fp16" or not order.planned or order.resumed:
        return
    most = FACTOR * 2.0 ** (sum(report.last - report.first for report in order.reports) // DOUBLED)
    for each in steps:
        (value, since), about = each.scale, {"rank": each.rank, "epoch": each.epoch, "step": each.step}
        line = f"the loss scale is {value:g}, at most {most:g} is possible after so many steps" if value > most else ""
        if since >= DOUBLED:
            line = f"the loss scale is still {value:g} after {since} steps without overflow; {DOUBLED} double it"
        if line:
            yield AuditItem(what="chain", outcome="different", line=line, files=[each.file], **about)
            return
    for first, then in adjoining(steps) if not order.one_process or order.world_size == 1 else ():
        if first.file in left and (due := left[first.file]) != then.scale:
            sides = (f"{value:g}, unchanged for {since} steps" for value, since in (then.scale, due))
            line = "the loss scale before it is {}; the step before leaves {}".format(*sides)
            place: dict[str, Any] = {"rank": then.rank, "epoch": then.epoch, "step": then.step}
            yield AuditItem(what="chain", outcome="different", line=line, files=[first.file, then.file], **place)


def resets(order: AuditOrder, steps: Sequence[KeptStep], bench: Bench) -> Iterator[AuditItem]:
    """Look for an optimizer that counted more steps than were done since an average reset it."""
    known = order.resets and order.planned and not order.one_process and not _has_counted(bench)
    for rank, own in sorted(_by_rank(steps).items()) if known else ():
        for first, then in pairwise(own):
            if then.averages == first.averages:
                continue
            most = then.step - first.step - len(first.row)
            counts, after = _counters(then.before), _counters(then.after)
            for name in counts:
                # Only the largest of the per-parameter counters; other numbers of an optimizer count something else.
                if OF in name or name.endswith(COUNTER) or _moved(then, counts, after, name) != 1:
                    continue
                line = f"{name} counted {counts[name]:g} steps, at most {most} are possible since an average reset it"
                wrong = counts[name] > most
                place: dict[str, Any] = {"rank": rank, "epoch": then.epoch, "step": then.step, "files": [then.file]}
                yield AuditItem(what="chain", outcome="different" if wrong else "equal", line=line * wrong, **place)


def _by_rank(steps: Sequence[KeptStep]) -> dict[int, list[KeptStep]]:
    """Return the kept steps of each rank, in order."""
    return grouped((each.rank, each) for each in sorted(steps, key=lambda each: each.step))


def _has_counted(bench: Bench) -> bool:
    """Return whether a new optimizer of the task already has counts, for example because the task loads its state."""
    optimizers = several(bench.task.optimizer(list(bench.model.parameters())))
    values = [value for each in optimizers for state in each.state.values() for value in state.values()]
    return any(bool(value) for value in values if not isinstance(value, Tensor) or value.numel() == 1)


def _counted(
    order: AuditOrder, own: Sequence[KeptStep], together: bool, skipping: Callable[[], bool]
) -> Iterator[AuditItem]:
    """Yield the comparisons of all counters. Norms: only if each step has a single batch; an average takes the largest
    count. Optimizers: only if averages leave them alone and no step is skipped."""
    of_all = float(sum(report.last - report.first for report in order.reports))
    steps = [(each, _counters(each.before), _counters(each.after)) for each in own]
    begun = [(each, before) for each, before, _ in steps]
    passes = {name: {_moved(*step, name) for step in steps} for name in begun[-1][1]}
    for name, known in passes.items():
        of_norm = name.endswith(COUNTER)
        if not (order.step == PLAIN if of_norm else order.untouched and order.step.precision != "fp16"):
            continue
        if len(known) != 1 or None in known:
            continue  # steps differ in kind, as when a norm is frozen on the way
        (each_step,) = known
        if not of_norm and OF in name:
            # A user's model may skip a layer.
            item = _item(begun, name, float(each_step or 0.0), 0.0) if order.model and each_step == 1 else None
            if item is not None and item.outcome == "different" and not skipping():
                yield item
            continue
        if each_step == 1 if not of_norm else not skipping():  # other numbers of an optimizer count something else
            yield _item(begun, name, float(each_step or 0.0), of_all if of_norm and not together else 0.0)


def _item(begun: Sequence[tuple[KeptStep, Counts]], name: str, passes: float, of_all: float) -> AuditItem:
    """Compare the growth of one counter between kept steps. `of_all`: steps of all ranks, the most that it may have
    counted if averages take the largest count; 0: only the rank's own steps count."""
    for (first, earlier), (then, later) in pairwise(begun):
        before, after = earlier.get(name, 0.0), later.get(name)
        between, wanted = then.step - first.step, passes * (then.step - first.step)
        if after is not None and not wanted <= after - before <= max(passes * of_all, wanted):
            line = f"{name} counted {after - before:g} in {between} steps up to this one, expected {wanted:g}"
            place: dict[str, Any] = {
                "rank": then.rank,
                "epoch": then.epoch,
                "step": then.step,
                "files": [first.file, then.file],
            }
            return AuditItem(what="chain", outcome="different", line=line, **place)
    return AuditItem(what="chain", outcome="equal", rank=begun[0][0].rank)


def _counters(state: Parts) -> Counts:
    """Return the counters in a state by name. For an optimizer, the counter of each parameter, and the largest of all,
    as some parameters may be unused now and then."""
    counts: Counts = {}
    for name, parts in state.items():
        values = parts[0].values
        if values is None or values.numel() != 1 or values.is_complex():
            continue
        if name.kind == BUFFERS and name.name.endswith(COUNTER):
            counts[name.name] = float(values.reshape(-1)[0])
        elif name.kind == OPTIMIZER and not parts[0].shape:
            key = f"the optimizer's {name.key}"
            count = float(values.reshape(-1)[0])
            counts[key] = max(counts.get(key, 0.0), count)
            counts[f"{key}{OF}{name.name}"] = count
    return counts


def _moved(step: KeptStep, earlier: Counts, later: Counts, name: str) -> float | None:
    """Return the growth of a counter per step; None: not known. An optimizer creates its counters in its first step."""
    before, after = earlier.get(name, 0.0), later.get(name)
    return None if after is None else (after - before) / len(step.row)

"""Repeats all steps between two kept states, if the batches in between are known: a rare error is seldom in a kept
step. The run's seed chooses as many stretches as a time budget allows. Must not use the engine."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from bench.audit.audit_input import AuditOrder
from bench.audit.documented.rules import left_out_roundings
from bench.audit.documented.seeds import seed_of, seed_others
from bench.audit.kept_files import Incomplete, KeptStep, every, whole
from bench.audit.repeated.between import MOST_LINES
from bench.audit.repeated.compare import DEVICE_ROUNDING, SHAKES, StepDifference, identical, shake_of, states_apart
from bench.audit.repeated.repeated_step import Bench, moved
from bench.audit.repeated.rows import UNREPEATED, redo, redo_all, repeats
from bench.base.grouping import grouped
from bench.results.audit_file import AuditItem
from ddp.replica.scalars import Scalars

BUDGET_S = 4.0
"""Approximate processor seconds per run."""
LONGEST = 200
"""Most steps between two states, as rounding errors grow unevenly."""
CAREFUL = 4.0
"""Factor on the perturbation, compared with that of a single step."""
TRIES = 16
"""Number of passes with different random numbers."""

Steps = list[tuple[int, int, int]]
"""(epoch, first position, end position) of each step."""


def stretches(order: AuditOrder, bench: Bench, groups: Sequence[Sequence[KeptStep]]) -> Iterator[AuditItem]:
    """Compare kept states with those that follow from earlier kept states."""
    if order.world_size > 1:
        groups = [group for group in groups if group[0].together]
    if not _known(order, bench, groups):
        return
    spent, each = 0.0, _seconds(bench, groups[0])
    pairs = sorted(
        pairwise(groups), key=lambda pair: seed_of(order.seed, "stretch", order.run_id, int(pair[0][0].seen))
    )
    for first, then in pairs:
        if len({bisect_right(order.breaks, group[0].seen) for group in (first, then)}) > 1:
            continue
        steps = _between(order, bench, first[0].seen, then[0].seen)
        cost = 2 * each * len(steps)
        if len(first[0].row) < len(steps) <= LONGEST and spent + cost <= BUDGET_S:
            spent += cost
            yield _judged(order, bench, (first, then), steps)


def _seconds(bench: Bench, group: Sequence[KeptStep]) -> float:
    """Return the processor seconds of a step: the least of three, as the first one also allocates memory."""
    spent = [BUDGET_S]
    for _ in range(3):
        began = time.process_time()
        try:
            redo(bench, whole(every(group, "before")), [replace(step, then=()) for step in group])
        except Incomplete:
            break
        spent.append(time.process_time() - began)
    return min(spent)


def _known(order: AuditOrder, bench: Bench, groups: Sequence[Sequence[KeptStep]]) -> bool:
    """Return whether the samples seen before a step determine its batches and its result: the model must not depend on
    how ranks slice them, or there is one rank. In half precision the slices must be known."""
    half, changed = order.step.half, order.moves and (order.resumed or not order.planned)
    if not groups or changed or (half and not _steady(order, groups[0][0])):
        return False
    for group in groups:
        for number, step in enumerate(group[0].row):
            at = _at(bench, step.seen, step.total)
            if _between(order, bench, step.seen, step.seen + step.total) != [at]:
                return False
            own = [[span for span in each.row[number].work if span[1] > span[0]] for each in group]
            if half and [work for work in own if work] != _slices(*at[1:], len(group)):
                return False
    alone = order.world_size == 1
    return alone or (bool(order.model) and groups[0][0].together and not bench.buffers and not draws(bench))


def _steady(order: AuditOrder, step: KeptStep) -> bool:
    """Return whether many steps in half precision are rounded as the run's. Loss scales (fp16) may differ once one step
    does; compilers, GPUs and operations for many ranks round otherwise."""
    return not (order.step.precision != "bf16" or order.step.compile or order.coarse or step.at_once)


def _at(bench: Bench, seen: float, total: int) -> tuple[int, int, int]:
    epoch, start = divmod(int(seen), bench.rules.samples)
    return epoch, start, start + total


def _between(order: AuditOrder, bench: Bench, seen: float, end: float) -> Steps:
    """Return the steps of all ranks from one place to another."""
    steps, most = list[tuple[int, int, int]](), order.batch_size * order.world_size
    while seen < end:
        step = _at(bench, seen, min(most, bench.rules.samples - int(seen) % bench.rules.samples))
        steps.append(step)
        seen += step[2] - step[1]
    return steps


def _slices(start: int, stop: int, ranks: int) -> list[list[tuple[int, int]]]:
    """Return the parts of a step that ranks train: even ones, the first of which have the odd samples."""
    each, odd = divmod(stop - start, ranks)
    ends = [start + each * rank + min(rank, odd) for rank in range(ranks + 1)]
    return [[span] for span in pairwise(ends) if span[1] > span[0]]


def draws(bench: Bench) -> bool:
    """Return whether the loss of a batch depends on random numbers; several are tried, as one may leave a layer out and
    another not."""
    batch = moved(bench.batch(0, min(bench.rules.batch_size, bench.rules.samples)), bench.device)
    losses = []
    with Scalars():
        for seed in range(TRIES):
            torch.manual_seed(seed)
            seed_others(seed)
            losses.append(bench.task.loss(bench.model.train(), batch).item())  # with gradients, as tasks may need them
    return len(set(losses)) > 1


def _judged(
    order: AuditOrder, bench: Bench, pair: tuple[Sequence[KeptStep], Sequence[KeptStep]], steps: Steps
) -> AuditItem:
    first, then = pair
    about: dict[str, Any] = {"what": "chain", "rank": then[0].rank, "epoch": then[0].epoch, "step": then[0].step}
    about["files"] = [each.file for group in pair for each in group]
    try:
        before = whole(every(first, "before"))
        kept = grouped((name, part) for name, part in every(then, "before"))
        shake = CAREFUL * (DEVICE_ROUNDING if order.coarse else shake_of(list(bench.parameters.values())))
        ranks = len(first) if order.step.half else 1  # each rank's part is rounded
        whole_steps = [
            (epoch, _slices(start, stop, ranks), epoch * bench.rules.samples + start) for epoch, start, stop in steps
        ]
        again = partial(redo_all, bench, before, whole_steps, together=ranks > 1)
        own = again()
        if identical(kept, own, own.losses):
            return AuditItem(**about, outcome="equal", largest=0.0)
        apart, largest = list[StepDifference](), math.inf
        for seed in range(1, SHAKES + 1):  # one alone may miss a sample for which a layer's output is almost zero
            shaken = again(shake=shake * math.sqrt(len(steps)), seed=seed)
            differences, excess = states_apart(kept, before, own, shaken, left_out_roundings(order.step))
            names = {each.what for each in apart or differences}
            apart, largest = [each for each in differences if each.what in names], min(largest, excess)
            if not apart:
                break
        if apart and not order.model and not repeats(bench, again):
            raise Incomplete(UNREPEATED)
    except Incomplete as error:
        return AuditItem(**about, outcome="skipped", line=str(error))
    lines = "; ".join(map(str, apart[:MOST_LINES]))
    line = f"{len(steps)} steps up to this one, recomputed from the state before them: {lines}" if apart else ""
    return AuditItem(**about, outcome="different" if apart else "equal", line=line, largest=largest)

"""What is evaluated is the test set, the whole of it, on the model that all ranks share.

Ranks record how many samples they showed the model, a sum over what these hold, and sums of the model (`Sums`). The first
two must be the baseline's; the model must be the same on all ranks, and an average that was made, where these are recorded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, recorded
from bench.validate.reference import Sets
from bench.validate.verdict import Verdict, verdict
from ddp.core.events import Evaluated, Sums

NEAR = 1e-9
"""Relative: sums in double precision, of parts."""


def check(case: Case) -> Verdict | None:
    """Return FAIL at the first evaluation that is of something else; None where it is not recorded."""
    count, sets = 0, case.sets
    for run, known in recorded(case.cell):
        if not known.evaluated or any(event.content is None for event in known.evaluated):
            continue
        if wrong := _amiss(sets, run, known):
            return verdict("FAIL", "evaluation", case.cell, f"seed {run.metrics.seed}, {wrong}")
        count += run.metrics.epochs_planned
    whose = "the baseline's test set" if sets else "one test set"
    line = f"{count} evaluations are of {whose}, on the model that all share"
    return verdict("PASS", "evaluation", case.cell, line) if count else None


def evaluated(known: Records) -> dict[int, tuple[int, float]]:
    """Return epoch -> (samples, sum over what they hold) of its evaluation."""
    parts: dict[int, tuple[int, float]] = {}
    for event in known.evaluated:
        samples, content = parts.get(event.epoch, (0, 0.0))
        parts[event.epoch] = samples + event.samples, content + (event.content or 0.0)
    return parts


def _amiss(sets: Sets | None, run: Run, known: Records) -> str:
    parts = evaluated(known)
    first = next(iter(parts.values()))
    wanted = sets or Sets(training=0, evaluated=first[0], content=first[1])
    for epoch, (samples, content) in sorted(parts.items()):
        if samples != wanted.evaluated:
            return f"epoch {epoch}: {samples} samples were evaluated, {wanted.evaluated} are the test set"
        if abs(content - wanted.content) > NEAR * max(abs(wanted.content), samples):
            sums = f"sum over their values {content:.9g} for {wanted.content:.9g}"
            return f"epoch {epoch}: other samples were evaluated than the test set's ({sums})"
    return _models(known) if run.metrics.world_size > 1 else ""


def _models(known: Records) -> str:
    averages = [event.average for event in known.averaged]
    averages = averages if all(averages) else []  # else it may be one of those that were not recorded
    made = _Made(averages)
    by_epoch: dict[int, list[Evaluated]] = defaultdict(list)
    for event in known.evaluated:
        by_epoch[event.epoch].append(event)
    for epoch, events in sorted(by_epoch.items()):
        if any(not _same(event.model, events[0].model) for event in events):
            return f"epoch {epoch}: the ranks evaluated different models"
        if averages and not made.has(events[0].model):
            return f"epoch {epoch}: the model that was evaluated is no average that was made"
    return ""


class _Made:
    """The averages of a run, by the first of their sums: of all of them, few can be the one that is asked for."""

    def __init__(self, averages: Sequence[Sums]) -> None:
        known = [(sums[0], sums) for sums in averages if sums[0] is not None]
        known.sort(key=lambda pair: pair[0])
        self._firsts, self._known = [first for first, _ in known], [sums for _, sums in known]
        self._unknown = [sums for sums in averages if sums[0] is None]

    def has(self, model: Sums) -> bool:
        """Whether one of them is `model`."""
        first = model[0] if model else None
        near = self._known
        if first is not None:
            slack = 2 * NEAR * max(abs(first), 1.0)
            near = near[bisect_left(self._firsts, first - slack) : bisect_right(self._firsts, first + slack)]
        return any(_same(model, average) for average in (*near, *self._unknown))


def _same(model: Sums, other: Sums) -> bool:
    return all(
        a is None or b is None or abs(a - b) <= NEAR * max(abs(a), abs(b), 1.0)
        for a, b in zip(model, other, strict=False)
    )

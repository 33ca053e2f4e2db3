"""The time of every rank is accounted for: its fractions sum to 1, and it computes no longer than its steps took.

Steps are timed as a whole beside their parts (`Progress.busy_s`), and what a rank books as computing lies inside them. So
waiting that is booked as computing shows. Every step has each of its parts on record, however short; no time is booked as
that of steps and of something else; evaluations took as long as they are said to have stopped the clock of training, which
runs from when ranks are ready to when they are done: all of their work lies between.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque

from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import BETWEEN_STEPS, Records, recorded
from bench.validate.verdict import Verdict, verdict

FRACTIONS = ("compute", "data", "comm", "wait", "eval", "checkpoint", "other")
TOLERANCE = 0.001
SLACK, SHARE = 1.1, 0.02
"""Times what steps or evaluations took, and of the rank's time, that it may compute: parts and whole are read off the clock
apart."""
IN_STEPS = 0.005
"""Of a rank's time, what its reports may book as steps and as something else."""
CLOCK = 0.02
"""Seconds that a report may be behind what it is of."""
IN_PARTS = ("zero3", "torch_fsdp")
"""Backends whose ranks bring a model together in its evaluation."""
NEARLY = 0.9
"""Of the batches that samples make: some may be larger than the others."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if the fractions of a rank do not sum to 1, a rank of a finished run is missing, or one is booked as
    computing for longer than its steps took, or for fewer steps; or if its time is told of in two ways."""
    cell = case.cell
    if not cell.ok:
        return None
    missing = [m for m in cell.ok if len(m.breakdown) != m.world_size]
    totals = [sum(getattr(rank, name) for name in FRACTIONS) for m in cell.ok for rank in m.breakdown]
    off = max((abs(total - 1) for total in totals), default=0.0)
    line = f"the fractions of every rank sum to 1 within {off:.1g} (allowed: {TOLERANCE:g})"
    if missing:
        return verdict("FAIL", "breakdown", cell, f"{line}; {len(missing)} runs lack ranks")
    for run, known in recorded(cell):
        if wrong := _longer(run, known) or (_unlike(run, known.measured()) if known.slices else ""):
            return verdict("FAIL", "breakdown", cell, f"seed {run.metrics.seed}: {wrong}")
    return verdict("PASS" if off <= TOLERANCE else "FAIL", "breakdown", cell, line)


def _longer(run: Run, known: Records) -> str:
    """Say which rank computes for longer than its steps took."""
    busy = _busy(known)
    for rank, (row, wall) in enumerate(zip(run.metrics.breakdown, run.metrics.time_s.rank_wall, strict=False)):
        computing = (row.compute + row.data) * wall
        # Replicas in one process update their models between steps, too.
        outside = known.seconds[rank, "optimizer"] if run.metrics.engine == "graph" else 0.0
        if computing > SLACK * busy[rank] + outside + SHARE * wall:
            return f"rank {rank} is booked as computing for {computing:.3g} s, and its steps took {busy[rank]:.3g} s"
    return ""


def _unlike(run: Run, known: Records) -> str:
    """Say what of the slices does not fit what ranks report."""
    return _outside(known) or _lacking(run, known) or _booked_twice(run, known) or _rests_in_steps(run, known)


def _outside(known: Records) -> str:
    """Say which rank was at work before it was ready, or after it was done: the clock of training does not count that."""
    ready = {event.rank: event.at for event in known.ready}
    done = {event.rank: event.at for event in known.finished}
    for (rank, kind), (first, last) in known.spans.items():
        if first < ready.get(rank, first) - CLOCK:
            return f"rank {rank} was at work ({kind}) for {ready[rank] - first:.3g} s before it was ready"
        if kind != "hidden" and last > done.get(rank, last) + CLOCK:
            return f"rank {rank} was at work ({kind}) for {last - done[rank]:.3g} s after it was done"
    return ""


def _lacking(run: Run, known: Records) -> str:
    """Say of which part of its steps a rank has too few slices: one for each batch read, and passed if it had samples."""
    m = run.metrics
    steps: Counter[int] = Counter()
    samples: Counter[int] = Counter()
    for event in known.progress:
        steps[event.rank] += event.steps
        samples[event.rank] += event.samples
    for rank, count in steps.items():
        passed = min(int(NEARLY * samples[rank] / m.batch_size), count)
        for kind, least in (("data", count), ("forward", passed), ("backward", passed)):
            if known.slices[rank, kind] < least:
                return f"rank {rank} has {known.slices[rank, kind]} times of {kind} on record, for {least} steps"
    return ""


def _booked_twice(run: Run, known: Records) -> str:
    """Say of which rank steps and the rest take longer than it was there, or evaluations other than their slices."""
    evaluations: dict[int, float] = defaultdict(float)
    for event in known.evaluated:
        evaluations[event.rank] += event.seconds
    busy = _busy(known)
    for rank, wall in _walls(run, known).items():
        took = known.seconds
        rest = sum(took[rank, kind] for kind in BETWEEN_STEPS)
        if busy[rank] + rest > (1 + SHARE) * wall:
            return (
                f"rank {rank} was there for {wall:.3g} s, its steps took {busy[rank]:.3g} s and the rest {rest:.3g} s"
            )
        inside = took[rank, "exchange"] + took[rank, "copy"] if run.metrics.backend in IN_PARTS else 0.0
        measured = took[rank, "evaluate"]
        if not measured / SLACK - CLOCK <= evaluations[rank] <= SLACK * (measured + inside) + CLOCK:
            return f"rank {rank} evaluated for {evaluations[rank]:.3g} s by its reports, {measured:.3g} s are on record"
    return ""


def _rests_in_steps(run: Run, known: Records) -> str:
    """Say of which rank reports have more seconds of steps than were left since the report before, without its rests.

    A step that a report fell into begins before it: what that report's own time had left counts, too.
    """
    since = {event.rank: event.at for event in known.ready}
    over: dict[int, float] = defaultdict(float)
    spare: dict[int, float] = defaultdict(float)
    rests = {rank: deque(sorted(rows)) for rank, rows in known.rests.items()}
    for event in known.progress:
        rank, begun = event.rank, since.get(event.rank, event.at - event.busy_s)
        rested, left = 0.0, rests.get(rank, deque())
        while left and left[0][0] < event.at:
            begin, end = left.popleft()
            rested += max(0.0, min(end, event.at) - max(begin, begun))
            if end > event.at:
                left.appendleft((event.at, end))
                break
        excess = event.busy_s + rested - (event.at - begun)
        over[rank] += max(0.0, excess - spare[rank])
        spare[rank] = max(0.0, -excess)
        since[rank] = event.at
    for rank, wall in _walls(run, known).items():
        if over[rank] > CLOCK + IN_STEPS * wall:
            return f"{over[rank]:.3g} s of rank {rank} are booked as steps and as waiting, evaluating or keeping state"
    return ""


def _walls(run: Run, known: Records) -> dict[int, float]:
    """Return rank -> the seconds that it was there, since it was last gone on with."""
    if not known.resumed:
        return dict(enumerate(run.metrics.time_s.rank_wall))
    done = {event.rank: event.at for event in known.finished}
    return {event.rank: done[event.rank] - event.at for event in known.ready}


def _busy(known: Records) -> dict[int, float]:
    """Return rank -> the seconds that its steps took."""
    busy: dict[int, float] = defaultdict(float)
    for event in known.progress:
        busy[event.rank] += event.busy_s
    return busy

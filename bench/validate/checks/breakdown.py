"""The time of every rank is accounted for: its fractions sum to 1, and it computes no longer than its steps took.

Ranks time each step as a whole (`Progress.busy_s`) and also its parts, the slices. The check compares both, so it finds
waiting that is booked as computing. It also asks that

- every step, collective, evaluation and checkpoint has a slice, however short, as has waiting for orders;
- collectives took as long, and moved as many bytes, as the averages that ranks report;
- averaging begins only when all snapshots exist;
- no second is booked both as part of a step and as something else;
- evaluations stopped the training clock for as long as their slices are, saving state at least that long;
- all work of a rank lies between its `Ready` and its `Finished`, as the training clock does;
- emulated slow ranks, virtual steps and links are as slow as configured;
- the clock of the record agrees with another clock of the machine.
"""

from __future__ import annotations

from collections import defaultdict, deque
from operator import attrgetter

from bench.base.grouping import grouped, summed
from bench.base.number_format import plural
from bench.results.runfolder import Run, group_of
from bench.validate.emulation.emulated_links import other_than_links
from bench.validate.emulation.emulated_ranks import otherwise_slow
from bench.validate.emulation.virtual_steps import otherwise_timed
from bench.validate.evidence.consistency import PRESENCE
from bench.validate.records.complete_rounds import survivors
from bench.validate.records.reading import lost_nobody
from bench.validate.records.run_records import BETWEEN_STEPS, UNBLOCKED, Records
from bench.validate.rules.due_slices import lacking
from bench.validate.rules.idle_ranks import unwaited
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict
from ddp.backends import is_torch_native
from ddp.core.messages.events import Reduced, Snapshot
from ddp.core.policies import meets_every_step
from ddp.core.settings.faults import parse

FRACTIONS = ("compute", "data", "comm", "wait", "eval", "checkpoint", "absent", "other")
TOLERANCE = 0.001
SLACK, SHARE = 1.1, 0.02
"""Tolerance factor on the time of steps or evaluations, and fraction of a rank's time, as the whole and its parts read
the clock separately."""
IN_STEPS = 0.005
"""Fraction of a rank's time that its reports may book both as steps and as something else."""
CLOCK = 0.02
"""Seconds by which a report may be later than what it reports."""
UNLIKE = 0.11
"""Fraction of the run's time by which two clocks of a machine may differ: NTP may slew one by a twelfth."""
IN_TIME = 0.25
"""Seconds of processor time that a rank may be off without a verdict."""
THREADS = 0.001
"""Mean seconds by which a report may be off if ranks are threads: one that waits for the GIL reads the clock late."""
IN_PARTS = ("zero3", "torch_fsdp")
"""Backends whose ranks gather the sharded model during an evaluation."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if the fractions of a rank do not sum to 1, a rank of a finished run is missing, or a rank is booked
    as computing for longer than its steps took or for fewer steps, or if two records of its time disagree."""
    cell = case.cell
    if not cell.ok:
        return None
    # Earlier versions had no breakdown if a rank joined later.
    missing = [m for m in cell.ok if len(m.breakdown) != m.world_size and not (m.late and m.schema_version < PRESENCE)]
    totals = [sum(getattr(rank, name) for name in FRACTIONS) for m in cell.ok for rank in m.breakdown]
    off = max((abs(total - 1) for total in totals), default=0.0)
    line = f"the fractions of every rank sum to 1 within {off:.1g} (allowed: {TOLERANCE:g})"
    if missing:
        return verdict("FAIL", "breakdown", cell, f"{line}; ranks are missing in {plural(len(missing), 'run')}")
    if failure := case.failure("breakdown", _amiss, lost=True):
        return failure
    return verdict("PASS" if off <= TOLERANCE else "FAIL", "breakdown", cell, line)


def _amiss(run: Run, known: Records) -> str:
    """Return the first way in which two records of a rank's time disagree; empty: none."""
    if not lost_nobody(run.metrics):
        return _of_survivors(run, known)
    return _clock(run, known) or _longer(run, known) or (_unlike(run, known.measured()) if known.slices else "")


def _of_survivors(run: Run, known: Records) -> str:
    """Return how two records of the time of a rank that was never lost disagree; empty: they agree."""
    m = run.metrics
    unheard = any(parse(fault).kind == "lose" for fault in m.scripted_faults)  # a report may be lost
    alone = m.begun_without and not known.losses
    if known.resumed or not known.slices or is_torch_native(m.backend) or unheard or alone:
        return ""
    known = survivors(known)
    # A step that a loss breaks off is not reported, but has slices.
    whole = m.backend == UNBLOCKED or not meets_every_step(m.policy)
    looks = (*([_longer] if whole else []), lacking, _meetings, _booked_twice)
    return next((wrong for look in looks if (wrong := look(run, known))), "")


def _clock(run: Run, known: Records) -> str:
    """Return how the clock of the record and another clock of the machine disagree; empty: they agree."""
    if run.metrics.source or run.metrics.resumed or len(known.headers) != 1 or len(known.ends) != 1:
        return ""
    (header,), (end,) = known.headers, known.ends
    took = end.at - header.launched
    if end.elapsed is None or abs(took - end.elapsed) <= UNLIKE * end.elapsed + CLOCK:
        return ""
    return f"the run took {took:.4g} s by its own clock, but {end.elapsed:.4g} s by another clock of the machine"


def _longer(run: Run, known: Records) -> str:
    """Name the rank that computes for longer than its steps took; empty: none."""
    busy = _busy(known)
    for rank, (row, wall) in enumerate(zip(run.metrics.breakdown, run.metrics.time_s.rank_wall, strict=False)):
        if known.losses and rank not in busy:
            continue
        computing = (row.compute + row.data) * wall
        # Replicas in one process also update their models between steps.
        outside = known.seconds[rank, "optimizer"] if run.metrics.engine == "graph" else 0.0
        if computing > SLACK * busy[rank] + outside + SHARE * wall:
            return f"rank {rank} reports {computing:.3g} s of computing, but its steps took only {busy[rank]:.3g} s"
    return ""


def _unlike(run: Run, known: Records) -> str:
    """Return the first way in which the slices disagree with the ranks' reports; empty: none."""
    for emulated in (otherwise_slow, other_than_links, otherwise_timed):
        if wrong := emulated(run.metrics, known, run.config):
            return wrong
    looks = (lacking, _meetings, _averaging, _booked_twice, _rests_in_steps, _away, _processor, unwaited)
    return _outside(known) or next((wrong for look in looks if (wrong := look(run, known))), "")


def _outside(known: Records) -> str:
    """Name the rank that worked before its `Ready` or after its `Finished`, where the training clock does not run."""
    ready = {event.rank: event.at for event in known.ready}
    done = {event.rank: event.at for event in known.finished}
    for (rank, kind), (first, last) in known.spans.items():
        if first < ready.get(rank, first) - CLOCK:
            return f"rank {rank} worked ({kind}) {ready[rank] - first:.3g} s before it reported that it was ready"
        if kind != "hidden" and last > done.get(rank, last) + CLOCK:
            return f"rank {rank} worked ({kind}) {last - done[rank]:.3g} s after it reported its end"
    return ""


def _meetings(run: Run, known: Records) -> str:
    """Name the rank whose collectives took another time, or moved other bytes, than it reports of its averages."""
    if run.metrics.engine == "graph" or run.metrics.backend == UNBLOCKED or is_torch_native(run.metrics.backend):
        return ""
    averages = grouped((event.rank, event) for event in known.averaged)
    for rank, events in averages.items():
        own = [each for group in known.collectives.values() for each in group if each[0] == rank]
        took, gave = [event.seconds for event in events], [event.bytes for event in events]
        parts = [end - begin for _, begin, end, _ in own]
        # A loss may break an average after some of its collectives, and a rank may load an average that it missed.
        spare = 2 * known.losses * max(*took, *parts, 0.0)
        seconds, measured = sum(took), sum(parts)
        if not measured / SLACK - CLOCK - spare <= seconds <= SLACK * measured + CLOCK * len(events) + spare:
            return f"rank {rank} reports {seconds:.3g} s of averaging, its recorded collectives took {measured:.3g} s"
        handed, sent = sum(gave), sum(size for *_, size in own)
        if abs(handed - sent) > known.losses * max(gave):
            return f"rank {rank} reports {handed:,} bytes sent, its recorded collectives moved {sent:,}"
    return ""


def _averaging(run: Run, known: Records) -> str:
    """Name the round whose averaging took longer than the time since its last snapshot."""
    laid: dict[int, float] = {}
    events: list[Snapshot | Reduced] = [*known.snapshots, *known.reduced]
    for event in sorted(events, key=attrgetter("at")):
        if isinstance(event, Snapshot):
            laid[event.round] = event.at
        elif event.seconds > (most := event.at - laid.get(event.round, event.at - event.seconds)) + CLOCK:
            return (
                f"averaging round {event.round} took {event.seconds:.3g} s, its last snapshot was {most:.3g} s before"
            )
    return ""


def _booked_twice(run: Run, known: Records) -> str:
    """Name the rank whose steps and other work together exceed its time in the run, whose evaluations took another
    time than their slices, or whose saving a shorter one."""
    evaluations, busy = summed((event.rank, event.seconds) for event in known.evaluated), _busy(known)
    again = {event.rank for event in (*known.joined, *known.lost)}  # their reports count from when they joined
    saving = {e.rank: e.saving_s for e in known.finished if e.saving_s is not None and e.rank not in again}
    away = summed((answer.rank, answer.away_s) for answer in known.averaged)
    for rank, wall in _walls(run, known).items():
        took = known.seconds
        if run.metrics.engine != "graph" and away[rank] > 0 and busy[rank] + away[rank] > (1 + SHARE) * wall + CLOCK:
            return (
                f"rank {rank} ran for {wall:.3g} s, but its steps took {busy[rank]:.3g} s, averages {away[rank]:.3g} s"
            )
        rest = sum(took[rank, kind] for kind in (*BETWEEN_STEPS, *_together(run, known)))
        if busy[rank] + rest > (1 + SHARE) * wall + CLOCK:
            return f"rank {rank} ran for {wall:.3g} s, but its steps took {busy[rank]:.3g} s and its other work {rest:.3g} s"
        inside = took[rank, "exchange"] + took[rank, "copy"] if run.metrics.backend in IN_PARTS else 0.0
        measured = took[rank, "evaluate"]
        broken = known.losses and run.metrics.backend in IN_PARTS
        if not broken and not measured / SLACK - CLOCK <= evaluations[rank] <= SLACK * (measured + inside) + CLOCK:
            return (
                f"rank {rank} reports {evaluations[rank]:.3g} s of evaluation, the recorded ones took {measured:.3g} s"
            )
        # The report may be longer: slices leave out what another slice has.
        if (measured := took[rank, "checkpoint"]) > SLACK * (most := saving.get(rank, measured)) + CLOCK:
            return f"rank {rank} reports {most:.3g} s of saving its state, the recorded ones took {measured:.3g} s"
    return ""


def _together(run: Run, known: Records) -> tuple[str, ...]:
    """Return the kinds of slices that are communication outside of steps; none if layers with buffers may communicate
    in them."""
    m = run.metrics
    apart = not meets_every_step(m.policy) or all(group.kind == "parameters" for group in known.groups)
    return ("exchange", "copy") if m.engine == "elche" and m.backend in ("nccl", UNBLOCKED) and apart else ()


def _rests_in_steps(run: Run, known: Records) -> str:
    """Name the rank whose reports hold more seconds of steps than fit between two reports, less its rests.

    A report may come in the middle of a step. So time that the report before left unused counts for the next one.
    """
    if run.metrics.engine == "virtual" and group_of(run.config, "cluster").get("links"):
        return ""  # reports are dated by their arrival over the links
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
        reports = sum(event.rank == rank for event in known.progress) if run.metrics.engine == "graph" else 0
        if over[rank] > CLOCK + IN_STEPS * wall + THREADS * reports:
            return f"rank {rank} booked {over[rank]:.3g} s twice: as steps and as waiting, evaluating or saving state"
    return ""


def _away(run: Run, known: Records) -> str:
    """Name the rank that reports less time lost to averages than its copies took."""
    m, away = run.metrics, defaultdict[int, float](float)
    for answer in known.averaged:
        away[answer.rank] += answer.away_s
    if m.engine != "elche" or m.backend not in ("nccl", UNBLOCKED) or known.shared or meets_every_step(m.policy):
        return ""
    for event in known.ready:
        copied = known.seconds[event.rank, "copy"]
        if away[event.rank] < copied / SLACK - CLOCK:
            return (
                f"rank {event.rank} reports {away[event.rank]:.3g} s lost to averages, its copies took {copied:.3g} s"
            )
    return ""


def _walls(run: Run, known: Records) -> dict[int, float]:
    """Return rank -> seconds that it took part in the run, since the last resumption."""
    if not known.resumed:
        return dict(enumerate(run.metrics.time_s.rank_wall))
    done = {event.rank: event.at for event in known.finished}
    return {event.rank: done[event.rank] - event.at for event in known.ready}


def _busy(known: Records) -> dict[int, float]:
    """Return rank -> seconds that its steps took."""
    return summed((event.rank, event.busy_s) for event in known.progress)


def _processor(run: Run, known: Records) -> str:
    """Name the rank whose process used less processor time than its thread computed."""
    for rank, (first, last) in known.processor.items():
        used = (last.cpu_s or 0.0) - (first.cpu_s or 0.0)
        works = [event.work for event in known.progress if event.rank == rank and first.at < event.at <= last.at]
        computed = sum(work.compute - work.no_core for work in works if work is not None)
        computed -= sum(end - begin for begin, end in known.slowed[rank] if first.at < end <= last.at)
        if run.metrics.devices[rank : rank + 1] == ["cpu"] and computed > SLACK * used + IN_TIME:
            return f"rank {rank} reports {computed:.3g} s of computing, but its process used {used:.3g} s of processor time"
    return ""

"""Every average is the mean of what was brought into it, with its weights; and what a rank trained meanwhile is kept.

Ranks record sums over their values before and after (`ddp.core.events.Sums`). An average is linear, so its sums are the
weighted means of theirs, but for rounding. That shows replicas that were not averaged, other divisors and weights, snapshots
that are old or torn, buffers left out, and an update that throws away what was trained while it was under way. Averages that
are not means (elastic, or with an outer optimizer) have no formula here.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import Records, apart, mean, recorded
from bench.validate.verdict import Verdict, verdict
from ddp.core.events import Averaged, Sums

SLACK = {"float64": 2.0, "float32": 4.0}
"""Wire -> roundings that an average is made of, to one side."""


def check(case: Case) -> Verdict | None:
    """Return FAIL at the first average that is none; None where none is recorded."""
    count = 0
    for run, known in recorded(case.cell):
        for wrong in _averages(run, known):
            if wrong:
                return verdict("FAIL", "average", case.cell, f"seed {run.metrics.seed}, {wrong}")
            count += 1
    line = f"{count} averages are the weighted means of what was brought into them"
    return verdict("PASS", "average", case.cell, line) if count else None


def _averages(run: Run, known: Records) -> Iterator[str]:
    """Say of each average that can be looked at what is wrong with it."""
    m, settings = run.metrics, run.config.get("averaging")
    if m.policy is None or not isinstance(settings, dict):
        return
    yield from _inside_steps(known, m.world_size)
    slack = SLACK.get(settings.get("wire", "float64"))
    if slack is None or settings.get("elastic") not in (None, 1, 1.0) or settings.get("outer", "none") != "none":
        return
    contributions = known.contributions()
    for event in known.averaged:
        parts = contributions.get(event.round, {})
        if event.average and all(part.before for part in parts.values()):
            weights = [(_weight(part.samples, settings), part.before) for part in parts.values()]
            yield _round(event, weights, parts[event.rank].before if event.rank in parts else (), slack)


def _weight(samples: int, settings: dict[str, object]) -> float:
    """Return the weight of `ddp.core.averaging`, computed anew: a check does not ask what it checks."""
    gamma = settings.get("gamma", 1.0)
    assert isinstance(gamma, int | float)
    return float(samples**gamma) if samples else 0.0


def _round(event: Averaged, parts: list[tuple[float, Sums]], own: Sums, slack: float) -> str:
    """Say what is wrong with what a rank did with an average; empty: nothing."""
    where = f"round {event.round}, rank {event.rank}"
    if not any(weight for weight, _ in parts):
        return ""
    wanted, sizes = mean(parts)
    if far := apart(event.average, wanted, sizes, slack):
        return f"{where}: the average is not the weighted mean of the replicas ({_shown(event.average, wanted, far)})"
    after = [
        None if None in (a, b, c) else b + a - c  # type: ignore[operator]
        for a, b, c in zip(event.average[::2], event.before[::2], own[::2], strict=False)
    ]
    if len(after) == len(sizes) and (far := apart(event.after, after, sizes, 2 * slack)):
        return f"{where}: the replica did not move by average less snapshot ({_shown(event.after, after, far)})"
    return ""


def _inside_steps(known: Records, world_size: int) -> Iterator[str]:
    for number, step in enumerate(known.probes(world_size)):
        wanted, sizes = mean([(float(probe.samples), probe.before) for probe in step])
        for rank, probe in enumerate(step):
            far = apart(probe.after, wanted, sizes, SLACK["float32"])
            sums = _shown(probe.after, wanted, far)
            yield f"probe {number}, rank {rank}: what a step exchanged is not its weighted mean ({sums})" if far else ""


def _shown(sums: Sums, wanted: list[float | None], far: float) -> str:
    pairs = ", ".join(f"{a:.9g} for {b:.9g}" for a, b in zip(sums[::2], wanted, strict=True) if None not in (a, b))
    return f"sums over parameters and buffers: {pairs}; {far:.3g} times what rounding can do"

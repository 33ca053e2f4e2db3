"""The check of learning rates, with schedules that jump or bend, and of runs that went on with other ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.checks import rate
from bench.validate.records.run_records import Records
from ddp.core.messages.events import Progress, Ready, Resumed, RoundClosed
from tests.bench.streams import closed, make_metrics, make_spec

Schedule = Callable[[float], float]
SIZE = 32


def steps(*edges: float) -> Schedule:
    """A tenth at each edge."""
    return lambda seen: 0.1 ** sum(seen >= edge for edge in edges)


def cosine(seen: float) -> float:
    return (1 + math.cos(math.pi * seen)) / 2


def warmed(share: float) -> Schedule:
    """Up to the cosine in this share of the run."""
    return lambda seen: min(seen / share, 1.0) * cosine(seen)


def recorded(
    schedule: Schedule, reports: int, late: float = 0.0, ranks: int = 1, window: int = 0, each: int = 1
) -> tuple[Metrics, Records]:
    """A run whose reports, of `each` steps, follow the schedule; `late`: by this fraction of the run."""
    about = {"epochs_planned": 1, "batch_size": SIZE, "lr": 0.1, "lr_scale": 1.0, "world_size": ranks}
    progress = [
        Progress(
            float(k), k % ranks, 0, each, each * SIZE, 0.1, 1.0, 0.1 * schedule(max((k + 1) / reports - late, 0.0))
        )
        for k in range(reports)
    ]
    ready = [Ready(0.0, 0, reports * each * SIZE, 500, "same", "cpu", "")]
    rounds: list[RoundClosed] = []
    if window:
        none = (0.0,) * ranks
        rounds = [closed(1.0, 0, (window // ranks,) * ranks, none, 0.0, none)]
    return make_metrics(make_spec("solo")).model_copy(update=about), Records(ready, progress, closed=rounds)


def compared(run: tuple[Metrics, Records], rates: rate.Rates) -> tuple[float, str]:
    """The worst distance, and the shift of a run."""
    m, known = run
    found = rate._compared(Run(Path("there"), m), known, rates)
    return found.worst, found.shifted


def evenly(m: Metrics, known: Records) -> rate.Rates:
    """The points that baselines kept before: at equal distances, whatever lies between."""
    seen, factor = rate.course(m, known)
    chosen = np.unique(np.linspace(0, len(seen) - 1, rate.POINTS).round().astype(int))
    return [(float(seen[k]), float(factor[k])) for k in chosen]


JUMPING = {"50 and 75 %": steps(0.5, 0.75), "30, 60, 80 %": steps(0.3, 0.6, 0.8), "37.3 %": steps(0.373)}
BENT = {f"{share:.1%} up": warmed(share) for share in (0.003, 0.013, 0.05)}


@pytest.mark.parametrize("reports", [2000, 3000, 5000, 20000])
@pytest.mark.parametrize("name", [*JUMPING, *BENT])
def test_a_schedule_that_jumps_is_within_its_own_range(name: str, reports: int) -> None:
    """Of a jump between two points a ramp was made: solo was 0.16 to 0.32 away from itself."""
    schedule = (JUMPING | BENT)[name]
    base = recorded(schedule, reports)
    kept = rate.points(*base)
    assert rate.POINTS <= len(kept) <= rate.POINTS + 8
    other = recorded(schedule, reports // 10, each=10)
    windowed = recorded(schedule, reports, ranks=2, window=20)
    for run in (base, other, windowed):
        for rates in (kept, evenly(*base)):
            worst, shifted = compared(run, rates)
            assert worst <= rate.NEAR
            assert not shifted


def test_a_baseline_keeps_twice_as_many_points_at_most() -> None:
    random = np.random.default_rng(0)
    base = recorded(lambda _: float(random.random()), 5000)
    assert len(rate.points(*base)) == 2 * rate.POINTS
    assert len(rate.points(*recorded(cosine, 5000))) == rate.POINTS, "a smooth schedule needs no more"


@pytest.mark.parametrize("name", JUMPING)
@pytest.mark.parametrize("late", [0.01, 0.02])
def test_a_jump_that_comes_late_is_found(name: str, late: float) -> None:
    base = recorded(JUMPING[name], 5000)
    run = recorded(JUMPING[name], 5000, late=late)
    assert compared(run, rate.points(*base))[0] > 0.08
    assert compared(run, evenly(*base))[0] > 0.08


@pytest.mark.parametrize("schedule", [cosine, warmed(0.013), warmed(0.05)])
def test_rates_that_are_late_by_a_window_are_found(schedule: Schedule) -> None:
    base = recorded(schedule, 5000)
    for rates in (rate.points(*base), evenly(*base)):
        assert "samples behind the baseline's" in compared(recorded(schedule, 5000, 0.02, 2, window=100), rates)[1]
        assert compared(recorded(schedule, 5000, 0.02), rates)[0] > rate.NEAR
        assert not compared(recorded(schedule, 5000, 0.001, 2, window=100), rates)[1]


def test_a_steep_ramp_has_no_wider_range() -> None:
    """Only the gap in which it ends has."""
    at = np.linspace(0.0, 1.0, 200)
    ramp, jump, smooth = (np.array([schedule(each) for each in at]) for schedule in (warmed(0.1), steps(0.5), cosine))
    assert (rate._rough(at, ramp), rate._jumps(at, ramp, 0.0)) == ([19], [])
    assert rate._rough(at, jump) == rate._jumps(at, jump, 0.0) == [99]
    assert rate._rough(at, smooth) == rate._jumps(at, smooth, 0.0) == []
    assert rate._rough(at[:1], at[:1]) == rate._rough(at[:2], at[:2]) == rate._jumps(at[:2], at[:2], 0.0) == []


def resized(ratio: float) -> Iterator[tuple[int, tuple[Metrics, Records]]]:
    """(Ranks of the first half, run) of a run of the cosine that went on with two ranks."""
    m, known = recorded(cosine, 200, ranks=2)
    for before in (2, 3, 4):
        scales = [1 + ratio * (before - 1)] * 100 + [1 + ratio] * 100
        progress = [replace(e, lr=e.lr * scale) for e, scale in zip(known.progress, scales, strict=True)]
        resumed = [Resumed(99.5, 0, 0, 100 * SIZE, "there", ranks=0 if before == 2 else before)]
        about = m.model_copy(update={"lr_scale": 1 + ratio})
        yield before, (about, replace(known, progress=progress, resumed=resumed))


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_a_run_that_went_on_with_other_ranks_had_another_rate_before(ratio: float) -> None:
    """All its rates were divided by the last one's scale."""
    rates = rate.points(*recorded(cosine, 200))
    for before, (m, known) in resized(ratio):
        worst, shifted = compared((m, known), rates)
        assert (worst < 1e-9, shifted) == (True, ""), before
        doubled = [replace(e, lr=2 * e.lr) if e.at < 50 else e for e in known.progress]
        worst, where = rate._farthest(Run(Path("there"), m), replace(known, progress=doubled), rates)
        assert worst > 0.9
        assert f"seed 0: {2 * known.progress[0].lr:.4g} after" in where
        assert f" to {0.5 * 2 * known.progress[0].lr:.4g} in the baseline" in where

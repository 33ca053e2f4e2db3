"""Step times that depend on how busy the cores are: runs with other speeds show it, and predictions follow."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.predict.calibration import Calibration
from bench.predict.cells import UNKNOWN_USE, predict
from bench.predict.core_use import CoreUseLaw
from bench.predict.evidence import (
    CalibratedCell,
    CalibratedRun,
    as_used,
    core_use_laws,
    own_cell,
    rate_of,
    relative_use,
)
from bench.predict.intervals import LEVEL
from bench.predict.play import PredictedCell, play
from tests.predict.test_predict import CONFIG, calibration, constant
from tests.slow import slow

SPEEDS = (0.2, 0.1)
CORES = 2
STEP_S = 0.002


@given(st.floats(0.3, 3), st.floats(0.5, 2), st.floats(0.5, 2), st.floats(0.2, 16))
def test_a_law_by_hand(second: float, third: float, time: float, use: float) -> None:
    """Through (1, 1), (2, `second`) and (4, `third`): linear in logarithms, and on as the nearest two."""
    law = CoreUseLaw.of([(4.0, third), (2.0, second)])
    doublings = math.log2(use)
    begin, ratio = (1.0, second) if doublings <= 1 else (second, third / second)
    by_hand = begin * ratio ** (doublings - (0 if doublings <= 1 else 1))
    assert law.factor(use) == pytest.approx(by_hand)
    bounded = by_hand if 1 <= use <= 4 else third if use > 4 else 1.0
    assert law.factor(use, goes_on=False) == pytest.approx(bounded)
    assert CoreUseLaw.of([(1.4, time)]).factor(use) == 1.0, "about as busy as its own: says nothing"


def at(speed: float, mode: str, step_s: float, seed: int = 0) -> Calibration:
    """A run of two ranks, `speed` times as fast as `SPEEDS`, whose steps take `step_s`."""
    speeds = tuple(speed * each for each in SPEEDS)
    config = CONFIG | {"policy": {"name": mode.split("_")[1]}, "cluster": {"speeds": list(speeds)}}
    own = constant(calibration((0.01, 0.01), mode, speeds=speeds, seed=seed), step_s, step_s)
    return replace(own, spec=replace(own.spec, config=config))


def slowed(own: Calibration, cell: PredictedCell, bend: float, base: float) -> Calibration:
    """A machine on which steps take the power `bend` of the cores in use, relative to `base`."""
    factor = (play(cell, own, 0).in_use / base) ** bend
    return replace(own, steps=tuple(series * factor for series in own.steps))


def runs_of(mode: str, speed: float, factors: list[float], bend: float) -> CalibratedCell:
    """Runs that were so much slower than others, on a machine with this law."""
    runs, base = [], in_use(at(1.0, mode, STEP_S))
    for seed, factor in enumerate(factors):
        own = at(speed, mode, STEP_S * factor, seed)
        itself = replace(own_cell(own), cores=CORES)
        own = slowed(own, itself, bend, base)
        runs.append(CalibratedRun(own, rate_of(itself, own, 0)))
    return CalibratedCell(tuple(runs))


def in_use(own: Calibration) -> float:
    return play(replace(own_cell(own), cores=CORES), own, 0).in_use


@pytest.mark.parametrize("mode", ["nccl_sync", "nccl_cadence", "cpu_async"])
def test_cores_in_use_by_hand(mode: str) -> None:
    """Two ranks that rarely wait are awake for the sum of their speeds; in step both go at the slower one's pace."""
    expected = 2 * min(SPEEDS) if mode == "nccl_sync" else sum(SPEEDS)
    for factor in (1.0, 2.0):
        assert 0.85 * factor * expected < in_use(at(factor, mode, STEP_S)) < 1.01 * factor * expected


@pytest.mark.parametrize("bend", [-0.12, 0.1])
@pytest.mark.parametrize("mode", ["nccl_sync", *slow("nccl_cadence"), "cpu_async"])
def test_predictions_follow_the_law_that_runs_with_other_speeds_show(mode: str, bend: float) -> None:
    source, busier = (runs_of(mode, speed, [1.0, 1.0], bend) for speed in (1.0, 2.0))
    cell = replace(own_cell(source.calibration), ranks=4, cores=CORES)
    truth = rate_of(cell, slowed(at(1.0, mode, STEP_S), cell, bend, in_use(at(1.0, mode, STEP_S))), 0)
    blind, seeing = (predict(cell, source, "", others)[0] for others in ([], [busier]))
    assert abs(blind.samples_per_s / truth - 1) > 0.05
    assert seeing.samples_per_s == pytest.approx(truth, rel=0.01)
    assert UNKNOWN_USE in blind.beyond
    assert UNKNOWN_USE not in seeing.beyond


def test_where_each_rank_has_its_own_core_nothing_depends_on_it() -> None:
    source, busier = (runs_of("cpu_async", speed, [1.0, 1.0], -0.1) for speed in (1.0, 2.0))
    cell = replace(own_cell(source.calibration), ranks=4)
    laws = core_use_laws(source, [busier], None)
    assert laws == (CoreUseLaw(), CoreUseLaw())
    assert relative_use(cell, source) == 1.0
    (own, *_), (used, *_) = [run.calibration for run in source.runs], as_used(source, laws, 2.0)
    assert all(map(np.array_equal, own.steps, used.steps))


def test_other_runs_than_those_with_other_speeds_say_nothing() -> None:
    source, busier = (runs_of("cpu_async", speed, [1.0], -0.1) for speed in (1.0, 2.0))
    (run,) = busier.runs
    spec = run.calibration.spec
    others = [
        replace(spec, config=spec.config | {"model": "lenet"}),
        replace(spec, seed=7),
        replace(spec, speeds=source.calibration.spec.speeds),
    ]
    for other in others:
        beside = CalibratedCell((CalibratedRun(replace(run.calibration, spec=other), run.rate),))
        assert core_use_laws(source, [beside], CORES) == (CoreUseLaw(),)
    assert core_use_laws(source, [busier], CORES) != (CoreUseLaw(),)


@pytest.mark.slow
def test_errors_and_coverage_on_machines_with_laws_of_their_own() -> None:
    """Made-up machines, on which each run is so much slower or faster than others: the thresholds of
    `benchmarks.prediction` are met, and without runs of other speeds they are not."""
    dice, errors, blind, covered = np.random.default_rng(11), list[float](), list[float](), list[bool]()
    for place in range(12):
        mode = ("nccl_sync", "nccl_cadence", "cpu_async")[place % 3]
        bend = float(dice.uniform(-0.18, 0.06))
        noise = np.exp(dice.normal(0, 0.025, (4, 3)))
        source, *busier = (runs_of(mode, speed, noise[row].tolist(), bend) for row, speed in enumerate((1.0, 2.0, 4.0)))
        cell = replace(own_cell(source.calibration), ranks=(3, 4, 8)[place // 3 % 3], cores=CORES)
        base = in_use(at(1.0, mode, STEP_S))
        truth = fmean(rate_of(cell, slowed(at(1.0, mode, STEP_S * factor), cell, bend, base), 0) for factor in noise[3])
        prediction, _ = predict(cell, source, "", busier)
        assert prediction.low is not None
        assert prediction.high is not None
        errors.append(abs(prediction.samples_per_s / truth - 1))
        blind.append(abs(predict(cell, source, "")[0].samples_per_s / truth - 1))
        covered.append(prediction.low <= truth <= prediction.high)
    print(
        f"median {median(errors):.3f}, blind {median(blind):.3f}, worst {max(errors):.3f}, covered {fmean(covered):.2f}"
    )
    assert median(errors) <= 0.05
    assert max(errors) <= 0.15
    assert fmean(covered) >= LEVEL
    assert median(blind) > 1.5 * median(errors)

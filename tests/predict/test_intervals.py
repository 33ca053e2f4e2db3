"""Intervals of predictions: they hold as many further runs as they say, and say where they hold none."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.command.verbs.predict_command import span
from bench.predict.calibration import Calibration
from bench.predict.cells import distance, predict
from bench.predict.evidence import CalibratedCell, CalibratedRun, grouped, metrics_of, off_by, own_cell, rate_of
from bench.predict.intervals import LEVEL, half_width, interval
from bench.predict.play import SLICE_S, Assumption, as_tree, flat, linear, play
from bench.predict.predicted_cell import PredictedCell
from ddp.core.network.links import parse
from ddp.sim.shared_cores import SharedCores
from ddp.sim.timeline import EventQueue
from tests.predict.test_predict import calibration, constant, repeated
from tests.slow import slow

LAWS = (flat, as_tree, linear)


@given(st.lists(st.floats(10, 1e4), min_size=2, max_size=6))
def test_half_a_width_by_hand(rates: list[float]) -> None:
    t = {2: 6.3138, 3: 2.9200, 4: 2.3534, 5: 2.1318, 6: 2.0150}[len(rates)]
    mean = fmean(rates)
    deviation = math.sqrt(sum((rate - mean) ** 2 for rate in rates) / (len(rates) - 1))
    assert half_width(rates) == pytest.approx(t * deviation * math.sqrt(1 + 1 / len(rates)), rel=1e-3, abs=1e-6)


@pytest.mark.parametrize("runs", [*slow(2), 3, *slow(5)])
def test_intervals_hold_as_many_further_runs_as_they_say(runs: int) -> None:
    """Runs of a machine differ by 3 %; nothing is extrapolated: 90 % of further runs, neither less nor much more."""
    dice, covered, count = np.random.default_rng(runs), 0, 3000
    for _ in range(count):
        *measured, further = (1000 * np.exp(dice.normal(0, 0.03, runs + 1))).tolist()
        _, low, high = interval(measured, measured, (), 0.0, 0.0)
        covered += low <= further <= high
    assert covered / count == pytest.approx(LEVEL, abs=0.02)


@given(st.floats(0, 0.5), st.floats(0, 5), st.lists(st.floats(0.5, 2), max_size=3), st.floats(0, 0.2))
def test_intervals_widen_with_error_distance_and_what_may_be(
    off: float, far: float, corners: list[float], spread: float
) -> None:
    rates = [1000.0, 1000.0 * (1 + spread)]
    rate, low, high = interval(rates, rates, corners, off, far)
    _, *near = interval(rates, rates, (), off, 0.0)
    assert low <= near[0] <= rate <= near[1] <= high
    assert all(low <= rate * corner * 1.000001 and rate * corner <= high * 1.000001 for corner in corners)
    assert high / near[1] >= (1 + off) ** far * 0.999999


def test_one_run_tells_no_interval() -> None:
    own = calibration()
    prediction, _ = predict(own_cell(own), repeated(own), "")
    assert (prediction.low, prediction.high, prediction.trusted) == (None, None, False)
    assert span(prediction) == "unknown: one run"


def test_a_prediction_is_scaled_by_what_its_runs_did() -> None:
    own = constant(calibration(), 0.01, 0.01)
    cell = replace(own_cell(own), ranks=3)
    plain, _ = predict(cell, repeated(own, 0.0, 0.0), "")
    scaled, _ = predict(cell, repeated(own, 0.25, 0.25), "")
    assert scaled.samples_per_s == pytest.approx(plain.samples_per_s / 1.25)
    assert plain.low is not None
    assert scaled.low is not None
    assert scaled.low / scaled.samples_per_s < plain.low / plain.samples_per_s * 0.9
    assert plain.trusted
    assert span(plain)[-1] != ")"


def test_far_cells_other_policies_and_links_are_not_trusted() -> None:
    own = constant(calibration(), 0.01, 0.01)
    source, cell = repeated(own, 0.0, 0.01), own_cell(own)
    far = [replace(cell, ranks=8), replace(cell, policy="cadence"), replace(cell, links=parse("1ms/100mbit"))]
    for each in far:
        prediction, _ = predict(each, source, "")
        assert not prediction.trusted
        assert span(prediction).endswith("(?)")
        assert distance(each, source) >= 1


def test_runs_with_other_numbers_of_ranks_show_how_far_predictions_are_off() -> None:
    two, four = (constant(calibration((0.01,) * ranks), *(0.01,) * ranks) for ranks in (2, 4))
    source = repeated(two, 0.0, 0.0)
    assert off_by(source, [], None)[1] is False
    cell = replace(own_cell(four), cores=None)
    rate = rate_of(cell, two, 0)
    off, shown = off_by(source, [CalibratedCell((CalibratedRun(four, rate / 1.21),))], None)
    assert off == pytest.approx(0.21, rel=0.02)
    assert shown


def test_runs_of_other_speeds_are_predicted_at_their_own() -> None:
    """They were predicted at those of the source, so that a perfect prediction was called a third too fast."""
    speeds = (1.0, 1.0, 1.0, 0.25)
    two, four = constant(calibration(), 0.01, 0.01), constant(calibration((0.01,) * 4, speeds=speeds), *(0.01,) * 4)
    for source, other in ((two, four), (four, two)):
        off, shown = off_by(repeated(source), [repeated(other)], None)
        assert (off, shown) == (pytest.approx(0.0, abs=0.01), True)


def test_runs_of_one_cell_are_one_group() -> None:
    first, other = calibration(), calibration(mode="nccl_cadence")
    runs = [CalibratedRun(each, 1.0) for each in (first, other, first)]
    assert [len(cell.runs) for cell in grouped(runs)] == [2, 1]


def fluid(count: int, pieces: list[tuple[float, float]]) -> list[float]:
    """When each (time, seconds) ends, step by step: to the next arrival or end, all at one pace."""
    now, left, ends = 0.0, dict[int, float](), [0.0] * len(pieces)
    arrivals = [(at, place) for place, (at, _) in enumerate(pieces)]
    while arrivals or left:
        pace = min(1.0, count / len(left)) if left else 1.0
        until = min([now + rest / pace for rest in left.values()] + [at for at, _ in arrivals[:1]])
        left = {place: rest - (until - now) * pace for place, rest in left.items()}
        now = until
        for place in [place for place, rest in left.items() if rest <= 1e-9]:
            ends[place] = now
            del left[place]
        while arrivals and arrivals[0][0] <= now:
            left[arrivals[0][1]] = pieces[arrivals[0][1]][1]
            arrivals.pop(0)
    return ends


@given(st.integers(1, 4), st.lists(st.tuples(st.floats(0, 3), st.floats(0.01, 2)), max_size=20))
def test_shared_cores_are_shared_in_equal_parts(count: int, pieces: list[tuple[float, float]]) -> None:
    timeline = EventQueue()
    cores, ends, now, came = SharedCores(count, timeline), dict[int, float](), 0.0, list[tuple[float, float]]()
    for place, (later, seconds) in enumerate(pieces):
        now += later
        came.append((now, seconds))
        timeline.at(now, cores.run, seconds, lambda place=place: ends.update({place: timeline.now}))
    timeline.run(math.inf)
    assert [ends[place] for place in range(len(pieces))] == pytest.approx(fluid(count, came), abs=1e-6)


@pytest.mark.parametrize(("ranks", "cores", "longer"), [(4, 2, 2), (6, 2, 3), (3, 3, 1), (5, 2, 2.5)])
def test_ranks_that_share_cores_take_longer(ranks: int, cores: int, longer: float) -> None:
    """By hand: equal steps of all ranks at once."""
    own = constant(calibration((0.01,) * 2), 0.01, 0.01)
    cell = replace(own_cell(own), ranks=ranks)
    alone, shared = (rate_of(replace(cell, cores=each), own, 0) for each in (None, cores))
    assert alone / shared == pytest.approx(longer, rel=0.01)


def test_a_step_of_a_given_time_includes_waiting_for_a_core() -> None:
    """Eight ranks whose steps of 300 ms compute 30 ms were predicted 8 % too slow on two cores, as they sleep less; and 13 %
    too fast with short steps, as what they compute besides occupies cores, too."""
    own = constant(calibration((0.01,) * 2), 0.03, 0.03)
    spec = replace(own.spec, config=own.spec.config | {"cluster": {"step_s": 0.3}}, speeds=(1.0, 1.0))
    own = replace(own, spec=spec, parts=(("forward", 1.0),))
    cell = replace(own_cell(own), ranks=8)
    alone, shared = (rate_of(replace(cell, cores=each), own, 0) for each in (None, 2))
    waits = 4 * 0.03 - 0.03
    assert alone / shared == pytest.approx((0.3 + waits * SLICE_S / 0.03) / 0.3, rel=0.01)
    longer = replace(own, beside_s=0.02, gaps_s=(0.01, 0.01))
    alone, shared = (rate_of(replace(cell, cores=each), longer, 0) for each in (None, 2))
    waits = 4 * 0.04 - 0.04
    timed = 0.03 / 0.04 * (1 - SLICE_S / 0.04)
    assert alone / shared == pytest.approx((0.31 + waits * (1 - timed)) / 0.31, rel=0.01)


@pytest.mark.parametrize("mode", ["nccl_sync", "nccl_cadence", "cpu_async"])
def test_the_rate_is_that_of_the_whole_analysis(mode: str) -> None:
    own = calibration(mode=mode)
    cell = replace(own_cell(own), ranks=3)
    whole = metrics_of(cell, own, play(cell, own, 3)).throughput
    assert rate_of(cell, own, 3) == whole.samples_per_s == pytest.approx(sum(whole.per_rank))


def machine(dice: np.random.Generator, own: Calibration) -> Calibration:
    """A run as a machine makes it: all of its steps and all of its collectives are so much slower or faster."""
    steps, wires = np.exp(dice.normal(0, 0.03)), np.exp(dice.normal(0, 0.1))
    return replace(own, steps=tuple(series * steps for series in own.steps), wires=own.wires * wires)


@pytest.mark.slow
@pytest.mark.parametrize("cores", [None, 2])
def test_coverage_of_machines_whose_laws_nobody_knows(cores: int | None) -> None:
    """Made-up machines whose costs grow by some law, played as the truth: intervals hold at least nine of ten."""
    dice, own, covered, count = np.random.default_rng(4), calibration((0.01, 0.012)), 0, 18
    own = replace(own, wires=own.wires / 4, steps=tuple(series[:60] for series in own.steps))
    for place in range(count):
        cell = PredictedCell(3 + place % 2, None, "sync", cores=cores)
        runs = [machine(dice, own) for _ in range(3)]
        itself = replace(own_cell(own), cores=cores)
        source = CalibratedCell(tuple(CalibratedRun(run, rate_of(itself, run, 9)) for run in runs))
        law = Assumption(LAWS[place % 3], LAWS[place // 3 % 3], queues=bool(place % 5))
        truth = rate_of(cell, machine(dice, own), 7, law)
        prediction, _ = predict(cell, source, "")
        assert prediction.low is not None
        assert prediction.high is not None
        covered += prediction.low <= truth <= prediction.high
    assert covered >= LEVEL * count

"""The tests behind the verdicts: against scipy's own, against simulation, and where they have nothing to say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.validate.statistics import (
    LOOKS,
    SPENT,
    Call,
    Moments,
    compare,
    decide,
    family_risk,
    holm,
    level,
    look,
    next_look,
    power,
)
from benchmarks.calibration import Scenario, play

BASE = np.array([0.1, -0.4, 0.3, 0.9, -0.8, 0.2])


@settings(deadline=None)  # machines are shared
@given(st.lists(st.floats(-3, 3), min_size=3, max_size=8), st.floats(0.1, 2))
def test_p_values_are_those_of_scipys_t_tests(values: list[float], margin: float) -> None:
    runs = np.round(np.array(values), 3) + np.arange(len(values)) * 1e-3
    found = compare(Moments.of(BASE), Moments.of(runs), margin)
    equal = not bool(found.welch)
    shifted = [runs - margin, runs + margin]
    worse = stats.ttest_ind(shifted[0], BASE, equal_var=equal, alternative="less").pvalue
    better = stats.ttest_ind(shifted[1], BASE, equal_var=equal, alternative="less").pvalue
    assert found.p_noninferior == pytest.approx(worse, abs=1e-12)
    assert found.p_inferior == pytest.approx(1 - worse, abs=1e-12)
    assert found.p_better == pytest.approx(better, abs=1e-12)
    assert bool(found.welch) == (stats.f.sf(runs.var(ddof=1) / BASE.var(ddof=1), len(runs) - 1, 5) < 0.01)


@pytest.mark.parametrize("factor", [0.01, 0.1, 1.0, 3.0, 30.0])
def test_either_side_may_be_the_one_that_scatters_more(factor: float) -> None:
    """Verdicts ask one side; samples that stand for themselves are told apart by the test with two."""
    runs = BASE[:5] * factor
    f = runs.var(ddof=1) / BASE.var(ddof=1)
    above = stats.f.sf(f, 4, 5)
    both = compare(Moments.of(BASE), Moments.of(runs), 1.0, either=True)
    assert bool(both.welch) == (2 * min(above, 1 - above) < 0.01)
    assert both.p_variance == pytest.approx(above), "which stays one-sided"
    assert bool(compare(Moments.of(BASE), Moments.of(runs), 1.0).welch) == (above < 0.01)
    if both.welch:
        wanted = stats.ttest_ind(runs, BASE + 1.0, equal_var=False, alternative="less").pvalue
        assert both.p_noninferior == pytest.approx(wanted, abs=1e-12)


def test_bounds_and_p_values_say_the_same() -> None:
    found = compare(Moments.of(BASE), Moments.of([0.5, 0.7, 0.2]), 1.0)
    _, upper = found.bounds(found.p_noninferior)
    lower, _ = found.bounds(found.p_inferior)
    assert upper == pytest.approx(1.0)
    assert lower == pytest.approx(1.0)


def test_one_run_can_prove_inferiority_and_cannot_pass() -> None:
    one = Moments.of([20.0])
    assert decide(compare(Moments.of(BASE), one, 1.0), 1, 6)[0] == Call.INFERIOR
    equal = decide(compare(Moments.of(BASE), Moments.of([BASE.mean()]), 9.0), 1, 6)
    assert equal[0] == Call.INCONCLUSIVE


def test_seeds_that_agree_divide_by_no_zero() -> None:
    same = Moments.of([0.5] * 20)
    found = compare(same, Moments.of([0.5] * 3), 0.01, resolution=0.001)
    assert decide(found, 3, 20)[0] == Call.PASS
    with pytest.raises(ValueError, match="some spread or a resolution"):
        compare(same, same, 0.01)
    with pytest.raises(ValueError, match="two values or more"):
        compare(Moments.of([0.5]), same, 0.01, 1.0)


def test_levels_belong_to_looks() -> None:
    assert [float(level(n)) for n in (1, 2, 3, 4, 5, 7, 8, 50)] == [0, 0, *[0.02] * 2, *[0.025] * 2, *[0.03] * 2]
    assert [look(n) for n in (1, 2, 3, 4, 5, 7, 8, 50)] == [1, 2, 3, 3, 5, 5, 8, 8]
    assert [next_look(n) for n in (1, 3, 4, 5, 8)] == [3, 5, 5, 8, None]
    assert len(LOOKS) == len(SPENT)


def test_holm_is_the_textbook() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([[0.9, 0.9], [0.01, 0.02]]) == pytest.approx(np.array([[1, 1], [0.02, 0.02]]))
    assert holm([]).shape == (0,)


@settings(deadline=None)  # machines are shared
@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_holm_never_makes_smaller_and_never_beats_bonferroni(p: list[float]) -> None:
    adjusted = holm(p)
    assert (adjusted >= np.array(p) - 1e-15).all()
    assert (adjusted <= np.minimum(np.array(p) * len(p), 1) + 1e-15).all()


def test_a_family_makes_proof_harder() -> None:
    base = Moments.of(np.tile(BASE, (48, 1)))
    runs = np.tile(BASE[:3], (48, 1))
    runs[0] += 2.7
    alone = compare(Moments.of(BASE), Moments.of(runs[0]), 1.0)
    assert decide(alone, 3, 6)[0] == Call.INFERIOR
    together = decide(compare(base, Moments.of(runs), 1.0), np.full(48, 3), np.full(48, 6))
    assert together[0] == Call.INCONCLUSIVE


def test_not_shown_is_a_failure_only_against_a_whole_baseline() -> None:
    runs = Moments.of(BASE.mean() + np.array([0.9, 1.1, 1.0, 1.2, 0.8, 1.0, 1.1, 0.9]))
    found = compare(Moments(np.float64(20), np.float64(BASE.mean()), np.float64(0.5)), runs, 1.0)
    assert decide(found, 8, 20)[0] == Call.NOT_SHOWN
    assert decide(found, 8, 19)[0] == Call.INCONCLUSIVE
    assert decide(found, 5, 20)[0] == Call.INCONCLUSIVE


@pytest.mark.parametrize("size", LOOKS)
def test_power_is_what_simulation_finds(size: int) -> None:
    rng = np.random.default_rng(size)
    base, runs = rng.standard_normal((20_000, 20)), rng.standard_normal((20_000, size))
    sigma = Moments(np.full(20_000, 20.0), base.mean(axis=-1), base.std(axis=-1, ddof=1))
    found = compare(sigma, Moments.of(runs), 1.5)
    passed = float((found.p_noninferior < level(size))[~found.welch].mean())
    assert passed == pytest.approx(float(power(1.5, size, 20)), abs=0.012)
    assert float(power(1e6, size, 20)) == 1.0


def test_the_risk_of_a_family_adds_up() -> None:
    assert family_risk([2.5] * 48, [20] * 48) == pytest.approx(48 * (1 - float(power(2.5, 8, 20))))
    assert family_risk([0.1] * 48, [5] * 48) == 0.0
    assert family_risk([0.1] * 48, [20] * 48) == 1.0


def test_calibration_in_small() -> None:
    """The full figures are a benchmark (`make calibration`); these bounds are five standard errors wide."""
    margin, equal = play(Scenario("", shift=1.0), 400), play(Scenario(""), 400)
    assert margin.passed == pytest.approx(0.05, abs=0.012)
    assert equal.passed > 0.99
    assert equal.any_fail < 0.1
    assert play(Scenario("", base_seeds=5), 400).any_fail < 0.02

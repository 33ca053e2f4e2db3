"""The tests behind the verdicts: against scipy's own, against simulation, and where they have nothing to say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bench.validate.statistics.rank_tests import limits, scatter, shift
from bench.validate.statistics.rates import excess, upper
from bench.validate.statistics.significance import (
    LOOKS,
    SPENT,
    Call,
    Moments,
    compare,
    decide,
    holm,
    level,
    look,
    next_look,
    power,
)
from benchmarks.calibration import FAMILIES, Scenario, play

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


def test_one_run_proves_nothing_but_what_is_gross() -> None:
    for value, wanted in ((BASE.max() + 5.1, Call.INFERIOR), (BASE.max() + 4.9, Call.INCONCLUSIVE)):
        assert decide(shift(BASE, [value], 1.0), 1, 6)[()] == wanted
    assert decide(shift(BASE, [BASE.mean()], 9.0), 1, 6)[()] == Call.INCONCLUSIVE
    assert bool(shift(BASE, [BASE.min() - 5.1], 1.0).gross_better)


@settings(deadline=None)  # machines are shared
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=8), st.floats(0.1, 2))
def test_ranks_are_those_of_mann_whitney_and_wilcoxon(values: list[float], margin: float) -> None:
    runs = np.round(np.array(values), 2) + np.arange(1, len(values) + 1) * 1e-4  # no ties: scipy's are approximate
    found = shift(BASE, runs, margin)

    def p(moved: float, alternative: str) -> float:
        return float(stats.mannwhitneyu(runs - moved, BASE, alternative=alternative, method="exact").pvalue)

    assert found.p_inferior == pytest.approx(p(margin, "greater"))
    assert found.p_noninferior == pytest.approx(p(margin, "less"))
    assert found.p_better == pytest.approx(p(-margin, "less"))
    assert found.p_worse == pytest.approx(p(0.0, "greater"))
    pairs = runs[:, None] - BASE
    assert found.worse == pytest.approx(np.median(pairs))
    low, high = found.bounds(0.1)
    for bound, side in ((low, "p_worse"), (high, "p_noninferior")):
        if np.isfinite(bound):  # a shift beyond a bound is rejected, one within is not
            step = 1e-6 if side == "p_noninferior" else -1e-6
            moved = shift(BASE, runs - bound - step, 0.0)
            inner = shift(BASE, runs - bound + step, 0.0)
            assert float(getattr(moved, side)) <= 0.1 < float(getattr(inner, side))


def test_ties_count_against_what_is_to_be_shown() -> None:
    found = shift([0.0] * 5, [0.0] * 3, 0.0)
    assert [float(p) for p in (found.p_inferior, found.p_noninferior, found.p_worse)] == [1.0, 1.0, 1.0]
    assert float(shift([0.0] * 20, [0.0] * 3, 0.1).p_noninferior) == pytest.approx(1 / 1771)


def test_seeds_without_a_value_are_left_out_or_the_worst() -> None:
    without, less = shift([*BASE, np.nan], [0.1, np.nan, 0.3], 1.0), shift(BASE, [0.1, 0.3], 1.0)
    assert float(without.p_noninferior) == float(less.p_noninferior)
    assert without.bounds(0.1) == less.bounds(0.1)
    worst = shift(BASE, [np.inf] * 3, 1.0)
    assert float(worst.p_inferior) == pytest.approx(1 / 84)
    both = shift([*BASE, np.inf], [np.inf] * 3, 1.0)
    assert float(both.p_inferior) > 1 / 84, "what never comes so far is no worse than what does not either"
    assert float(shift(BASE, [], 1.0).p_noninferior) == 1.0


@pytest.mark.parametrize(("base", "seeds"), [(20, 3), (20, 8), (5, 5)])
def test_rates_are_boschloos(base: int, seeds: int) -> None:
    table = excess(base, seeds)
    for theirs, mine in ((0, 1), (0, 3), (2, 3), (1, 1)):
        counts = [[mine, theirs], [seeds - mine, base - theirs]]
        wanted = stats.boschloo_exact(counts, alternative="greater", n=256).pvalue
        assert table[theirs, mine] == pytest.approx(wanted, rel=2e-3)
    assert (np.diff(table, axis=1) <= 1e-12).all()


def test_the_bound_of_a_rate_is_the_documented_one() -> None:
    assert [round(upper(0, n), 2) for n in (3, 8, 20)] == [0.63, 0.31, 0.14]
    assert upper(2, 8) == pytest.approx(stats.binomtest(2, 8).proportion_ci(0.9, "exact").high)
    assert upper(3, 3) == 1.0


def test_scatter_is_seen_and_an_outlier_is_not() -> None:
    rng = np.random.default_rng(1)
    base = rng.standard_normal(20)
    assert float(scatter(base, 6 * rng.standard_normal(8))) < 1e-3
    assert float(scatter(base, [*base[:7], 50.0])) > 0.01
    assert float(scatter(base, [9.0, -9.0])) == 1.0


def test_what_a_look_finds_is_what_it_would_not_pass() -> None:
    rng = np.random.default_rng(2)
    base = tuple(rng.standard_normal(20))
    for seeds in LOOKS:
        chance, least = limits(base, seeds, 2.5)
        drawn = rng.choice(base, (4000, seeds)), rng.choice(base, (4000, 20))
        missed = shift(drawn[1], drawn[0] + least, 2.5).p_noninferior < level(seeds)
        assert float(missed.mean()) == pytest.approx(0.1, abs=0.03)
        assert float((shift(drawn[1], drawn[0], 2.5).p_noninferior < level(seeds)).mean()) == pytest.approx(
            chance, abs=0.03
        )
    assert np.isnan(limits(base, 2, 2.5)[1])


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
    base, runs = np.tile(np.arange(20.0), (48, 1)), np.tile(np.arange(6.0, 11.0), (48, 1))
    runs[0] = np.linspace(18.1, 18.9, 5)  # worse than 18 of 20, by more than the margin
    assert decide(shift(base[0], runs[0], 1.0), 5, 20)[()] == Call.INFERIOR
    together = decide(shift(base, runs, 1.0), np.full(48, 5), np.full(48, 20))
    assert together[0] == Call.INCONCLUSIVE


def test_not_shown_is_a_failure_only_if_worse_is_proved_against_a_whole_baseline() -> None:
    base = np.linspace(-1, 1, 20)
    found = shift(base, np.array([0.9, 1.1, 1.0, 1.2, 0.8, 1.0, 1.15, 0.95]) + 0.1, 1.0)
    assert decide(found, 8, 20)[()] == Call.NOT_SHOWN
    assert decide(found, 8, 19)[()] == Call.INCONCLUSIVE
    assert decide(found, 5, 20)[()] == Call.INCONCLUSIVE
    luck = shift(base, np.array([3.0, -1.0, 3.0, -0.9, 3.0, -0.8, 3.0, -0.7]), 1.0)
    assert decide(luck, 8, 20)[()] == Call.INCONCLUSIVE


@pytest.mark.parametrize("size", LOOKS)
def test_power_is_what_simulation_finds(size: int) -> None:
    rng = np.random.default_rng(size)
    base, runs = rng.standard_normal((20_000, 20)), rng.standard_normal((20_000, size))
    sigma = Moments(np.full(20_000, 20.0), base.mean(axis=-1), base.std(axis=-1, ddof=1))
    found = compare(sigma, Moments.of(runs), 1.5)
    passed = float((found.p_noninferior < level(size))[~found.welch].mean())
    assert passed == pytest.approx(float(power(1.5, size, 20)), abs=0.012)
    assert float(power(1e6, size, 20)) == 1.0


@pytest.mark.parametrize("family", FAMILIES)
def test_calibration_in_small(family: str) -> None:
    """The full figures are a benchmark (`make calibration`)."""
    equal, margin = play(Scenario("", family=family), 60), play(Scenario("", family=family, shift=1.0), 60)
    assert equal.passed > 0.93
    assert equal.any_fail <= 0.1
    assert margin.passed < 0.08

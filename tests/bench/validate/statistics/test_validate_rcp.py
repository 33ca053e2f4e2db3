"""MLPerf's rule, with its worked example; and the run that it passes and ours fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.validate.baselines.reference import Metric, Value
from bench.validate.checks.rcp import MISSED, least_mean, olympic, passes
from bench.validate.statistics.significance import Call, Moments, compare, decide
from tests.bench.references import TWENTY, baselines, cell, one
from tests.bench.streams import make_metrics, make_spec, write_run

RESNET = (15.0, 15.5, 15.5, 16.0, 16.0, 16.0, 15.5, 16.5, 15.0, 16.5)


def test_the_least_mean_is_that_of_bisection() -> None:
    """The checker searches for it with a tolerance of 1e-4; solved here in closed form."""
    from scipy import stats

    least = least_mean(RESNET, 5)
    spread = np.std(RESNET)

    def p(mean: float) -> float:
        return float(stats.ttest_ind_from_stats(olympic(RESNET), spread, 8, mean, spread, 3).pvalue) / 2

    assert p(least) == pytest.approx(0.05, abs=1e-9)
    assert p(least - 1e-3) < 0.05 < p(least + 1e-3)


def test_too_fast_fails_and_a_miss_is_allowed() -> None:
    assert passes(RESNET, [15.5] * 5)
    assert not passes(RESNET, [13.0] * 5)
    assert passes(RESNET, [15.5] * 4 + [MISSED])
    assert not passes(RESNET, [15.5] * 3 + [MISSED] * 2)
    with pytest.raises(ValueError, match="three values"):
        least_mean(RESNET, 2)


def test_six_times_slower_passes_there_and_fails_here() -> None:
    slow = [100.0, 99.0, 101.0, 100.0, 100.0]
    assert passes(RESNET, slow)
    values = [Value(seed=i, value=v, run_id="") for i, v in enumerate(RESNET)]
    metric = Metric(
        unit="epochs", higher_is_better=False, scale="log", margin=0.0953, margin_why="", resolution=0.03, values=values
    )
    found = compare(metric.moments, Moments.of([metric.turned(v) for v in slow]), metric.margin, metric.resolution)
    assert decide(found, 5, 10)[0] == Call.INFERIOR


def test_the_same_from_run_folders(tmp_path: Path) -> None:
    """A cell that reaches its target late: the rule passes it, the check of samples fails it."""
    base = baselines(tmp_path, TWENTY, mode="nccl_sync", target=0.8)
    for seed in range(5):
        spec = make_spec("nccl_sync", seed=seed, target=0.8)
        metrics = make_metrics(spec)
        late = [row.model_copy(update={"samples": row.samples * 6}) for row in metrics.epochs]
        final = metrics.final.model_copy(update={"eval": TWENTY[seed]})
        write_run(tmp_path / "slow", spec, metrics.model_copy(update={"epochs": late, "final": final}))
    assert one(tmp_path / "slow", base, "rcp", optional=("rcp",)).name == "PASS"
    verdict = one(tmp_path / "slow", base, "samples", optional=("rcp",))
    assert (verdict.name, "inferiority beyond any test" in verdict.line) == ("FAIL", True), verdict
    same = cell(tmp_path / "same", "nccl_sync", TWENTY[:5], target=0.8)
    assert one(same, base, "samples").name == "PASS"

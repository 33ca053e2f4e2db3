from __future__ import annotations

from pathlib import Path

import pytest

from bench.results.cells import cells
from bench.results.runfolder import Run
from benchmarks.convergence import SCALES, main, paired, table
from tests.bench.streams import make_metrics, make_records, make_spec, write_run

POINTS = SCALES["accuracy"]
SOLO = {0: 0.975, 1: 0.977, 2: 0.976}


def runs(mode: str, evals: dict[int, float]) -> list[Run]:
    found = []
    for seed, value in evals.items():
        spec = make_spec(mode, seed=seed)
        metrics = make_metrics(spec, make_records(spec))
        metrics = metrics.model_copy(update={"final": metrics.final.model_copy(update={"eval": value})})
        found.append(Run(path=Path(f"{mode}-{seed}"), metrics=metrics))
    return found


def test_paired_difference_uses_common_seeds_and_students_t() -> None:
    found = paired({0: 0.974, 1: 0.979, 7: 0.5}, SOLO, POINTS)
    assert found is not None
    assert found.n == 2
    assert found.mean == pytest.approx(0.05)
    # Points -0.1 and 0.2: sd 0.3 / sqrt 2, its error 0.15, and t(0.975, 1) = 12.706.
    assert found.half == pytest.approx(12.7062 * 0.15, rel=1e-4)


def test_one_seed_has_no_interval_and_none_no_difference() -> None:
    one = paired({1: 0.976}, SOLO, POINTS)
    assert one is not None
    assert (one.n, one.half) == (1, None)
    assert one.mean == pytest.approx(-0.1)
    assert paired({7: 0.9}, SOLO, POINTS) is None


def test_the_table_tells_who_falls_behind() -> None:
    low = runs("cpu_async", {seed: value - 0.003 for seed, value in SOLO.items()})
    high = runs("nccl_sync", {seed: value + 0.001 for seed, value in SOLO.items()})
    alone = runs("cpu_sync", {9: 0.9})
    text = table(cells([*runs("solo", SOLO), *low, *high, *alone]))
    assert "1 of 3 modes are at most 0.2 points worse than solo; further: cpu_async ×2" in text
    assert "not comparable: cpu_sync ×2." in text
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| ")}
    assert "0.9760" in rows["solo"]
    assert "-0.30 ± 0.00 (n=3)" in rows["cpu_async ×2"]
    assert "+0.10 ± 0.00 (n=3)" in rows["nccl_sync ×2"]
    assert "0.9728 (+1.00)" in rows["nccl_sync ×2"], "the reference's figure and its own gap"


def test_it_reads_run_folders(tmp_path: Path) -> None:
    write_run(tmp_path, make_spec("solo"))
    write_run(tmp_path, make_spec("nccl_sync"))
    assert "(n=1)" in main(tmp_path)
    with pytest.raises(ValueError, match="not a folder"):
        main(tmp_path / "nowhere")


def test_where_lower_is_better_more_is_worse() -> None:
    found = paired({0: 1.54, 1: 1.56}, {0: 1.50, 1: 1.52}, SCALES["cross-entropy"])
    assert found is not None
    assert found.mean == pytest.approx(-0.04)
    assert found.mean < -SCALES["cross-entropy"].margin

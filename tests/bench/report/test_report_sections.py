"""The sections of the report on chosen numbers: what they say is what the runs are."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from bench import report
from bench.base.drawing import Drawing
from bench.base.panels import Panels
from bench.config.spec import RunSpec
from bench.report import write_report
from bench.report.measures.differences import MeanDifference, difference, ratio
from bench.report.measures.time_to_target import reach
from bench.report.sections.profile import score
from bench.report.sections.speedup import serial_fraction
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.results.schema import Metrics
from bench.results.schema_speed import GradientNorm, StepCosts
from bench.validate import judge
from tests.bench.references import baselines, cell, changed_trees, put
from tests.bench.report_parts import part
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_metrics, make_spec, write_run


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and their data files, without the pictures."""
    monkeypatch.setattr(report.page, "save", lambda figure, path: Drawing(b"", "<svg/>", Panels()))


def timed(spec: RunSpec, speed: float, reached: float | None = None) -> Metrics:
    """A run of chosen speed, and seconds to target; None: never reached."""
    m = make_metrics(spec)
    target = m.target.model_copy(
        update={"reached": reached is not None, "seconds": reached, "samples": None if reached is None else 1000}
    )
    return m.model_copy(
        update={"throughput": m.throughput.model_copy(update={"samples_per_s": speed}), "target": target}
    )


def test_differences_have_intervals_where_seeds_allow() -> None:
    wide = difference([0.90, 0.92, 0.94], [0.95, 0.97, 0.99], True)
    assert wide is not None
    assert wide.value == pytest.approx(0.05)
    reach = 2.776 * 0.02 * math.sqrt(2 / 3)  # t(0.975, 4) times the pooled standard error
    assert wide.low == pytest.approx(0.05 - reach, abs=1e-4)
    assert wide.high == pytest.approx(0.05 + reach, abs=1e-4)
    lower_is_better = difference([0.90, 0.92, 0.94], [0.95, 0.97, 0.99], False)
    assert lower_is_better is not None
    assert lower_is_better.value == pytest.approx(-0.05)
    one = difference([0.9], [0.8], True)
    assert one is not None
    assert one.low is None
    assert not one.decided
    assert difference([None], [0.8], True) is None
    for better in (True, False):
        alone, several = (difference(*sides, better) for sides in (([0.9], [0.8, 0.84]), ([0.8, 0.84], [0.9])))
        assert alone is not None
        assert several is not None
        assert (alone.low, alone.value, alone.high) == (-(several.high or 0), -several.value, -(several.low or 0))
        assert (alone.n, alone.n_base) == (several.n_base, several.n) == (2, 1)
    assert difference([0.9], [0.8, 0.8], True) == MeanDifference(pytest.approx(-0.1), None, None, 2, 1)
    assert difference([0.9, 0.9], [0.9, 0.9], True) is not None, "no spread, no interval, no division by zero"
    twice = ratio([10.0, 10.1, 9.9], [20.0, 20.2, 19.8])
    assert twice is not None
    assert math.exp(twice.value) == pytest.approx(2.0)
    assert twice.decided


@pytest.mark.usefixtures("unrendered")
def test_the_page_concludes_what_the_verdicts_do(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    runs = cell(tmp_path / "runs", "solo", (0.97, 0.972, 0.974, 0.976, 0.978))
    cell(runs, "nccl_sync", (0.971, 0.972, 0.974, 0.976, 0.978))
    cell(runs, "cpu_async", (0.90, 0.902, 0.904, 0.906, 0.908))
    path = write_report(runs, tmp_path / "out", baseline=base)
    rows = {
        line.split("|")[1].strip(): line
        for line in part(path, "Quality against one device").splitlines()[8:]
        if "|" in line
    }
    verdicts = {v.cell: v.name for v in judge([runs], base).verdicts if v.check == "quality"}
    assert verdicts["mlp nccl_sync ×2"] == "PASS"
    assert verdicts["mlp cpu_async ×2"] == "FAIL"
    assert "*PASS*" in rows["nccl_sync ×2"]
    assert "*FAIL*" in rows["cpu_async ×2"]
    assert "-7.00 pt" in rows["cpu_async ×2"]
    said = part(path, "Short answers")
    assert "Of 2 cells beside solo: **1 are as good as their baseline** (PASS) and **1 worse** (FAIL)." in said
    assert "Worse than the baseline: cpu\\_async ×2" in said or "Worse than the baseline: cpu_async ×2" in said
    data = pd.read_csv(path.parent / "quality-mlp.csv")
    assert data["verdict"].to_list() == ["FAIL", "PASS"]
    assert (data["low"] < data["difference"]).all()


@pytest.mark.usefixtures("unrendered")
def test_misses_count_as_infinitely_long(tmp_path: Path) -> None:
    for seed, seconds in enumerate((2.0, 4.0, None)):
        spec = make_spec("solo", seed=seed)
        write_run(tmp_path / "runs", spec, timed(spec, 100.0, seconds))
    for seed, seconds in enumerate((1.0, None, None)):
        spec = make_spec("nccl_sync", seed=seed)
        write_run(tmp_path / "runs", spec, timed(spec, 100.0, seconds))
    path = write_report(tmp_path / "runs", tmp_path / "out")
    text = part(path, "Time to target")
    assert "reached by 3 of 6 runs" in text
    rows = [re.split(r"\s*\|\s*", line) for line in text.splitlines() if line.startswith("| ")]
    assert rows[1][1:8] == ["solo", "3", "2 of 3", "1,000", "–", "4", "–"]
    assert rows[2][1:8] == ["nccl_sync ×2", "3", "1 of 3", "not reached", "–", "not reached", "–"]
    data = pd.read_csv(path.parent / "target-mlp.csv")
    assert data["reached"].sum() == 3
    found = {one.label: reach(one) for one in cells(find_runs(tmp_path / "runs")[0])}
    assert found["nccl_sync ×2"].middle("seconds") == math.inf
    assert "| nccl_sync |" in part(path, "Best over all workloads"), "it missed, and is in the profile"


def test_profile_scores_are_areas() -> None:
    assert score([1.0, 1.0]) == 1.0
    assert score([1.0, math.inf]) == 0.5
    assert score([2.5]) == pytest.approx(0.5)
    assert score([4.0, 9.0]) == 0.0


@pytest.mark.usefixtures("undrawn")
def test_a_mode_of_several_settings_has_no_profile(tmp_path: Path) -> None:
    """One of two anchors, whichever comes first, would stand for the mode."""
    for mode, way, seconds in (
        ("solo", "", 3.0),
        ("nccl_sync", "", 2.0),
        ("nccl_cadence", "a", 9.0),
        ("nccl_cadence", "b", 1.0),
    ):
        spec = make_spec(mode)
        spec = replace(spec, config_hash=spec.config_hash + way, run_id=spec.run_id + way)
        write_run(tmp_path / "runs", spec, timed(spec, 100.0, seconds))
    text = part(write_report(tmp_path / "runs", tmp_path / "out"), "Best over all workloads")
    assert "or one in several ways: nccl_cadence." in text
    assert re.findall(r"^\| (\S+) +\|", text, re.M) == ["mode", "nccl_sync", "solo"]


def test_serial_fraction_recovers_amdahl() -> None:
    for fraction in (0.0, 0.1, 0.5, 1.0):
        for ranks in (2, 4, 8):
            speedup = 1 / (fraction + (1 - fraction) / ranks)
            assert serial_fraction(speedup, ranks) == pytest.approx(fraction)
    assert serial_fraction(1.0, 1) is None
    assert serial_fraction(None, 2) is None
    fast = serial_fraction(2.2, 2)
    assert fast is not None
    assert fast < 0


@pytest.mark.usefixtures("undrawn")
def test_scaling_says_what_a_device_brings_and_how_many_cores_there_were(tmp_path: Path) -> None:
    for mode, size, speed in (("solo", 1, 100.0), ("nccl_sync", 2, 150.0), ("nccl_sync", 4, 200.0)):
        spec = make_spec(mode, world_size=size)
        write_run(tmp_path / "runs", spec, timed(spec, speed, 1.0))
    path = write_report(tmp_path / "runs", tmp_path / "out")
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in part(path, "Weak scaling").splitlines() if line[:2] == "| "]
    assert [row[4:8] for row in rows[2:]] == [["1.50", "2", "75 %", "0.33"], ["2.00", "4", "50 %", "0.33"]]
    said = part(path, "Short answers")
    assert "2 ranks make 1.50 times solo's samples/s with nccl_sync ×2 (n=1), 75% of the ideal" in said
    assert "each device added brings 50% of one" in said
    assert "they are more than the 2 cores" in said
    assert (
        "up to 4 ranks shared them, so at 4 ranks no way of training can reach more than 50% of the ideal"
        in path.read_text()
    )


@pytest.mark.usefixtures("undrawn")
def test_the_ideal_over_a_slow_solo_is_the_devices_over_its_own(tmp_path: Path) -> None:
    """Solo is the first of the devices that are described, so it may be a slow one."""
    speeds = (0.3, 1.0, 0.7)
    for mode, devices, speed in (("solo", speeds[:1], 30.0), ("nccl_cadence", speeds, 180.0), ("nccl_sync", (), 100.0)):
        spec = make_spec(mode, world_size=max(len(devices), 2 - (mode == "solo")), speeds=devices)
        write_run(tmp_path / "runs", spec, timed(spec, speed))
    path = write_report(tmp_path / "runs", tmp_path / "out")
    rows = [re.split(r"\s*\|\s*", line)[1:-1] for line in part(path, "Weak scaling").splitlines() if line[:2] == "| "]
    found = {row[0]: row[4:7] for row in rows[1:]}
    assert found["nccl_cadence ×3 at speeds 0.3/1/0.7"] == ["6.00", "6.66667", "90 %"]
    assert found["nccl_sync ×2"] == ["3.33", "6.66667", "50 %"]
    said = part(path, "Short answers")
    assert "makes most: 6.00 times, ideal is 6.66667" in said
    assert "each device added brings" not in said, "no device of the reference's speed was added"


@pytest.mark.usefixtures("unrendered")
def test_idle_time_is_told_by_cause(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", make_spec("nccl_cadence", speeds=()))
    path = write_report(tmp_path / "runs", tmp_path / "out")
    data = pd.read_csv(path.parent / "idle-mlp.csv")
    (run,) = find_runs(tmp_path / "runs")[0]
    for rank, shares in enumerate(run.metrics.breakdown):
        row = data[data["rank"] == rank].iloc[0]
        total = row[["late rank", "orders", "bookkeeping", "short", "other"]].sum()
        assert total == pytest.approx(shares.wait + shares.other, abs=1e-6), (
            "gaps are what breakdown calls wait and other"
        )
    assert "rank" in part(path, "Idle time by cause")


@pytest.mark.usefixtures("undrawn")
def test_one_other_cell_is_no_range(tmp_path: Path, undrawn: None) -> None:
    for mode in ("solo", "nccl_cadence"):
        put(tmp_path / "runs", make_spec(mode), 0.9)
    said = part(write_report(tmp_path / "runs", tmp_path / "out"), "Short answers")
    assert "1 other cell: +0.00 pt (nccl_cadence ×2, n=1). The target" in said
    assert "times solo's samples/s" in said
    assert "the least is" not in said
    assert "as good" not in said, "nothing is judged without a baseline"


def test_means_of_whole_numbers_read_alike_everywhere(tmp_path: Path, undrawn: None) -> None:
    for seed, meetings in enumerate((5, 5, 6)):
        spec = make_spec("nccl_cadence", seed=seed)
        metrics = make_metrics(spec)
        write_run(
            tmp_path / "runs",
            spec,
            metrics.model_copy(update={"sync": metrics.sync.model_copy(update={"count": meetings})}),
        )
    path = write_report(tmp_path / "runs", tmp_path / "out")
    for name in ("Comparison", "Communication"):
        assert re.search(r"\| +5\.3 \|", part(path, name)), name


@pytest.mark.usefixtures("unrendered")
def test_what_changed_against_an_earlier_tree(tmp_path: Path) -> None:
    old, new = changed_trees(tmp_path, (0.970, 0.972, 0.974))
    path = write_report(new, tmp_path / "out", previous=old)
    text = part(path, "What changed")
    assert "**1 cell new, 1 gone, 2 changed**, 1 not changed" in text
    assert "- mlp cpu_cadence ×2" in text
    assert "- mlp cpu_async ×2" in text
    rows = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("| mlp")}
    assert set(rows) == {"mlp nccl_sync ×2", "mlp nccl_cadence ×2"}
    assert "**-5.00 pt [" in rows["mlp nccl_sync ×2"]
    assert "1 ok → 1 failed" in rows["mlp nccl_cadence ×2"]
    assert len(pd.read_csv(path.parent / "changes.csv")) == 3
    assert "What changed" not in write_report(new, tmp_path / "out2").read_text()


def test_what_changed_holds_no_data_against_another(tmp_path: Path, undrawn: None) -> None:
    """One workload a tree, so that the names of its cells say nothing of the data."""
    for name, data in (("old", "digits"), ("new", "mnist")):
        cell(tmp_path / name, "solo", (0.97, 0.98), data=data)
    text = part(write_report(tmp_path / "new", tmp_path / "out", previous=tmp_path / "old"), "What changed")
    assert "**1 cell new, 1 gone, 0 changed**, 0 not changed" in text
    assert "- mlp solo (mnist, quick" in text
    assert "- mlp solo (digits, quick" in text


def test_what_is_trained_otherwise_is_said(tmp_path: Path, undrawn: None) -> None:
    cell(tmp_path / "old", "solo", (0.97, 0.98))
    cell(tmp_path / "new", "solo", (0.97, 0.98), epochs=9)
    text = part(write_report(tmp_path / "new", tmp_path / "out", previous=tmp_path / "old"), "What changed")
    assert "**0 cells new, 0 gone, 1 changed**, 0 not changed" in text
    assert "| mlp solo (3 epochs, batch 32, lr 0.1 → 9 epochs, batch 32, lr 0.1) |" in text


def test_a_cell_is_the_same_whatever_else_is_in_its_tree(tmp_path: Path, undrawn: None) -> None:
    """A second workload, and a second cell of one label, give cells longer names."""
    for tree in ("old", "new"):
        cell(tmp_path / tree, "solo", (0.97, 0.98))
    cell(tmp_path / "new" / "more", "solo", (0.90, 0.91), data="mnist")
    cell(tmp_path / "new" / "again", "solo", (0.97, 0.98), config_hash="another", run_id="another")
    text = part(write_report(tmp_path / "new", tmp_path / "out", previous=tmp_path / "old"), "What changed")
    assert "**2 cells new, 0 gone, 0 changed**, 1 not changed" in text


def test_what_a_sample_costs_is_what_the_result_says(tmp_path: Path, undrawn: None) -> None:
    spec = make_spec("nccl_sync")
    norm = GradientNorm(steps=50, first=2.5, p50=0.75, last=0.125)
    work = StepCosts(gradient_norm=norm, tokens_per_s=123_000.0, flop_per_sample=6e6, flop_per_s=2e9)
    m = make_metrics(spec)
    memory = m.memory.model_copy(update={"parameter_bytes": [2_000_000, 1_000_000], "optimizer_bytes": [None, 512]})
    write_run(tmp_path / "runs", spec, m.model_copy(update={"work": work, "memory": memory}))
    text = part(write_report(tmp_path / "runs", tmp_path / "out"), "What a sample costs")
    assert "2.5 / 0.75 / 0.125" in text
    for value in ("123,000", "6,000,000", "2 MB", "512 B"):
        assert f" {value} " in text
    assert "of peak*:" in text
    assert "| activations" not in text, "no run counted them"
    assert "| device peak" not in text
    page_one = (tmp_path / "out" / "report.html").read_text().split("<details")[0]
    assert "Gradient norm" not in page_one, "it is folded"

"""Sweeps with `timing=off`: which cells run side by side, and that nothing speaks of the speed of such runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.config.sharing import VISIBLE, CellNeeds, Resources, sharing_plan, visible_gpus
from bench.report import write_report
from bench.results.cells import cells
from bench.results.runfolder import find_runs, finished
from tests.bench.conftest import Bench
from tests.bench.references import one
from tests.bench.streams import make_metrics, make_spec, write_run
from tests.bench.validate.baselines.test_validate_speed import QUIET, kept, timed


def needs(*ranks: int, timing: bool = False) -> list[CellNeeds]:
    return [CellNeeds(size, timing, True) for size in ranks]


@given(st.lists(st.integers(1, 6), min_size=2, max_size=12), st.integers(1, 6), st.integers(0, 6), st.data())
def test_every_cell_runs_and_no_rank_shares_a_core_or_a_gpu(
    ranks: list[int], cores: int, gpus: int, draw: st.DataObject
) -> None:
    plan = sharing_plan(needs(*ranks), Resources(cores, tuple(map(str, range(gpus)))))
    if plan is None:
        return
    waiting, running = list(range(len(ranks))), list[int]()
    while waiting or running:
        while len(running) < len(plan.variables) and (cell := plan.next(waiting, running)) is not None:
            waiting.remove(cell)
            running.append(cell)
        assert running, "nothing runs, and cells are left"
        assert len(running) == 1 or sum(ranks[cell] for cell in running) <= cores
        running.remove(draw.draw(st.sampled_from(running)))
    slices = [each[VISIBLE].split(",") for each in plan.variables if each]
    assert len({gpu for each in slices for gpu in each}) == sum(map(len, slices))
    assert all(len(each) >= max(ranks) for each in slices)


def test_who_runs_alone() -> None:
    assert sharing_plan(needs(1, 1, timing=True), Resources(8)) is None
    assert sharing_plan([*needs(1), *needs(1, timing=True)], Resources(8)) is None
    assert sharing_plan(needs(1), Resources(8)) is None
    assert sharing_plan(needs(2, 2), Resources(3)) is None
    assert sharing_plan(needs(1, 1), Resources(8, memory=3 << 30)) is None
    assert len((sharing_plan(needs(2, 1, 1), Resources(2)) or pytest.fail("they fit")).variables) == 2


def test_cells_that_train_on_cpus_are_not_held_back_by_gpus() -> None:
    """Two ranks on one GPU train on CPUs, and were trained in turn for it."""
    plan = sharing_plan(needs(*[2] * 6), Resources(32, ("0",)))
    assert plan is not None
    assert plan.variables == ({},) * 6
    assert sharing_plan([CellNeeds(2, False, True, True)] * 6, Resources(32, ("0",))) is None
    assert sharing_plan([*needs(1), *needs(2)], Resources(32, ("0",))) is None


@pytest.mark.parametrize(
    ("variable", "seen"),
    [("", ()), ("-1", ()), ("1,0", ("1", "0")), (" 2, -1,0", ("2",)), ("GPU-ab,", ("GPU-ab",))],
)
def test_gpus_behind_a_minus_one_are_not_seen(variable: str, seen: tuple[str, ...]) -> None:
    assert visible_gpus(variable) == seen


def test_a_run_without_timing_has_no_speed_and_is_not_done_where_one_is_wanted(tmp_path: Path) -> None:
    spec = make_spec("nccl_cadence", timing=False)
    metrics = make_metrics(spec)
    assert not metrics.timing
    assert metrics.target.reached
    assert metrics.target.seconds is None
    assert metrics.throughput.model_dump() == {
        "samples_per_s": None,
        "per_rank": [],
        "efficiency": None,
        "steady": None,
    }
    write_run(tmp_path, spec, metrics)
    key = (tmp_path, spec.model, spec.mode, spec.run_id)
    assert finished(*key)
    assert not finished(*key, timed=True)
    (run,), _ = find_runs(tmp_path)
    assert json.loads((run.path / "metrics.json").read_text())["timing"] is False


def test_a_report_draws_no_speed_of_runs_without_timing(tmp_path: Path) -> None:
    """One seed of two is timed: speeds are its own, results are of both; with none, the sections of speed are left out."""
    for seed, timing in enumerate((True, False)):
        for mode in ("solo", "nccl_cadence"):
            spec = make_spec(mode, seed=seed)
            write_run(tmp_path / "runs", spec, make_metrics(replace(spec, timing=timing)))
    _, rival = cells(find_runs(tmp_path / "runs")[0])
    assert (rival.eval.n, rival.speed.n, len(rival.timed)) == (2, 1, 1)
    write_report(tmp_path / "runs", tmp_path / "some")
    text = (tmp_path / "some" / "report.md").read_text()
    assert "Weak scaling" in text
    assert "Where the time went" in text
    for spec in (make_spec("solo"), make_spec("nccl_cadence")):
        write_run(tmp_path / "off", spec, make_metrics(replace(spec, timing=False)))
    write_report(tmp_path / "off", tmp_path / "none")
    text = (tmp_path / "none" / "report.md").read_text()
    for heading in ("Weak scaling", "Where the time went", "Idle time by cause"):
        assert heading not in text


def test_a_verdict_on_speed_takes_no_run_without_timing(tmp_path: Path) -> None:
    base = kept(tmp_path / "base", QUIET * 4)
    verdict = one(timed(tmp_path / "runs", (1000.0, 998.0, 1003.0), timing=False), base, "speed")
    assert verdict.name == "INCONCLUSIVE"
    assert "timing=off in seeds 0, 1, 2" in verdict.why


def test_a_speed_is_no_objective_without_timing(quiet: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert quiet("model=mlp", "mode=solo", "timing=off", "objective=samples_per_s") == 2
    assert "timing=off does not measure" in capsys.readouterr().err
    assert quiet("model=mlp", "mode=solo", "timing=off") == 0
    (run,), _ = find_runs(Path("runs"))
    assert run.config["timing"] is False
    assert any("timing=off" in line for line in run.metrics.warnings)
    hash_before = run.metrics.config_hash
    assert quiet("-m", "model=mlp", "mode=solo") == 0  # is not skipped
    (run,), _ = find_runs(Path("runs"))
    assert run.metrics.timing
    assert run.metrics.config_hash == hash_before

"""What a report says of experiments: planned runs, lacking ones, cells with fewer seeds."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from bench import report
from bench.command.verbs import plan_command
from bench.config.compose import compose
from bench.report import write_report
from bench.results.planned import ExperimentPoint, planned
from bench.results.runfolder import find_runs
from tests.bench.references import cell
from tests.bench.report.generated import plant
from tests.bench.report_parts import part
from tests.bench.report_parts import undrawn as undrawn
from tests.bench.streams import make_spec, write_run
from tests.models.data_files import write_cifar
from tests.warm import PICTURES, Warm

CONF = Path(__file__).resolve().parents[3] / "conf"


def test_an_experiment_is_what_its_file_says() -> None:
    plan = planned(Path("anywhere"), "scaling_weak")
    assert plan is not None
    solo = [point for point in plan.points if point.mode == "solo"]
    assert {(point.model, point.world_size) for point in solo} == {("mlp", 1), ("resnet_graph", 1)}
    assert ExperimentPoint("mlp", "cpu_async", 4, 0) in plan.points
    assert len(plan.points) == len(set(plan.points)) == 2 * (1 + 3 * 3)
    with pytest.raises(ValueError, match="no experiment 'nothing'"):
        planned(Path("anywhere"), "nothing")
    found = planned(Path("runs/example"), None)
    assert found is not None, "by where it writes"
    assert found.experiment == "example"
    assert planned(Path("anywhere"), None) is None


@pytest.mark.parametrize(
    ("name", "points"), {"needle_scaling": 3, "needle_memory": 12, "xtrain": 3, "lesson": 8, "ddp_bench": 56}.items()
)
def test_the_experiments_of_published_tables_have_a_plan(name: str, points: int) -> None:
    plan = planned(Path("anywhere"), name)
    assert plan is not None
    assert len(plan.points) == points


CIFAR100 = ("data.name=cifar100", "data.shape=null", "data.classes=null")


@pytest.mark.parametrize(
    ("words", "data", "parameters"),
    [
        (("data.shape=[3,8,8]",), "synthetic", 1_346_228),
        pytest.param((), "synthetic", 21_328_292, marks=pytest.mark.slow),
        pytest.param(CIFAR100, "cifar100", 21_328_292, marks=pytest.mark.slow),
    ],
    ids=["small", "CIFAR-100's shape", "CIFAR-100"],
)
def test_a_cell_of_a_published_table_trains(
    warm: Warm, tmp_path: Path, words: tuple[str, ...], data: str, parameters: int
) -> None:
    write_cifar(tmp_path / "data")
    cut = ("world_size=1", "data.samples=32", "train.epochs=1", f"data.dir={tmp_path / 'data'}")
    code, out, err = warm.start(
        tmp_path, "-m", "bench", "experiment=needle_scaling", *cut, *words, env={PICTURES: "none"}
    ).result()
    assert (code, err) == (0, ""), out
    (run,), _ = find_runs(tmp_path / "runs/needle_scaling")
    m = run.metrics
    assert (m.status, m.model, m.data.split()[0], m.parameters) == ("ok", "resnet34", data, parameters)


@pytest.mark.slow
def test_every_experiment_has_a_plan() -> None:
    plans = {file.stem: planned(Path("anywhere"), file.stem) for file in (CONF / "experiment").glob("*.yaml")}
    assert all(plans.values())
    nightly = plans["nightly"]
    assert nightly is not None
    assert {"mlp", "vit"} <= {point.model for point in nightly.points}


def test_what_is_varied_beside_is_planned_once_for_each_of_its_values(tmp_path: Path) -> None:
    params = {"model": "mlp", "mode": "solo,nccl_sync", "train.lr": "0.1,0.01,0.001", "recipe": "quick"}
    plan = planned(tmp_path, "mine", own_experiment(tmp_path / "conf", sweep(**params)))
    assert plan is not None
    solo, sync = ExperimentPoint("mlp", "solo", 1, 0), ExperimentPoint("mlp", "nccl_sync", 2, 0)
    assert plan.points == (solo, solo, solo, sync, sync, sync)
    root = tmp_path / "runs"
    for rate in (0.1, 0.01):
        write_run(root, make_spec("solo", lr=rate))
    assert plan.missing(find_runs(root)[0]) == [solo, sync, sync, sync]


SPEEDS = "[1.0,0.4],[1.0,0.5],[1,0.5]"


@pytest.mark.parametrize(
    ("params", "runs"),
    [
        ({"mode": "solo,nccl_cadence", "policy.anchor": "10,20"}, {"solo": 1, "nccl_cadence": 2}),
        (
            {"mode": "nccl_sync,zero1,cpu_async", "policy.max_overshoot": "2,4"},
            {"nccl_sync": 1, "zero1": 1, "cpu_async": 2},
        ),
        (
            {"mode": "solo,zero1,cpu_sync", "averaging.outer": "none,nesterov"},
            {"solo": 1, "zero1": 1, "cpu_sync": 2},
        ),
        (
            {"mode": "nccl_cadence,virtual_nccl_cadence", "virtual.step_s": "0.1,0.2"},
            {"nccl_cadence": 1, "virtual_nccl_cadence": 2},
        ),
        ({"mode": "solo,nccl_sync", "cluster.speeds": SPEEDS}, {"solo": 1, "nccl_sync": 2}),
        ({"mode": "solo,nccl_sync", "cluster.speeds": SPEEDS, "seed": "0,1"}, {"solo": 2, "nccl_sync": 4}),
        ({"mode": "solo,nccl_sync", "cluster.links": "null,ib"}, {"solo": 1, "nccl_sync": 2}),
        ({"mode": "solo", "data.dir": "a,b", "audit": "true,false", "checkpoint.every": "0,1"}, {"solo": 1}),
        ({"mode": "solo,cpu_async", "policy.anchor": "1,2", "train.lr": "0.1,0.2"}, {"solo": 2, "cpu_async": 4}),
    ],
)
def test_values_without_effect_plan_no_further_runs(
    tmp_path: Path, params: dict[str, str], runs: dict[str, int]
) -> None:
    """Runs that can never be were missing; `plan` knows what is one run."""
    conf = own_experiment(tmp_path / "conf", sweep(model="mlp", **params))
    plan = planned(tmp_path, "mine", conf)
    assert plan is not None
    assert Counter(point.mode for point in plan.points) == runs
    found = plan_command.PlannedRuns()
    compose(["-cd", str(conf), "experiment=mine"], (), found.job, found.left_out.append, planning=True)
    assert found.impossible == []
    assert Counter(spec.mode for spec in found.specs) == runs


@pytest.mark.usefixtures("undrawn")
def test_planned_runs_that_are_not_there_are_named(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for mode in ("solo", "nccl_sync"):
        write_run(root, make_spec(mode))
    text = part(write_report(root, tmp_path / "out", experiment="smoke"), "Missing and failed")
    assert "Experiment *smoke* plans 8 runs: 2 are here, **6 missing**." in text
    assert "- mlp cpu_async ×2: seed 0" in text
    assert "- resnet_graph solo ×1: seed 0" in text
    assert "mlp solo" not in text


@pytest.mark.usefixtures("undrawn")
def test_cells_with_fewer_seeds_are_named(tmp_path: Path) -> None:
    root = cell(tmp_path / "runs", "solo", (0.97, 0.972, 0.974))
    cell(root, "nccl_sync", (0.97,))
    text = part(write_report(root, tmp_path / "out"), "Missing and failed")
    assert "mlp nccl_sync ×2: 2 seeds fewer (1 of 3)" in text


def test_many_runs_are_cut_short_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many workloads a few are drawn; every cell is in the tables."""
    plant(tmp_path / "runs", 80)
    monkeypatch.setattr(report.page, "MANY_RUNS", 79)
    monkeypatch.setattr(report.page, "FEW", 1)
    path = write_report(tmp_path / "runs", tmp_path / "out")
    text = path.read_text()
    assert "80 runs of 12 ways of training and of one device" in text
    assert "… and 1 more figure: not drawn" in text
    assert len([line for line in part(path, "Comparison").splitlines() if "5 ok" in line]) == 16
    assert len(list(path.parent.glob("breakdown-*.png"))) == 1


def test_a_broken_experiment_is_told_only_to_who_asked_for_it(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "bad.yaml").write_text("a: b: c")
    assert planned(tmp_path, None, tmp_path) is None
    with pytest.raises(ValueError, match="not an experiment"):
        planned(tmp_path, "bad", tmp_path)


def own_experiment(folder: Path, text: str) -> Path:
    """A copy of the configuration with one more experiment, `mine`."""
    shutil.copytree(CONF, folder)
    (folder / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}")
    return folder


def sweep(**params: str) -> str:
    return "hydra: {mode: MULTIRUN, sweeper: {params: " + json.dumps(params) + "}}"


@pytest.mark.parametrize(
    ("text", "points"),
    [
        (
            "defaults: [override /model: mlp, override /mode: nccl_sync]\n" + sweep(seed="range(0,3)"),
            [("mlp", "nccl_sync", 2, seed) for seed in range(3)],
        ),
        ("defaults: [override /model: mlp]\nworld_size: 4\nseed: 7", [("mlp", "nccl_cadence", 4, 7)]),
        (
            "defaults: [override /engine: elche]\n"
            + sweep(**{"model": "choice(mlp,lenet)", "policy": "sync,async", "backend": "cpu", "train.lr": "0.1,0.2"}),
            [(m, mode, 2, 0) for m in ("mlp", "lenet") for mode in ("cpu_sync", "cpu_async") for _ in range(2)],
        ),
        (sweep(model="glob(ml*)", mode="solo", world_size="range(1,3)"), [("mlp", "solo", 1, 0)]),
    ],
)
def test_an_experiment_plans_whatever_its_grammar(
    tmp_path: Path, text: str, points: list[tuple[str, str, int, int]]
) -> None:
    plan = planned(tmp_path, "mine", own_experiment(tmp_path / "conf", text))
    assert plan is not None
    assert [tuple(point) for point in plan.points] == points


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (sweep(model="mlp", mode="solo", seed="a,b"), "seed=a"),
        (sweep(model="mlp,mpl", mode="solo"), "did you mean 'mlp'"),
        (sweep(model="mlp", mode="solo,solos"), "did you mean 'solo'"),
        (sweep(model="mlp", mode="solo", seed="range(0,"), "seed=range"),
        (sweep(model="glob(x*)", mode="solo"), "plans no run"),
        ("defaults: [override /modle: mlp]", "modle"),
        ("defaults: [override /mode: solo]\nworld_size: 2", "world_size=2 with mode=solo"),
        ("mode: solo\nhydra: {sweeper: {params: {train.lr.x: 1}}}", "mode"),
    ],
)
def test_an_experiment_whose_runs_cannot_be_known_is_an_error_of_its_file(tmp_path: Path, text: str, why: str) -> None:
    conf = own_experiment(tmp_path / "conf", f"output: {tmp_path}\n{text}")
    with pytest.raises(ValueError, match=f"mine.yaml: .*{re.escape(why)}") as said:
        planned(tmp_path, "mine", conf)
    assert len(str(said.value).splitlines()) == 1
    assert planned(tmp_path, None, conf) is None, "nobody asked for it"

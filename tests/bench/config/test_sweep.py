"""Sweeps: which of their points are runs, and what is said of those that are none, or where there is none at all."""

from __future__ import annotations

import pickle
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pytest
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from bench.base.usage import UsageError
from bench.command.verbs import plan_command
from bench.config.compose import WORKER_KILLED, compose, settings_of
from bench.config.point_task import LostPoint, PointTask
from bench.results.planned import planned
from bench.results.runfolder import find_runs, read_object
from ddp.engine import ENGINES
from ddp.process.scratch import OWNER
from tests.bench.conftest import Bench

SIZES = ("-m", "model=mlp", "mode=solo,nccl_sync", "world_size=1,2", "train.epochs=1")


def test_a_size_that_an_engine_of_one_rank_cannot_have_is_left_out_and_said(
    quiet: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    assert quiet(*SIZES) == 0
    said = capsys.readouterr()
    assert said.err == ""
    line = "model=mlp mode=solo world_size=2"
    (left_out,) = [told for told in said.out.splitlines() if "left out" in told]
    assert left_out.startswith(line)
    assert left_out.endswith("left out: solo has one rank, so world_size=2 is no run of it")
    runs = sorted((run.metrics.mode, run.metrics.world_size) for run in find_runs(Path("runs"))[0])
    assert runs == [("nccl_sync", 1), ("nccl_sync", 2), ("solo", 1)]


def test_the_plan_leaves_out_the_same(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("plan", *SIZES) == 0
    said = capsys.readouterr().out
    assert "planned: 3 runs of 3 cells" in said
    assert said.count("left out: solo has one rank") == 1
    assert "cannot be" not in said


def test_a_run_that_is_asked_for_twice_is_planned_and_trained_once(
    quiet: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = ("-m", "model=mlp", "mode=solo", "train.epochs=1", "seed=0,0", "force=true")
    assert quiet("plan", *twice) == 0
    said = capsys.readouterr().out
    assert "planned: 1 run of 1 cell, 0 finished, 1 to train" in said
    assert said.count("asked for more than once, trained once") == 1
    assert quiet(*twice) == 0
    assert capsys.readouterr().out.count("epoch 1/1") == 1


def test_a_run_that_is_gone_on_with_is_not_planned(quiet: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """It planned another run, of the defaults."""
    assert quiet("plan", "resume=runs/mlp/solo/w1-s0-12345678") == 2
    said = capsys.readouterr().out
    assert "leave out plan" in said
    assert "planned: 0 runs" in said


def test_one_size_that_cannot_be_is_a_mistake(quiet: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("mode=solo", "world_size=2"),
        ("-m", "mode=solo", "world_size=2"),
        ("plan", "mode=solo", "world_size=2"),
    ):
        assert quiet(*words) == 2
    assert "leave it out, or choose another mode" in capsys.readouterr().err


def test_a_sweep_of_which_nothing_is_left_is_a_mistake(quiet: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    assert quiet("-m", "model=mlp", "mode=solo", "world_size=2,4") == 2
    assert capsys.readouterr().err == "bench: nothing to run: all of the sweep is left out\n"


def test_an_experiment_plans_what_it_runs_and_what_its_report_expects(bench: Bench) -> None:
    """The rule is one: `plan`, `run` and the report agree on the points of a product with sizes that solo cannot have."""
    found = plan_command.PlannedRuns()
    compose(["experiment=scaling_weak", "model=mlp", "mode=solo,cpu_async"], (), found.job, found.left_out.append)
    expected = planned(Path("anywhere"), "scaling_weak")
    assert expected is not None
    part = {tuple(point) for point in expected.points if point.model == "mlp" and point.mode in ("solo", "cpu_async")}
    assert {(s.model, s.mode, s.world_size, s.seed) for s in found.specs} == part
    assert (found.impossible, len(found.left_out)) == ([], 2)


@pytest.mark.parametrize("bad", ["mode=solo,nonsense", "seed=0,nonsense"])
@pytest.mark.parametrize("planning", [False, True])
def test_a_bad_point_is_refused_before_the_first_run(bad: str, planning: bool) -> None:
    jobs: list[object] = []
    with pytest.raises(UsageError, match="nonsense"):
        compose(["-m", "model=mlp", bad], (), jobs.append, lambda line: None, planning=planning)
    assert len(jobs) == planning  # which trains nothing


def test_the_folder_of_a_sweep_that_is_killed_is_found_by_the_next_one() -> None:
    """By its lock; once one was left for ever."""
    folders: list[Path] = []
    compose(
        ["-m", "model=mlp", "mode=solo", "seed=0,1"],
        (),
        lambda _: folders.extend(path.parent for path in Path(HydraConfig.get().sweep.dir).glob(OWNER)),
        lambda line: None,
    )
    assert len(folders) == 2
    assert not folders[0].exists()


@pytest.mark.parametrize("planning", [False, True])
def test_a_task_sees_of_a_sweep_what_it_sees_by_hydras_entry_point(
    planning: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which composes more often, and copies every point."""

    def seen() -> list[object]:
        points: list[object] = []

        def job(composed: DictConfig) -> None:
            hydra = HydraConfig.get()
            keys = [key for key in composed if key != "hydra"]
            values = OmegaConf.to_container(OmegaConf.masked_copy(composed, keys))
            points.append(
                (values, settings_of(composed), hydra.mode, [*hydra.overrides.task], {*hydra.runtime.choices})
            )

        words = ["-m", "model=mlp,lenet", "mode=nccl_sync,nccl_cadence", "policy.anchor=3"]
        compose(words, (), job, lambda line: None, planning=planning)
        return points

    quick = seen()
    assert len(quick) == 4
    monkeypatch.setattr("bench.config.compose._of_hydra", lambda override: True)
    assert quick == seen()


def test_which_sizes_fit_which_engine() -> None:
    assert {name: ENGINES[name].fits(2) for name in ("solo", "elche", "graph")} == {
        "solo": False,
        "elche": True,
        "graph": True,
    }
    assert all(spec.fits(2) != spec.one_rank for spec in ENGINES.values())
    assert all(spec.fits(1) for spec in ENGINES.values())


def test_a_setting_of_one_policy_is_left_out_where_the_cell_has_another(
    quiet: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("model=mlp", "policy.anchor=20", "train.epochs=1")
    assert quiet("-m", "mode=nccl_sync,nccl_cadence", *words) == 0
    out, err = capsys.readouterr()
    assert err == ""
    left_out = "policy.anchor has no effect in mode=nccl_sync: it is left out, as policy=sync has no such setting"
    assert out.count(left_out) == out.count("left out") == 1
    runs = {run.metrics.mode: run for run in find_runs(Path("runs"))[0]}
    policies = {mode: read_object(run.path / "config.json")["policy"] for mode, run in runs.items()}
    assert policies["nccl_cadence"]["anchor"] == 20
    assert policies["nccl_sync"] == {"name": "sync"}


@pytest.mark.parametrize(
    "words", [("mode=nccl_sync",), ("-m", "mode=nccl_sync,cpu_sync"), ("plan", "-m", "mode=nccl_sync", "seed=0,1")]
)
def test_a_setting_that_no_cell_has_is_a_mistake(
    quiet: Bench, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert quiet(*words, "model=mlp", "policy.anchor=20") == 2
    assert "policy.anchor is no setting of the chosen policy" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("modes", "setting", "without"),
    [
        ("mode=nccl_async,cpu_async", "policy.max_overshoot=4", 0),
        ("mode=nccl_qsr,cpu_qsr", "policy.base=8", 0),
        ("mode=nccl_cadence,nccl_async", "policy.max_overshoot=4", 1),
    ],
)
@pytest.mark.parametrize("more", [(), ("hydra/launcher=basic",)])  # which starts Hydra by its entry point
def test_a_fixed_setting_need_not_be_one_of_the_default_policy(
    modes: str, setting: str, without: int, more: tuple[str, ...]
) -> None:
    """Hydra set it before it chose a mode."""
    points: list[object] = []
    key, _, value = setting.partition("=")

    def job(composed: DictConfig) -> None:
        points.append(composed.policy.get(key.partition(".")[2]))

    compose(["-m", "model=mlp", modes, setting, *more], (), job, lambda line: None)
    assert points == [None] * without + [int(value)] * (2 - without)


def test_a_fixed_setting_of_an_experiment_need_not_be_one_of_the_default_policy(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    sweep = "hydra: {mode: MULTIRUN, sweeper: {params: {mode: 'nccl_async,cpu_async'}}}\n"
    (tmp_path / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{sweep}")
    points: list[object] = []
    words = ["-cd", str(tmp_path), "experiment=mine", "model=mlp", "policy.max_overshoot=4"]
    compose(words, (), lambda composed: points.append(composed.policy.max_overshoot), lambda line: None)
    assert points == [4, 4]
    with pytest.raises(UsageError, match=r"policy\.max_overshoot is no setting of the chosen policy"):
        compose([*words, "mode=nccl_sync"], (), lambda composed: points.append(composed), lambda line: None)


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ("policy.max_overshot=4", "did you mean 'policy.max_overshoot'"),
        ("policy.max_overshoot=x", "policy.max_overshoot=x"),
        ("policy.base=8", "policy.base is no setting of the chosen policy"),
    ],
)
def test_a_fixed_setting_that_no_point_can_have_is_refused_before_the_first_run(setting: str, why: str) -> None:
    jobs: list[object] = []
    words = ["-m", "model=mlp", "mode=nccl_async,cpu_async"]
    with pytest.raises(UsageError, match=why):
        compose([*words, setting], (), lambda composed: jobs.append(composed), lambda line: None)
    assert jobs == []


def test_a_launcher_that_lost_a_process_is_no_defect_of_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results of the others were dropped, and a traceback asked to report it."""
    words = ["-m", "model=mlp", "mode=solo", "seed=0,1", "hydra/launcher=joblib"]
    lost = type("UncompletedJobError", (RuntimeError,), {})
    errors = iter([BrokenProcessPool("a worker was killed"), lost("no output"), RuntimeError("a defect")])

    def start(task: PointTask, words: list[str]) -> None:
        (task.folder / "1.result").write_bytes(pickle.dumps("of another process"))
        raise next(errors)

    monkeypatch.setattr("bench.config.compose._start", start)
    for _ in range(2):
        told: list[object] = []
        compose(words, (), lambda composed: None, told.append, told.append)
        assert told == ["of another process", LostPoint("sweep", WORKER_KILLED)]
    with pytest.raises(RuntimeError, match="a defect"):
        compose(words, (), lambda composed: None, lambda line: None)

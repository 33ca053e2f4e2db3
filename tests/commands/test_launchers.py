"""Sweeps in processes that a launcher of Hydra starts, and a sweeper that searches: the plug-ins as they are published."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import psutil
import pytest

from bench.results import sweep_file
from bench.results.lease import in_making
from bench.results.runfolder import find_runs
from tests.bench.dashboard.dashboards import until
from tests.slow import slow
from tests.warm import PICTURES, Warm, wait_for

CELL = ("model=mlp", "mode=solo", "data.name=digits", "train.epochs=1", "validate=false", "report=false", "audit=false")
SWEEP = ("-m", "bench", "-m", *CELL, "world_size=1,2")


def results(folder: Path) -> dict[str, str | None]:
    """Return run -> digest of its parameters."""
    return {run.metrics.run_id: run.metrics.params_sha256 for run in find_runs(folder / "runs")[0]}


@pytest.fixture(scope="module")
def reference(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, str | None], str]:
    """What the sweep makes in the command's own process: runs, and what is said of points that are none."""
    folder = tmp_path_factory.mktemp("alone")
    code, out, err = warm.start(folder, *SWEEP, "seed=0,1,-1", env={PICTURES: "none"}).result()
    assert code == 2
    assert err.count("must be 0 or more") == 1
    assert out.count("left out") == 3
    return results(folder), err


@pytest.mark.parametrize(
    ("launcher", "seeds"),
    [
        ("hydra/launcher=joblib hydra.launcher.n_jobs=2", "0,1,-1"),
        *slow(("hydra/launcher=submitit_local", "1,-1")),  # a process that imports all for each
        ("timing=off", "0,1,-1"),
    ],
)
def test_processes_of_a_launcher_train_the_same(
    warm: Warm, tmp_path: Path, launcher: str, seeds: str, reference: tuple[dict[str, str | None], str]
) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2]), PICTURES: "none"}
    process = warm.start(tmp_path, *SWEEP, f"seed={seeds}", *launcher.split(), env=environment)
    code, out, err = process.result()
    runs, said = reference
    assert code == 2, err
    named = [line.replace(" timing=off:", ":") for line in err.splitlines() if line.startswith("bench:")]
    assert named == said.splitlines()
    count = seeds.count(",")
    assert out.count("left out") == count + 1
    table = ["mlp", "solo", f"{count}", f"{count}", "ok"]
    assert sum(line.split()[:5] == table for line in out.splitlines()) == 1  # the sweep's table
    trained = {run: digest for run, digest in runs.items() if run.split("-")[1].removeprefix("s") in seeds.split(",")}
    assert results(tmp_path) == trained
    assert len(trained) == count


@pytest.mark.parametrize("launcher", [*slow("hydra/launcher=joblib hydra.launcher.n_jobs=2"), "timing=off"])
def test_an_end_of_the_command_ends_a_launchers_processes(warm: Warm, tmp_path: Path, launcher: str) -> None:
    words = (*CELL, "train.epochs=900", "seed=0,1", *launcher.split(), "checkpoint.spacing_s=0.1")
    process = warm.start(tmp_path, "-m", "bench", "-m", *words, env={"PYTHONUNBUFFERED": "1"})
    try:
        assert wait_for(lambda: len(list(tmp_path.glob("runs/mlp/solo/.tmp-*/checkpoints/0*"))) >= 2, process)
        beside = launcher == "timing=off"  # for the dashboard: this command knows how many there are
        assert sweep_file.read(tmp_path / "runs") == ({"planned": 2, "over": 0, "seconds": None} if beside else None)
        others = psutil.Process(process.pid).children(recursive=True)
        psutil.Process(process.pid).send_signal(signal.SIGTERM)
        assert process.wait(20) == 130
        assert not (tmp_path / "runs" / sweep_file.SWEEP).exists()
        assert until(lambda: not [each for each in others if each.is_running() and each.status() != "zombie"], 20)
    finally:
        process.kill_all()


def test_a_cell_whose_process_is_killed_is_named_and_the_others_are_trained(warm: Warm, tmp_path: Path) -> None:
    words = (*CELL, "train.epochs=12", "seed=0,1,2", "timing=off", "checkpoint.spacing_s=0.1")
    process = warm.start(tmp_path, "-m", "bench", "-m", *words, env={PICTURES: "none"})
    try:
        begun = wait_for(lambda: list(tmp_path.glob("runs/mlp/solo/.tmp-w1-s0-*/checkpoints/0*")), process)
        own = in_making(begun[0].parents[1])
        assert own
        psutil.Process(own.pid).kill()
        code, out, err = process.result()
    finally:
        process.kill_all()
    assert code == 5, out + err
    assert "seed=0 timing=off checkpoint.spacing_s=0.1: its process ended with exit code -9" in err
    assert [run.metrics.seed for run in find_runs(tmp_path / "runs")[0]] == [1, 2]


@pytest.mark.parametrize("launcher", [*slow("hydra/launcher=joblib hydra.launcher.n_jobs=2"), "timing=off"])
def test_a_run_that_is_asked_for_twice_is_trained_once(warm: Warm, tmp_path: Path, launcher: str) -> None:
    """Two processes trained it side by side."""
    words = (*CELL, "seed=0,0", "force=true", *launcher.split())
    code, out, err = warm.start(tmp_path, "-m", "bench", "-m", *words, env={PICTURES: "none"}).result()
    assert (code, err) == (0, ""), out
    assert out.count("asked for more than once, trained once") == 1
    assert sum(line.split()[:5] == ["mlp", "solo", "1", "1", "ok"] for line in out.splitlines()) == 1


def test_a_search_finds_a_good_learning_rate(warm: Warm, tmp_path: Path) -> None:
    """A thousandth of it learns nothing in an epoch, a hundred times as much does not either."""
    search = (
        "hydra/sweeper=optuna",
        "hydra.sweeper.n_trials=6",
        "hydra.sweeper.n_jobs=1",
        "hydra.sweeper.sampler.seed=0",
    )
    words = (*CELL, *search, "train.lr=tag(log,interval(0.00001,10))")
    code, out, err = warm.start(tmp_path, "-m", "bench", "-m", *words, env={PICTURES: "none"}).result()
    assert code == 0, err
    runs = find_runs(tmp_path / "runs")[0]
    rates = {json.loads((run.path / "config.json").read_text())["train"]["lr"]: run.metrics.final.eval for run in runs}
    assert len(rates) == 6
    best = max(rates, key=lambda lr: rates[lr] or 0.0)
    assert 1e-3 < best < 1
    assert (rates[best] or 0.0) > 0.95 > 0.5 > min(value or 0.0 for value in rates.values())
    assert f"best      train.lr={best}" in out


def test_a_search_has_no_plan(warm: Warm, tmp_path: Path) -> None:
    words = ("plan", "-m", *CELL, "hydra/sweeper=optuna", "train.lr=interval(0.1,1)")
    code, _, err = warm.start(tmp_path, "-m", "bench", *words).result()
    assert code == 2
    assert "there is no plan of it" in err
    code, _, err = warm.start(tmp_path, "-m", "bench", "-m", *CELL, "train.lr=interval(0.1,1)").result()
    assert code == 2
    assert "for sweepers that search, as in hydra/sweeper=optuna" in err

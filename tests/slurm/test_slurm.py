"""Runs and sweeps on a SLURM of two nodes that is this host: `make slurm`. No sacct, no names that resolve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.slurm_cluster import Cluster, Unavailable, cluster
from tests.api.test_launched import SCRIPT
from tests.warm import ROOT

pytestmark = [
    pytest.mark.skipif(os.environ.get("SLURM") != "all", reason="make slurm does it"),
    pytest.mark.timeout(500),
]
CELL = ("model=mlp", "mode=nccl_sync", "data.name=digits", "train.epochs=1")
QUIET = ("report=false", "validate=false", "audit=false")
BENCH = (sys.executable, "-P", "-m", "bench")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    try:
        with cluster(tmp_path_factory.mktemp("cluster")) as made:
            yield made
    except Unavailable as error:
        pytest.skip(str(error))


def variables(slurm: Cluster) -> dict[str, str]:
    return slurm.environment | {"PYTHONPATH": str(ROOT), "DDP_KEY": "k" * 32, "OMP_NUM_THREADS": "1"}


def done(slurm: Cluster, folder: Path, *words: str) -> str:
    """Run a command beside the cluster; return what it printed."""
    answer = subprocess.run(words, cwd=folder, env=variables(slurm), capture_output=True, text=True, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Run folder, below the tree -> its result."""
    files = sorted((folder / "runs").glob("*/*/w*/metrics.json"))
    return {str(file.parent.relative_to(folder)): json.loads(file.read_text()) for file in files}


def until(there: Callable[[], Any], timeout_s: float = 200.0) -> Any:
    """Wait for something that is true."""
    deadline = time.monotonic() + timeout_s
    while not (value := there()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.2)
    return value


def hasten(slurm: Cluster) -> None:
    """Have requeued jobs begin: SLURM lets them wait for two minutes, and revokes what begins in the second of the
    requeue."""
    lines = [line.split(maxsplit=2) for line in slurm.run("squeue", "-h", "--array", "-o", "%A %T %r").splitlines()]
    if waiting := [job for job, state, reason in lines if state == "PENDING" and reason == "BeginTime"]:
        time.sleep(2.0)
        for job in waiting:
            with suppress(subprocess.CalledProcessError):
                slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now")


def ours(slurm: Cluster, node: str = "") -> list[psutil.Process]:
    """Processes of the cluster's jobs, on a node."""
    there = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            about = process.environ()
            mine = about.get("SLURM_CONF") == slurm.environment["SLURM_CONF"] and "SLURM_JOB_ID" in about
            if mine and about.get("SLURMD_NODENAME", "").startswith(node):
                there.append(process)
    return there


def test_two_nodes_train_the_bits_of_one(slurm: Cluster, tmp_path: Path) -> None:
    """The command; its host map has both nodes, whose names resolve to nothing."""
    done(slurm, tmp_path, "srun", "-N2", "-n2", *BENCH, *CELL, *QUIET)
    (remote,) = results(tmp_path).values()
    alone = tmp_path / "alone"
    alone.mkdir()
    done(slurm, alone, *BENCH, *CELL, *QUIET)
    (local,) = results(alone).values()
    assert remote["params_sha256"] == local["params_sha256"]
    assert remote["run_id"] == local["run_id"]
    assert remote["launcher"]["hosts"] == ["n1", "n2"]
    assert remote["launcher"]["name"] == "slurm"
    assert remote["launcher"]["job"].isdecimal()
    assert 0.0 == remote["launcher"]["clock_error_s"][0] <= remote["launcher"]["clock_error_s"][1] < 1.0
    assert any("SLURM gave 1 of" in line for line in remote["warnings"]) == ((os.cpu_count() or 1) > 1)
    assert local["launcher"] is None


def test_a_script_trains_the_same_bits(slurm: Cluster, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    out = done(slurm, tmp_path, "srun", "-N2", "-n2", sys.executable, "script.py")
    (tmp_path / "alone.py").write_text(
        SCRIPT.replace("batch_size=8,", "batch_size=8, world_size=2,").replace("'runs'", "'own'")
    )
    local = done(slurm, tmp_path, sys.executable, "alone.py")
    assert sorted(out.splitlines()) == sorted([*local.splitlines(), "top level"])


@pytest.mark.parametrize(
    "kept", [("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"), ()], ids=["few", "all else"]
)
def test_all_ranks_are_refused_where_their_step_is_hidden(
    slurm: Cluster, tmp_path: Path, kept: tuple[str, ...]
) -> None:
    """As in a container that is passed some of SLURM's variables. Before, rank 0 trained alone."""
    hide = (
        "[n for n in os.environ if n.startswith('SLURM_') and " + (f"n not in {kept}" if kept else "'STEP' in n") + "]"
    )
    code = (
        f"import os, sys\nfor name in {hide}: del os.environ[name]\nos.execv(sys.executable, [*{BENCH}, *sys.argv[1:]])"
    )
    words = ("srun", "-N2", "-n2", sys.executable, "-c", code, *CELL, *QUIET)
    began = time.monotonic()
    answer = subprocess.run(words, cwd=tmp_path, env=variables(slurm), capture_output=True, text=True, timeout=100)
    assert answer.returncode
    for rank in range(2):
        assert (
            f"slurm: SLURM_PROCID is {rank}, but SLURM_STEP_ID is not set: start the ranks with srun" in answer.stderr
        )
    assert time.monotonic() - began < 60
    assert not results(tmp_path)


def submitted(slurm: Cluster, folder: Path, *words: str) -> Path:
    """Submit a sweep; return its folder."""
    done(slurm, folder, *BENCH, "-m", *words, *QUIET, "launch=slurm", "launch.wait=false")
    (sweep,) = (folder / "runs").glob(".slurm-*")
    return sweep


def test_an_array_whose_node_is_killed_has_the_digests_of_one_that_is_not(slurm: Cluster, tmp_path: Path) -> None:
    """Twelve cells in four tasks; one node goes with all that runs there, and comes back."""
    words = ("model=mlp", "mode=solo", "data.name=digits", f"seed={','.join(map(str, range(12)))}", "train.epochs=2")
    sweep = submitted(slurm, tmp_path, *words, "launch.cells=3", "launch.exclusive=false")
    killed = until(lambda: ours(slurm, "n2"))
    slurm.processes["n2"].kill()
    slurm.processes.pop("n2").wait(10)
    for process in killed:
        with suppress(psutil.Error):
            parent = process.parent()
            if parent is not None and "slurmstepd" in parent.name():
                parent.kill()
            process.kill()
    slurm.start_node("n2")

    def over() -> bool:
        hasten(slurm)
        return len(list(sweep.glob("*.json"))) == 13

    until(over, 400.0)
    assert "12 of 12 cells done, 0 of them failed" in done(slurm, tmp_path, *BENCH, "status")
    found = results(tmp_path)
    assert len(found) == 12
    alone = tmp_path / "alone"
    alone.mkdir()
    done(slurm, alone, *BENCH, "-m", *words, *QUIET)
    local = results(alone)
    assert {place: each["params_sha256"] for place, each in found.items()} == {
        place: each["params_sha256"] for place, each in local.items()
    }
    again = done(slurm, tmp_path, *BENCH, "-m", *words, *QUIET, "launch=slurm")
    assert "12 cells, 0 left to do" in again


def test_hydras_own_launcher_trains_the_same_bits(slurm: Cluster, tmp_path: Path) -> None:
    """A job a cell, without sacct: Hydra's launcher waits for the files of its jobs."""
    words = ("model=mlp", "mode=solo", "data.name=digits", "seed=0,1", "train.epochs=1")
    launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.timeout_min=5", "hydra.launcher.cpus_per_task=1")
    done(slurm, tmp_path, *BENCH, "-m", *words, *QUIET, *launcher)
    found, alone = results(tmp_path), tmp_path / "alone"
    alone.mkdir()
    done(slurm, alone, *BENCH, "-m", *words, *QUIET)
    assert len(found) == 2
    assert {place: each["params_sha256"] for place, each in found.items()} == {
        place: each["params_sha256"] for place, each in results(alone).items()
    }
    assert len({each["launcher"]["job"] for each in found.values()}) == 2


LONG = ("model=mlp", "mode=nccl_sync", "train.epochs=400", "checkpoint.spacing_s=0.1")


def test_a_cancelled_sweep_leaves_nothing(slurm: Cluster, tmp_path: Path) -> None:
    submitted(slurm, tmp_path, *LONG, "seed=0,1", "launch.cells=1", "launch.exclusive=false")
    until(lambda: list((tmp_path / "runs").glob("mlp/*/.tmp-*/checkpoints/0*")))
    owners = [process.pid for process in ours(slurm)]
    done(slurm, tmp_path, *BENCH, "cancel")
    until(lambda: not ours(slurm), 40.0)
    assert not list((tmp_path / "runs").glob("mlp/*/.tmp-*"))
    assert not [folder for pid in owners for folder in Path("/dev/shm").glob(f"ddp-run-{pid}-*")]


def test_a_cancelled_task_stays_away_and_another_comes_back_alone(slurm: Cluster, tmp_path: Path) -> None:
    """By scancel, not by our own command. The last element of an array has the number of the array."""
    sweep = submitted(slurm, tmp_path, *LONG, "seed=0,1", "launch.cells=1", "launch.exclusive=false")
    job = json.loads((sweep / "sweep.json").read_text())["job"]

    def tasks() -> dict[str, str]:
        lines = slurm.run("squeue", "-h", "--array", "-o", "%i %T").splitlines()
        return dict(line.split() for line in lines if line.startswith(f"{job}_"))

    until(lambda: len(list((tmp_path / "runs").glob("mlp/*/.tmp-*/checkpoints/0*"))) > 1 and len(ours(slurm)) > 1)
    slurm.run("scancel", f"{job}_0")
    until(lambda: f"{job}_0" not in tasks(), 60.0)
    assert tasks() == {f"{job}_1": "RUNNING"}
    task = "submitit.core._submit"
    (waiting,) = [each for each in ours(slurm) if task in each.cmdline() and each.name().startswith("python")]
    waiting.send_signal(signal.SIGUSR1)
    until(lambda: tasks().get(f"{job}_1") == "PENDING", 60.0)
    time.sleep(2.0)
    assert tasks() == {f"{job}_1": "PENDING"}
    done(slurm, tmp_path, *BENCH, "cancel")


def test_a_task_that_is_requeued_three_times_goes_on_each_time(slurm: Cluster, tmp_path: Path) -> None:
    words = [word.replace("400", "40") for word in LONG]
    sweep = submitted(slurm, tmp_path, *words, "seed=0", "launch.exclusive=false")
    job = json.loads((sweep / "sweep.json").read_text())["job"]
    for restart in range(1, 4):
        until(lambda: list((tmp_path / "runs").glob("mlp/*/.tmp-*/checkpoints/0*")))
        slurm.run("scontrol", "requeue", job)

        def running(restart: int = restart) -> bool:
            hasten(slurm)
            text = slurm.run("scontrol", "show", "job", job)
            return f"Restarts={restart}" in text and "JobState=RUNNING" in text

        until(running, 120.0)
    until(lambda: (sweep / "0.json").exists(), 300.0)
    (result,) = results(tmp_path).values()
    assert (result["status"], result["restarts"], result["launcher"]["job"]) == ("ok", 3, job)
    assert result["resumed"] is not None


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
def test_a_signal_before_the_end_of_a_tasks_time_makes_a_checkpoint_and_has_it_requeued(
    slurm: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    """No checkpoint is due. submitit waits for SIGUSR2; here both are sent by hand."""
    words = ("model=mlp", "mode=nccl_cadence", "train.epochs=12", "checkpoint.spacing_s=1000", "seed=3")
    sweep = submitted(slurm, tmp_path, *words, "launch.exclusive=false")
    job = json.loads((sweep / "sweep.json").read_text())["job"]
    logs = (tmp_path / "runs").glob
    until(lambda: [each for each in logs("mlp/*/.tmp-*/training.log") if "loss" in each.read_text()])
    assert not list(logs("mlp/*/.tmp-*/checkpoints/0*"))
    task = "submitit.core._submit"
    (waiting,) = [each for each in ours(slurm) if task in each.cmdline() and each.name().startswith("python")]
    waiting.send_signal(number)
    until(lambda: "Restarts=1" in slurm.run("scontrol", "show", "job", job), 60.0)

    def over() -> bool:
        hasten(slurm)
        return (sweep / "0.json").exists()

    until(over)
    (result,) = results(tmp_path).values()
    assert (result["status"], result["restarts"]) == ("ok", 1)
    assert result["resumed"] is not None


def test_a_run_on_two_nodes_has_a_key_of_its_own(slurm: Cluster, tmp_path: Path) -> None:
    words = ("launch=slurm", "launch.nodes=2", "launch.exclusive=false")
    out = done(slurm, tmp_path, "env", "--unset=DDP_KEY", *BENCH, *CELL, *QUIET, *words)
    assert "1 of 1 cells done, 0 of them failed" in out
    (result,) = results(tmp_path).values()
    assert result["launcher"]["hosts"] == ["n1", "n2"]
    assert f"results   {next(iter(results(tmp_path)))}" in out

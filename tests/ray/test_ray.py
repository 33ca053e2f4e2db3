"""Runs and sweeps on a cluster of Ray's, two raylets on this host, of which some are killed: `make ray`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from bench.results.lease import in_making
from benchmarks.ray_cluster import NoRay, RayCluster, ray_cluster
from tests.slurm.test_slurm import BENCH, CELL, QUIET, results, until
from tests.warm import ROOT

pytestmark = [
    pytest.mark.skipif(os.environ.get("RAY") != "all", reason="make ray does it"),
    pytest.mark.timeout(1000),
    pytest.mark.filterwarnings("default"),  # of Ray's own
]
PATIENCE_S = 600.0
LONG = ("model=mlp", "mode=nccl_sync", "checkpoint.spacing_s=0.1")
STRICT = (*LONG, "train.epochs=15", "world_size=2", "cluster.tolerate_loss=false")


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    try:
        with ray_cluster() as made:
            yield made
    except NoRay as error:
        pytest.skip(str(error))


def begun(cluster: RayCluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command, whose ranks compute as those of a command without Ray do."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = (*BENCH, *words, *(() if words[0] in ("status", "cancel") else QUIET))
    if "launch=ray" in words:
        words = (*words, f"launch.address={cluster.address}")
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def done(cluster: RayCluster, folder: Path, *words: str) -> str:
    """Run a command; return what it printed."""
    folder.mkdir(exist_ok=True)
    return ended(begun(cluster, folder, *words))


def ended(process: subprocess.Popen[str], code: int = 0) -> str:
    """Return what a command printed until its end, with this code."""
    out, _ = process.communicate(timeout=900)
    assert process.returncode == code, out
    return out


def commands(raylet: str | None = None) -> list[psutil.Process]:
    """Processes of the project that actors have started, those of one raylet or all."""
    there = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            about = process.environ()
            if "DDP_JOB" in about and raylet in (None, about.get("RAY_RAYLET_PID")):
                there.append(process)
    return there


def in_mid_cell(folder: Path, raylet: str) -> bool:
    """Tell whether a raylet has a run that has a checkpoint, and goes on."""
    here = {process.pid for process in commands(raylet)}
    saved = folder.glob("runs/mlp/*/.tmp-*/checkpoints/0*")
    return any((own := in_making(each.parents[1])) is not None and own.pid in here for each in saved)


def digests(folder: Path) -> dict[str, str]:
    return {place: each["params_sha256"] for place, each in results(folder).items()}


def memory_of(owners: set[int]) -> list[Path]:
    """Folders of shared memory that processes have left."""
    return [folder for pid in owners for folder in Path("/dev/shm").glob(f"ddp-run-{pid}-*")]


def test_two_raylets_train_the_bits_of_one_process(cluster: RayCluster, tmp_path: Path) -> None:
    done(cluster, tmp_path, *CELL, "launch=ray", "launch.nodes=2")
    done(cluster, tmp_path / "alone", *CELL)
    (remote,), (local,) = results(tmp_path).values(), results(tmp_path / "alone").values()
    assert digests(tmp_path) == digests(tmp_path / "alone")
    launcher = remote["launcher"]
    assert (launcher["name"], launcher["hosts"]) == ("ray", [os.uname().nodename] * 2)
    assert launcher["job"].startswith("ray-")
    assert 0.0 == launcher["clock_error_s"][0] <= launcher["clock_error_s"][1] < 1.0
    assert (remote["restarts"], local["launcher"]) == (0, None)


def test_a_sweep_whose_raylet_is_killed_has_the_digests_of_one_that_is_not(cluster: RayCluster, tmp_path: Path) -> None:
    """Twelve cells; Ray restarts the actors of the killed one on the other."""
    words: tuple[str, ...] = ("-m", "model=mlp", "mode=solo", f"seed={','.join(map(str, range(12)))}")
    words = (*words, "train.epochs=12", "checkpoint.spacing_s=0.1")
    sweep = begun(cluster, tmp_path, *words, "launch=ray")
    try:
        raylet = cluster.raylet(1)
        until(lambda: in_mid_cell(tmp_path, raylet), PATIENCE_S)
        cluster.kill(1)
        until(lambda: not commands(raylet), 60.0)
        assert "12 of 12 cells done, 0 of them failed" in ended(sweep)
    finally:
        sweep.kill()
        cluster.replace(1)
    done(cluster, tmp_path / "alone", *words)
    assert digests(tmp_path) == digests(tmp_path / "alone")
    assert len(digests(tmp_path)) == 12
    gone_on = [each for each in results(tmp_path).values() if each["restarts"]]
    assert gone_on
    assert any(each["resumed"] for each in gone_on)
    assert "12 cells, 0 left to do" in done(cluster, tmp_path, *words, "launch=ray")


@pytest.fixture(scope="module")
def undisturbed(cluster: RayCluster, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The digests of `STRICT` without Ray."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done(cluster, folder, *STRICT)
    return digests(folder)


@pytest.mark.parametrize(("lost", "words"), [(0, STRICT), (1, (*LONG, "train.epochs=30"))])
def test_a_cell_over_two_raylets_goes_on_once_the_killed_one_is_replaced(
    cluster: RayCluster, tmp_path: Path, undisturbed: dict[str, str], lost: int, words: tuple[str, ...]
) -> None:
    """Where the head's is lost, with the bits of a run that nothing befell; else it trains on alone."""
    sweep = begun(cluster, tmp_path, *words, "launch=ray", "launch.nodes=2")
    try:
        first, second = (cluster.raylet(node) for node in range(2))
        until(lambda: in_mid_cell(tmp_path, first) or in_mid_cell(tmp_path, second), PATIENCE_S)
        head = 0 if in_mid_cell(tmp_path, first) else 1
        owners = {process.pid for process in commands()}
        cluster.kill(head ^ lost)
        cluster.replace(head ^ lost)
        assert "1 of 1 cells done, 0 of them failed" in ended(sweep)
    finally:
        sweep.kill()
    (result,) = results(tmp_path).values()
    assert (result["status"], result["launcher"]["name"]) == ("ok", "ray")
    assert result["restarts"] == 1
    assert result["resumed"] is not None
    assert lost or digests(tmp_path) == undisturbed
    until(lambda: not commands(), 60.0)
    assert not memory_of(owners)


def test_a_cancelled_sweep_leaves_nothing(cluster: RayCluster, tmp_path: Path) -> None:
    sweep = begun(cluster, tmp_path, "-m", *LONG, "seed=0,1", "train.epochs=400", "launch=ray", "launch.cpus=2")
    try:
        until(lambda: len(list(tmp_path.glob("runs/mlp/*/.tmp-*/checkpoints/0*"))) >= 2, PATIENCE_S)
        owners = {process.pid for process in commands()}
        assert "under way" in ended(begun(cluster, tmp_path, "status"))
        assert "0 of 2 cells done" in ended(begun(cluster, tmp_path, "cancel"))
        ended(sweep, 130)
    finally:
        sweep.kill()
    until(lambda: not commands(), 60.0)
    assert not list(tmp_path.glob("runs/mlp/*/.tmp-*"))
    assert not memory_of(owners)

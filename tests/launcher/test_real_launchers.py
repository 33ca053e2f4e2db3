"""Launchers themselves, not their variables alone: mpirun where it is installed, and two agents of torchrun on this host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.test_launched import SCRIPT, free_port
from tests.warm import ROOT, Warm

pytestmark = pytest.mark.timeout(300)
CELL = ("model=mlp", "mode=nccl_sync", "data.name=digits", "train.epochs=1")
QUIET = ("report=false", "validate=false", "audit=false")
PLACES = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
FOUND = shutil.which("mpirun", path=PLACES) or ""
OPEN_MPI = (
    ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none")
    if Path(FOUND).with_name("ompi_info").exists()
    else ()
)
MPIRUN = (FOUND, *OPEN_MPI, "-np", "2", sys.executable, "-P")
needs_mpirun = pytest.mark.skipif(not MPIRUN[0], reason="mpirun is not installed: the package mpich has it")
BARE = SCRIPT.replace(", output='runs', name='net', audit=False", "")
TWICE = SCRIPT.replace("state =", "second = trainer(epochs=1, output='runs', name='second', audit=False)\nstate =") + (
    "second.run().join()\n"
    "try:\n    trainer(epochs=1, output='runs', name='again', audit=False).run()\n"
    "except ValueError as error:\n    print(error)\n"
)


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a launcher in a folder."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "DDP_KEY": "k" * 32, "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def ended(process: subprocess.Popen[str]) -> str:
    """Return what it printed until its end, which is a good one."""
    try:
        out, _ = process.communicate(timeout=240)
    finally:
        process.kill()
    assert process.returncode == 0, out
    return out


def result(folder: Path, name: str = "*") -> dict[str, object]:
    """The result of the one run there."""
    (file,) = folder.glob(f"runs/{name}/*/w2-*/metrics.json")
    made: dict[str, object] = json.loads(file.read_text())
    return made


def alone(warm: Warm, folder: Path) -> str:
    """What the script prints of its parameters where it forks its two ranks."""
    folder.mkdir()
    (folder / "script.py").write_text(BARE.replace("batch_size=8,", "batch_size=8, world_size=2,"))
    code, out, err = warm.start(folder, "script.py").result(240.0)
    assert code == 0, err
    return out.splitlines()[-1]


@pytest.mark.slow
@needs_mpirun
def test_two_processes_of_mpirun_train_the_bits_of_one_command(tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    ended(started(tmp_path, *MPIRUN, "-m", "bench", *CELL, *QUIET))
    ended(started(tmp_path / "alone", sys.executable, "-P", "-m", "bench", *CELL, *QUIET, "world_size=2"))
    ours, theirs = result(tmp_path), result(tmp_path / "alone")
    assert ours["params_sha256"] == theirs["params_sha256"]
    launcher = ours["launcher"]
    assert isinstance(launcher, dict)
    assert (launcher["name"], launcher["hosts"]) == ("mpi", [os.uname().nodename] * 2)


@needs_mpirun
def test_a_script_trains_in_two_processes_of_mpirun(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(BARE)
    out = ended(started(tmp_path, *MPIRUN, "script.py"))
    assert alone(warm, tmp_path / "alone") in out.splitlines()


@pytest.mark.slow
def test_two_trainers_of_a_script_train_under_two_agents_of_torchrun_and_a_later_one_is_refused(
    warm: Warm, tmp_path: Path
) -> None:
    """Each agent has a rank and passes for a host."""
    (tmp_path / "script.py").write_text(TWICE)
    words = (*("-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"), f"--master-port={free_port()}")
    agents = [
        started(tmp_path, sys.executable, "-P", *words, "--master-addr=127.0.0.1", f"--node-rank={node}", "script.py")
        for node in range(2)
    ]
    outs = [ended(agent) for agent in agents]
    lines = outs[0].splitlines()
    assert alone(warm, tmp_path / "alone") in lines
    assert result(tmp_path, "net")["status"] == "ok"
    assert result(tmp_path, "second")["status"] == "ok"
    assert any("give it a script of its own" in line for line in lines)

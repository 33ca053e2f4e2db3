"""What `launch=slurm` and `launch=ray` take from a command line, and how cells become tasks. No scheduler."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from bench.base.environment import launched_by, shared_cores
from bench.base.usage import UsageError
from bench.command.sweeps import submitted
from bench.config.launch_settings import RaySettings, SlurmSettings, batches, taken
from bench.results.analyze import _host
from bench.runner.ray_rank import ActorPlace, RayRank, variables
from bench.runner.slurm_batch import CellBatch, requeue
from bench.runner.submitted_cell import result_file
from ddp.core.messages.events import Ready
from ddp.launcher.environment import read


def test_settings_are_taken_and_other_words_stay() -> None:
    words = ["-m", "model=mlp", "launch=slurm", "launch.cells=3", "launch.exclusive=false", "launch.partition=gpu"]
    assert taken(words) == (SlurmSettings(cells=3, exclusive=False, partition="gpu"), ["-m", "model=mlp"])
    assert taken(["launch=ray", "launch.nodes=2", "launch.gpus=0"]) == (RaySettings(nodes=2, gpus=0), [])
    assert taken(["model=mlp"]) == (None, ["model=mlp"])


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["launch=pbs"], "launch=slurm or launch=ray is what there is"),
        (["launch.cells=3"], "without launch=slurm"),
        (["launch=slurm", "launch.cell=3"], "did you mean launch.cells"),
        (["launch=slurm", "launch.cells=0"], "must be 1 or more"),
        (["launch=slurm", "launch.cells=x"], "must be a whole number"),
        (["launch=slurm", "launch.cells=-1"], "must be a whole number, 0 or more"),
        (["launch=slurm", f"launch.minutes={10**22}"], "must be 1,000,000 or less"),
        (["launch=slurm", "launch.wait=1"], "must be true or false"),
        (["launch=ray", "launch.wait=false"], "no setting of launch=ray"),
        (["launch=ray", "launch.at_once=0"], "must be 1 or more"),
        (["launch=slurm", "launch.ranks=2"], "on one host, whose ranks are forked"),
        (["launch=slurm", "launch.minutes=1"], "set launch.minutes=2 or more"),
        (["launch=slurm", "launch.signal_s=3600"], "set launch.minutes=61 or more"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        taken(words)


def test_cells_come_in_batches() -> None:
    assert batches(range(5), 2) == [[0, 1], [2, 3], [4]]
    assert batches([], 2) == []


def test_a_batch_leaves_a_result_for_each_cell_and_does_none_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is killed, as by the kernel when there is no memory, keeps no other one from its turn."""
    runner = tmp_path / "python"
    runner.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\ncase "$*" in *seed=1*) exit 5;; *seed=3*) kill -9 $$;; esac\n'
    )
    runner.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(runner))
    monkeypatch.setattr("bench.runner.slurm_batch.ALSO_S", 0.0)
    result_file(tmp_path, 2).write_text('{"code": 0}')
    CellBatch(str(tmp_path), str(tmp_path), [(number, [f"seed={number}"]) for number in (3, 0, 1, 2)])()
    codes = [json.loads(result_file(tmp_path, number).read_text())["code"] for number in range(4)]
    assert codes == [0, 5, 0, 5]
    assert [line.split()[4] for line in (tmp_path / "calls").read_text().splitlines()] == ["seed=3", "seed=0", "seed=1"]


def test_a_sweep_stands_as_its_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """There may be no squeue where it is asked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="no sweep was submitted from there"):
        submitted.status(tmp_path)
    folder = tmp_path / ".slurm-1"
    folder.mkdir()
    (folder / submitted.SWEEP).write_text(json.dumps({"job": "7", "cells": [["a"], ["b"], ["c"]], "tasks": 1}))
    result_file(folder, 0).write_text('{"code": 0}')
    result_file(folder, 2).write_text('{"code": 5}')
    assert submitted.status(tmp_path) == 5
    assert "job 7: 2 of 3 cells done, 1 of them failed; tasks: squeue does not answer" in capsys.readouterr().out


def test_a_host_that_is_shared_is_told_and_the_job_is_named() -> None:
    job = {"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "2"}
    assert "SLURM gave 2 of 4 cores" in str(shared_cores(job, 4))
    assert shared_cores(job, 2) is None
    assert shared_cores({}, 4) is None
    about = {"name": "slurm", "job": "7", "hosts": [os.uname().nodename], "ranks": 1}
    assert launched_by(job) == {"launcher": about}
    assert launched_by({}) == {}


@pytest.mark.parametrize(("names", "hosts"), [(["a"], ["a", "b"]), (["a", "n2"], ["a", "n2"]), ([], ["host 0", "b"])])
def test_a_host_without_a_name_of_the_launchers_has_its_own(names: list[str], hosts: list[str]) -> None:
    ready = partial(Ready, at=0.0, samples=1, parameters=1, digest="", device="cpu", transport="gloo")
    ranks = [ready(rank=0), ready(rank=1, host=1, hostname="b")]
    assert [_host(event, names) for event in ranks] == hosts


def test_what_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs sbatch"):
        submitted.submit([], (), SlurmSettings())
    monkeypatch.setattr(submitted, "compose", lambda *_, **__: None)
    assert submitted.submit(["--cfg", "job"], (), SlurmSettings()) == 0, "it only shows its settings"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="needs submitit: pip install"):
        submitted.submit([], (), SlurmSettings())
    with pytest.raises(UsageError, match="needs Ray: pip install"):
        submitted.submit([], (), RaySettings())


def test_an_actor_ends_its_command_and_begins_none_that_was_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    runner = tmp_path / "python"
    runner.write_text("#!/bin/sh\necho begun\nexec sleep 60\n")
    runner.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(runner))
    actor = RayRank()
    actor.end(0)
    assert actor.train([], str(tmp_path), {}, str(log), 0) == 130
    assert log.read_text() == ""
    with ThreadPoolExecutor() as pool:
        code = pool.submit(actor.train, [], str(tmp_path), {}, str(log), 1)
        until = time.monotonic() + 20
        while "begun" not in log.read_text() and time.monotonic() < until:
            time.sleep(0.05)
        actor.end(1)
        assert code.result(20) == -signal.SIGTERM


def test_actors_fill_one_host_after_the_other() -> None:
    """What they are told is what ranks read."""
    places = [
        ActorPlace(host, node, f"10.0.0.{node}", 7000 + place, doomed=False)
        for place, (host, node) in enumerate(["a1", "a1", "b2", "b2"])
    ]
    told = [read(each) for each in variables(places, "ray-1.0", "k" * 32, 2)]
    assert [(each.rank, each.local_rank, each.node, each.nodes, each.port) for each in told if each is not None] == [
        *((0, 0, 0, 2, 7000), (1, 1, 0, 2, 7000), (2, 0, 1, 2, 7000), (3, 1, 1, 2, 7000)),
    ]
    assert {(each.launcher, each.job, each.restarts, each.hosts) for each in told if each is not None} == {
        ("ray", "ray-1.0", 2, ("a", "b"))
    }


def test_a_sweep_of_rays_is_cancelled_by_a_word_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The later of two sweeps; its command may be on another host."""
    for name in (".slurm-20260101-000000-001", ".ray-20260102-000000-001"):
        (tmp_path / name).mkdir()
        (tmp_path / name / submitted.SWEEP).write_text(json.dumps({"job": name[1:], "cells": [["a"]], "tasks": 1}))
    monkeypatch.setattr("bench.command.sweeps.ray_sweep.CANCEL_S", 0.0)
    assert submitted.status(tmp_path) == 0
    assert submitted.cancel(tmp_path) == 5
    assert (tmp_path / ".ray-20260102-000000-001" / "stop").exists()
    (tmp_path / ".ray-20260102-000000-001" / "over").touch()
    assert submitted.cancel(tmp_path) == 0
    out = capsys.readouterr().out
    assert "0 of 1 cells done, 0 of them failed; under way" in out
    assert "did not end within 0 s" in out


@pytest.mark.parametrize(
    ("state", "stopped", "rank", "asked"),
    [
        ("RUNNING PreemptTime=None", False, "0", True),
        ("COMPLETING PreemptTime=2026-11-27T21:00:00", False, "0", True),
        ("COMPLETING Reason=TimeLimit PreemptTime=None", False, "0", True),  # no signal came before the limit
        ("COMPLETING Reason=None PreemptTime=None", False, "0", False),  # scancel
        ("CANCELLED", False, "0", False),
        ("RUNNING", True, "0", False),
        ("RUNNING", False, "1", False),
    ],
)
def test_a_task_that_is_told_to_end_asks_for_a_requeue_unless_it_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, stopped: bool, rank: str, asked: bool
) -> None:
    control = tmp_path / "scontrol"
    control.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\necho JobState={state}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    if stopped:
        (tmp_path / "stop").touch()
    element = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2"}
    for name, array in (("7", {}), ("7_2", element)):  # the last element of an array has its number
        (tmp_path / "calls").unlink(missing_ok=True)
        requeue(tmp_path, {"SLURM_JOB_ID": "7", "SLURM_PROCID": rank} | array)
        calls = (tmp_path / "calls").read_text() if (tmp_path / "calls").exists() else ""
        assert (f"requeue {name}\n" in calls) == asked

"""What is submitted and what is asked of a scheduler, by scripts in the place of SLURM's commands. No scheduler."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from bench.base.usage import UsageError
from bench.command import slurm_sweep, submitted
from bench.config.launch_settings import SlurmSettings


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of scripts, which come first."""
    folder = tmp_path / "commands"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def script(commands: Path, name: str, text: str) -> None:
    (commands / name).write_text(f"#!/bin/sh\n{text}\n")
    (commands / name).chmod(0o755)


def sweep(folder: Path, name: str = ".slurm-20260101-000000-001", **about: object) -> Path:
    (folder / name).mkdir(parents=True)
    noted = {"job": "7", "cells": [["a"]], "tasks": 1} | about
    (folder / name / submitted.SWEEP).write_text(json.dumps(noted))
    return folder / name


def test_a_queue_that_does_not_answer_is_no_end_of_a_job(commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert slurm_sweep.queued("7") is None  # there is no squeue
    script(commands, "squeue", "echo 7_0 RUNNING None; echo 7_1 PENDING Resources")
    assert slurm_sweep.queued("7") == Counter(RUNNING=1, PENDING=1)
    script(commands, "squeue", "echo slurm_load_jobs error: Unable to contact slurm controller >&2; exit 1")
    assert slurm_sweep.queued("7") is None
    script(commands, "squeue", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    assert slurm_sweep.queued("7") == Counter()
    script(commands, "squeue", "exec sleep 5")
    monkeypatch.setattr(slurm_sweep, "ASK_S", 0.1)
    assert slurm_sweep.queued("7") is None


def test_a_sweep_is_waited_for_while_the_queue_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its job is over only once the queue says so, for a while."""
    folder, answers = sweep(tmp_path), iter([None, None, Counter(RUNNING=1), None, Counter[str](), Counter[str]()])
    seconds = iter(range(0, 1000, 15))
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: next(answers))
    monkeypatch.setattr(slurm_sweep.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(slurm_sweep, "LOOK_S", 0.0)
    assert slurm_sweep._awaited(folder) == 5
    assert next(answers, "none left") == "none left"
    assert "job 7 is over, 1 cells have no result" in capsys.readouterr().out


def test_a_cancelled_sweep_is_seen_gone_or_said_to_stay(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = sweep(tmp_path)
    assert "not cancelled: No such file or directory: scancel" in slurm_sweep.cancel(folder)
    script(commands, "scancel", "exec sleep 5")
    monkeypatch.setattr(slurm_sweep, "ASK_S", 0.1)
    monkeypatch.setattr(slurm_sweep, "CANCEL_S", 0.0)
    monkeypatch.setattr(slurm_sweep, "LOOK_S", 0.0)
    assert "job 7 may still be in the queue" in slurm_sweep.cancel(folder)
    monkeypatch.setattr(slurm_sweep, "ASK_S", 10.0)
    script(commands, "scancel", "")
    script(commands, "squeue", "echo 7_0 RUNNING None")
    assert "job 7 is still in the queue" in slurm_sweep.cancel(folder)
    script(commands, "squeue", "")
    assert slurm_sweep.cancel(folder) == ""


def test_an_array_that_slurm_does_not_take_is_a_mistake_of_the_user(tmp_path: Path, commands: Path) -> None:
    pytest.importorskip("submitit")
    settings, left = SlurmSettings(cells=2), [["seed=0"], ["seed=1"], ["seed=2"]]
    script(commands, "sbatch", "echo sbatch: error: Invalid job array specification >&2; exit 1")
    with pytest.raises(UsageError, match="Could not detect .srun"):
        slurm_sweep.submit(tmp_path, left, settings)
    script(commands, "srun", "")
    with pytest.raises(UsageError, match=r"no array of 2 tasks: .*Invalid job array.*; launch\.cells=4 would"):
        slurm_sweep.submit(tmp_path, left, settings)


def test_an_exit_code_that_is_none_of_ours_is_a_failure(tmp_path: Path) -> None:
    folder = sweep(tmp_path, cells=[["a"], ["b"], ["c"]])
    for number, code in enumerate((0, -9, 139)):
        (folder / f"{number}.json").write_text(json.dumps({"code": code}))
    assert submitted.codes_of(folder) == [0, 5, 5]

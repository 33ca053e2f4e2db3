"""What becomes of the cells of a sweep that was submitted: keys, starts, signals, logs, the report. No scheduler."""

from __future__ import annotations

import json
import os
import signal
import stat
import sys
import threading
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.base.usage import UsageError
from bench.command import cli
from bench.command.sweeps import ray_sweep, slurm_sweep, submitted
from bench.config.launch_settings import SlurmSettings
from bench.results.lease import HOST
from bench.results.runfolder import place
from bench.runner.slurm_batch import CellBatch
from bench.runner.starts import in_vain
from bench.runner.submitted_cell import KEY, write_result
from tests.bench.streams import make_metrics, write_run

SLURM = ".slurm-20260101-000000-001"


def noted(folder: Path, **about: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"job": "7", "cells": [["seed=0"], ["seed=1"]], "tasks": 1} | about)
    (folder / "sweep.json").write_text(text)
    return folder


def executable(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def test_a_sweep_is_found_from_inside_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: Counter[str]())
    monkeypatch.chdir(noted(tmp_path / SLURM))
    assert cli.dispatch(["status", "."]) == 0
    assert "job 7: 0 of 2 cells done" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "about"),
    [
        ("somebodys", {}),
        (SLURM, {"job": ""}),
        (SLURM, {"cells": 2}),
        (SLURM, {"cells": [[1]]}),
        (SLURM, {"places": [1]}),
    ],
)
def test_a_folder_that_is_no_sweeps_is_refused_and_left_alone(tmp_path: Path, name: str, about: object) -> None:
    assert isinstance(about, dict)
    folder = noted(tmp_path / name, **about)
    for verb in (submitted.status, submitted.cancel):
        with pytest.raises(UsageError, match="not what is noted of a sweep"):
            verb(folder)
    assert [path.name for path in folder.iterdir()] == ["sweep.json"]


def test_failed_cells_are_shown_with_their_logs_or_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: Counter[str]())
    folder = noted(tmp_path / SLURM, cells=[["seed=0"], ["seed=1"], ["seed=2"], ["seed=3"]])
    (folder / "0.json").write_text("{}")
    write_result(folder, 1, 5, "n1", "no time")
    write_result(folder, 2, 0, "n1")
    write_result(folder, 3, 1, "n1")
    assert submitted.status(folder) == 5
    assert capsys.readouterr().out.splitlines() == [
        "job 7: 4 of 4 cells done, 2 of them failed, 1 diverged; tasks: none in the queue",
        f"failed: seed=0: see {folder}/0-0.log",
        "failed: seed=1: no time",
        f"diverged: seed=3: see {folder}/3-0.log",
    ]


def test_the_key_of_a_sweep_goes_when_nothing_of_it_can_start_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: Counter[str]())
    done, cancelled = noted(tmp_path / "a" / SLURM), noted(tmp_path / "b" / SLURM)
    for folder in (done, cancelled):
        (folder / KEY).touch()
        write_result(folder, 0, 0, "n1")
        submitted.status(folder)
        assert (folder / KEY).exists()
    write_result(done, 1, 5, "n1")
    submitted.status(done)
    monkeypatch.setattr(slurm_sweep, "cancel", lambda folder: "job 7 is still in the queue")
    submitted.cancel(cancelled)
    assert (done / KEY).exists() < (cancelled / KEY).exists()
    monkeypatch.setattr(slurm_sweep, "cancel", lambda folder: "")
    submitted.cancel(cancelled)
    assert not (cancelled / KEY).exists()


def test_tasks_on_several_hosts_get_a_key_that_nobody_else_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches: list[CellBatch] = []
    monkeypatch.setattr(slurm_sweep, "_executor", lambda folder, settings: None)
    monkeypatch.setattr(slurm_sweep, "_sbatch", lambda executor, tasks: batches.extend(tasks) or "7")
    folder = slurm_sweep._submitted(tmp_path, {"w2-s0": ["seed=0"]}, SlurmSettings(nodes=2))
    assert stat.S_IMODE((folder / KEY).stat().st_mode) == 0o600
    executable(tmp_path / "python", 'cat "$DDP_KEY_FILE"')
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    batches[0].cwd = str(tmp_path)
    batches[0]()
    assert (folder / "0-0.log").read_text() == (folder / KEY).read_text() != ""


def test_what_is_asked_of_slurm_comes_to_sbatch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    executable(tmp_path / "srun", "")
    executable(tmp_path / "sbatch", f'cat "$1" > {tmp_path}/asked; echo Submitted batch job 7')
    own = SlurmSettings(nodes=2, ranks=2, gpus=2, memory="32G", account="team", qos="long")
    slurm_sweep._submitted(tmp_path, {"w4-s0": ["seed=0"]}, own)
    asked = (tmp_path / "asked").read_text()
    for words in ("gpus-per-node=4", "mem=32G", "account=team", "qos=long"):
        assert f"#SBATCH --{words}\n" in asked
    slurm_sweep._submitted(tmp_path, {"w1-s0": ["seed=0"]}, SlurmSettings())
    assert not {"gpus", "mem", "account", "qos"} & set((tmp_path / "asked").read_text().replace("-", "=").split("="))


def test_a_cell_that_comes_no_further_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three starts in a row from the same checkpoint, or from none; one that is older than the sweep is none."""
    old = tmp_path / "w1" / "checkpoints" / "0009"
    old.mkdir(parents=True)
    os.utime(old, (0, 0))
    folder = noted(tmp_path / SLURM)

    def starts(count: int) -> list[bool]:
        return [in_vain(folder, 0, tmp_path / "w1") for _ in range(count)]

    assert starts(2) == [False] * 2
    (tmp_path / ".tmp-w1-7" / "checkpoints" / "0000").mkdir(parents=True)
    assert starts(4) == [False] * 3 + [True]
    assert not in_vain(folder, 1, tmp_path / "w1")  # of another cell
    executable(tmp_path / "python", "exit 0")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    CellBatch(str(folder), str(tmp_path), [(0, []), (1, [])], {0: str(tmp_path / "w1"), 1: str(tmp_path / "w2")})()
    results = [json.loads((folder / f"{number}.json").read_text()) for number in (0, 1)]
    assert [result["code"] for result in results] == [5, 0]
    assert "3 starts in a row made no later checkpoint: set launch.minutes higher" in results[0]["why"]


def test_a_task_passes_sigusr1_on_and_asks_for_a_requeue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    calls: list[object] = []
    executable(
        tmp_path / "python", f"trap 'echo told; exit 130' TERM; touch {tmp_path}/up; while :; do sleep 0.1; done"
    )
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("bench.runner.slurm_batch.requeue", lambda folder, environ: calls.append("requeue"))
    kill = os.kill

    def tell() -> None:
        while not (tmp_path / "up").exists():
            threading.Event().wait(0.02)
        kill(os.getpid(), signal.SIGUSR1)

    def killed(pid: int, number: int) -> None:
        kill(pid, number) if pid != os.getpid() else calls.append(number)

    monkeypatch.setattr("bench.runner.slurm_batch.os.kill", killed)
    teller = threading.Thread(target=tell)
    teller.start()
    CellBatch(str(tmp_path), str(tmp_path), [(0, [])])()
    teller.join()
    assert (tmp_path / "0-0.log").read_text() == "told\n"
    assert calls == ["requeue", signal.SIGKILL]
    assert not (tmp_path / "0.json").exists()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_a_task_that_is_told_between_two_cells_trains_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[object] = []
    executable(tmp_path / "python", "exec sleep 20")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("bench.runner.slurm_batch.requeue", lambda folder, environ: calls.append("requeue"))
    batch = CellBatch(str(tmp_path), str(tmp_path), [(0, [])], {0: str(tmp_path / "w1")})
    monkeypatch.setattr("bench.runner.slurm_batch.in_vain", lambda *about: batch._pass_on(signal.SIGTERM, None))
    kill = os.kill
    monkeypatch.setattr(
        "bench.runner.slurm_batch.os.kill",
        lambda pid, number: kill(pid, number) if pid != os.getpid() else calls.append(number),
    )
    batch()
    assert calls == ["requeue", signal.SIGKILL]
    assert not (tmp_path / "0.json").exists()


def test_a_job_that_pends_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once for each reason, and not at once. A queue that does not answer once has not moved."""
    seconds = iter(range(0, 1000, 20))
    held, limit = Counter({"PENDING JobHeldUser": 2}), Counter({"PENDING PartitionTimeLimit": 2})
    answers = iter([held, held, held, None, limit, Counter[str](), *[Counter[str]()] * 5])
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: next(answers))
    monkeypatch.setattr(slurm_sweep.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(slurm_sweep, "LOOK_S", 0.0)
    assert slurm_sweep._awaited(noted(tmp_path / SLURM)) == 5
    assert [line for line in capsys.readouterr().out.splitlines() if "pending" in line] == [
        "job 7: tasks: 2 pending (JobHeldUser)",
        "job 7: tasks: 2 pending (PartitionTimeLimit)",
    ]


def test_a_sweep_that_is_waited_for_ends_with_its_table_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned: list[submitted.Points] = []
    points = submitted.Points
    monkeypatch.setattr(submitted, "Points", lambda **own: planned.append(points(**own)) or planned[-1])

    def submit(output: Path, left: dict[str, list[str]], settings: SlurmSettings) -> int:
        for spec in planned[0].specs:
            assert write_run(output, spec, make_metrics(spec)).samefile(place(*spec.key))
        return 0

    monkeypatch.setattr(submitted, "module", lambda name: SimpleNamespace(demand=lambda: None, submit=submit))
    monkeypatch.chdir(tmp_path)
    words = ["-m", "model=mlp", "mode=solo", "data.name=digits", "seed=0,1", "validate=false"]
    assert submitted.submit(words, (), SlurmSettings()) == 0
    out = capsys.readouterr().out
    assert any(line.split()[:3] == ["mlp", "solo", "2"] for line in out.splitlines())
    assert "report    " in out


def test_the_end_of_a_command_that_was_killed_is_told_as_it_is(tmp_path: Path) -> None:
    gone = noted(tmp_path / ".ray-20260101-000000-001", pid=2**22 + 1, host=HOST)
    assert "its command is gone, it was killed" in ray_sweep.cancel(gone)

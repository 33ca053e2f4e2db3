"""What is submitted and what is asked of a scheduler, by scripts in the place of SLURM's commands. No scheduler."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command import cli
from bench.command.sweeps import ray_sweep, slurm_sweep, submitted
from bench.config.launch_settings import RaySettings, SlurmSettings
from bench.results.lease import HOST
from tests.bench.streams import make_metrics, write_run


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
    script(commands, "squeue", "echo 7_0 RUNNING None; echo 7_1 PENDING Resources; echo 7_2 PENDING launch failed")
    states = Counter({"RUNNING": 1, "PENDING Resources": 1, "PENDING launch failed": 1})
    assert slurm_sweep.queued("7") == states
    assert slurm_sweep._in_words(states) == "tasks: 1 running, 1 pending (Resources), 1 pending (launch failed)"
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
    """Its job is over only once the queue says so, for longer than a client of NFS may see files late."""
    folder, answers = sweep(tmp_path), iter([None, None, Counter(RUNNING=1), None, *[Counter[str]()] * 3])
    seconds = iter(range(0, 1000, 61))
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: next(answers))
    monkeypatch.setattr(slurm_sweep.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(slurm_sweep, "LOOK_S", 0.0)
    assert slurm_sweep._awaited(folder) == 5
    assert next(answers, "none left") == "none left"
    assert "job 7 is over, 1 cells have no result" in capsys.readouterr().out


AWAY = OSError(errno.ESTALE, "Stale file handle")


@pytest.mark.parametrize(
    ("running", "answers", "codes"),
    [
        ([True] * 3, [AWAY, [], [Exit.OK]], [Exit.OK]),
        # It leaves the queue while the folder is away; what the folder has becomes visible late.
        ([False] * 6, [AWAY, AWAY, AWAY, [], [], [Exit.OK]], [Exit.OK]),
        ([False] * 5, [AWAY, [], [Exit.OK], [Exit.OK]], [Exit.OK]),
        ([True, *[False] * 12], [[], *[AWAY] * 12], None),  # for ever
    ],
)
def test_a_sweep_is_waited_for_while_its_folder_is_away(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    running: list[bool],
    answers: list[list[Exit] | OSError],
    codes: list[Exit] | None,
) -> None:
    """A shared file system may answer with an error for a moment, also between two looks at it."""
    folder, seconds, looks, states = sweep(tmp_path), iter(range(0, 2000, 61)), iter(answers), iter(running)

    def found(folder: Path) -> list[Exit]:
        answer = next(looks)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(slurm_sweep, "codes_of", found)
    monkeypatch.setattr(slurm_sweep, "summary", lambda folder: ([], found(folder) if len(running) == 5 else codes))
    monkeypatch.setattr(slurm_sweep, "queued", lambda job: Counter(RUNNING=1) if next(states) else Counter())
    monkeypatch.setattr(slurm_sweep.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(slurm_sweep, "LOOK_S", 0.0)
    if codes is None:
        with pytest.raises(OSError, match="Stale"):
            slurm_sweep._awaited(folder)
    else:
        assert slurm_sweep._awaited(folder) == 0


def test_a_result_that_cannot_be_read_now_is_no_failed_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = sweep(tmp_path)
    (folder / "0.json").write_text('{"code": 0}')
    content = submitted.content

    def away(file: Path) -> bytes:
        if file.name == "0.json":
            raise AWAY
        return content(file)

    monkeypatch.setattr(submitted, "content", away)
    with pytest.raises(OSError, match="Stale"):
        submitted.codes_of(folder)


def test_a_sweep_that_is_interrupted_while_it_is_submitted_is_noted(tmp_path: Path, commands: Path) -> None:
    """Else nobody could see or cancel its job. A terminal's Ctrl-C reaches sbatch, too."""
    pytest.importorskip("submitit")
    script(commands, "srun", "")
    script(commands, "sbatch", "")
    (commands / "sbatch").write_text(
        f"#!{sys.executable} -S\nimport os, signal\nfor process in os.getpid(), os.getppid():\n"
        "    os.kill(process, signal.SIGINT)\nprint('Submitted batch job 7')\n"
    )
    with pytest.raises(KeyboardInterrupt):
        slurm_sweep.submit(tmp_path, {"w1-s0": ["seed=0"]}, SlurmSettings())
    assert submitted.about(submitted.latest(tmp_path))["job"] == "7"


def test_a_sweep_that_is_interrupted_before_it_is_submitted_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_sweep, "_executor", lambda *about: os.kill(os.getpid(), signal.SIGINT))
    monkeypatch.setattr(slurm_sweep, "_sbatch", lambda *about: pytest.fail("it is submitted"))
    with pytest.raises(KeyboardInterrupt):
        slurm_sweep.submit(tmp_path, {"w1-s0": ["seed=0"]}, SlurmSettings())


def test_an_sbatch_that_does_not_end_is_killed(tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit")
    timer, handler = signal.getitimer(signal.ITIMER_REAL)[0] > 0, signal.getsignal(signal.SIGALRM)
    script(commands, "srun", "")
    script(commands, "sbatch", "exec sleep 30")
    monkeypatch.setattr(slurm_sweep, "SUBMIT_S", 0.3)
    with pytest.raises(UsageError, match=r"sbatch did not end within 0.3 s and was killed: if squeue shows"):
        slurm_sweep.submit(tmp_path, {"w1-s0": ["seed=0"]}, SlurmSettings())
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0, signal.getsignal(signal.SIGALRM)) == (timer, handler)
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & {signal.SIGINT}


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
    settings, left = SlurmSettings(cells=2), {f"w1-{seed}": [f"seed={seed}"] for seed in range(3)}
    script(commands, "sbatch", "echo sbatch: error: Invalid job array specification >&2; exit 1")
    with pytest.raises(UsageError, match=r"Could not detect .srun"):
        slurm_sweep.submit(tmp_path, left, settings)
    script(commands, "srun", "")
    with pytest.raises(UsageError, match=r"no array of 2 tasks: .*Invalid job array.*; launch\.cells=4 would"):
        slurm_sweep.submit(tmp_path, left, replace(settings, nodes=2))
    assert not list(tmp_path.glob(".slurm-*")), "with the key of the sweep"


def test_an_exit_code_that_is_none_of_ours_is_a_failure(tmp_path: Path) -> None:
    folder = sweep(tmp_path, cells=[["a"], ["b"], ["c"]])
    for number, code in enumerate((0, -9, 139)):
        (folder / f"{number}.json").write_text(json.dumps({"code": code}))
    assert submitted.codes_of(folder) == [0, 5, 5]


CELL = ["model=mlp", "mode=nccl_sync", "data.name=digits"]


def names(left: dict[str, list[str]]) -> list[str]:
    return [Path(name).name.rpartition("-")[0] for name in left]


def test_the_same_command_submits_no_cell_that_is_under_way(
    tmp_path: Path, sent: list[dict[str, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", *CELL, f"output={tmp_path}"]
    assert submitted.submit([*words, "seed=0,1"], (), SlurmSettings()) == 0
    assert submitted.submit([*words, "seed=0,1,2"], (), SlurmSettings()) == 0
    assert [names(each) for each in sent] == [["w2-s0", "w2-s1"], ["w2-s2"]]
    assert f"3 cells, 1 left to do, 2 are under way: see {tmp_path}/.slurm-" in capsys.readouterr().out
    folder = max(tmp_path.glob(".slurm-*"), key=lambda folder: json.loads((folder / "sweep.json").read_text())["job"])
    (folder / "0.json").write_text('{"code": 5}')
    assert submitted.submit([*words, "seed=2"], (), SlurmSettings()) == 0
    assert names(sent[-1]) == ["w2-s2"]  # it has failed


def test_a_sweep_that_is_not_waited_for_is_looked_after_by_the_same_command(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("submitit")
    script(commands, "sbatch", "echo Submitted batch job 7")
    script(commands, "srun", "")
    script(commands, "squeue", "echo 7_0 PENDING Resources")
    planned: list[submitted.Points] = []
    points = submitted.Points
    monkeypatch.setattr(submitted, "Points", lambda **own: planned.append(points(**own)) or planned[-1])
    monkeypatch.setattr(slurm_sweep, "_awaited", lambda folder: pytest.fail("it waits"))
    monkeypatch.chdir(tmp_path)  # a report is made there
    words = ["-m", *CELL, f"output={tmp_path}", "seed=0,1", "launch=slurm", "launch.wait=false", "validate=false"]
    assert cli.dispatch(words) == 0
    (folder,) = tmp_path.glob(".slurm-*")
    assert capsys.readouterr().out.splitlines() == [
        "2 cells, 2 left to do",
        f"job 7: 2 cells in 1 tasks; see {folder}",
    ]
    assert cli.dispatch(words) == 0
    assert capsys.readouterr().out == f"2 cells, 0 left to do, 2 are under way: see {folder}\n"
    script(commands, "squeue", "")
    for number, spec in enumerate(planned[0].specs):
        write_run(tmp_path, spec, make_metrics(spec))
        (folder / f"{number}.json").write_text('{"code": 0}')
    assert cli.dispatch(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 cells, 0 left to do\n")
    assert "2 ok" in out


def test_several_hosts_plan_the_run_of_all_their_ranks(tmp_path: Path, sent: list[dict[str, list[str]]]) -> None:
    words, four = [*CELL, f"output={tmp_path}"], SlurmSettings(nodes=2, ranks=2)
    submitted.submit(words, (), four)
    assert names(sent[0]) == ["w4-s0"]
    with pytest.raises(UsageError, match=r"world_size=2, but launch.nodes=2 launch.ranks=2 start 4 processes"):
        submitted.submit([*words, "world_size=2"], (), four)
    with pytest.raises(UsageError, match=r"mode=solo trains in one process: leave out launch.nodes"):
        submitted.submit([*words, "mode=solo"], (), RaySettings(nodes=2))


def test_a_host_without_a_gpu_submits_to_those_that_have_some(tmp_path: Path, sent: list[dict[str, list[str]]]) -> None:
    submitted.submit([*CELL, f"output={tmp_path}", "cluster.device=cuda"], (), SlurmSettings())
    submitted.submit([*CELL, f"output={tmp_path}", "cluster.transport=memory", "seed=1"], (), SlurmSettings())
    assert list(map(names, sent)) == [["w2-s0"], ["w2-s1"]]


def test_a_cell_that_is_asked_for_alone_is_made_anew(tmp_path: Path, sent: list[dict[str, list[str]]]) -> None:
    submitted.submit([*CELL, f"output={tmp_path}"], (), SlurmSettings())
    submitted.submit(["-m", *CELL, f"output={tmp_path}", "seed=1"], (), SlurmSettings())
    assert [["force=true" in words for words in each.values()] for each in sent] == [[True], [False]]


def test_a_sweep_of_rays_is_over_with_its_command(tmp_path: Path) -> None:
    folder = sweep(tmp_path, ".ray-20260101-000000-001", pid=os.getppid(), host=HOST)
    assert ray_sweep.live(folder)
    (folder / "over").touch()
    assert not ray_sweep.live(folder)
    assert not ray_sweep.live(sweep(tmp_path, ".ray-20260101-000000-002", pid=2**22 + 1, host=HOST))
    elsewhere = sweep(tmp_path, ".ray-20260101-000000-003", pid=os.getppid(), host="f00")
    assert ray_sweep.live(elsewhere)
    os.utime(elsewhere, (0, 0))
    assert ray_sweep.standing(elsewhere) == "over"

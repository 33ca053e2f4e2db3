"""A run that nobody can go on with goes on by itself: from its last checkpoint, every sample in the model once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from bench.base.interrupts import SUPERVISED
from bench.results.runfolder import Run, find_runs
from bench.runner import automatic_restart
from bench.runner.automatic_restart import RestartBudget
from bench.runner.launch import CutShort
from bench.runner.supervise import IN_A_ROW, requested, supervise
from ddp.core.errors import Diverged, RankFailed, RankLost
from ddp.core.messages.run_bounds import Attempt
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import Fault, parse
from ddp.engine.elche import SeveralFailed
from ddp.replica.task import Job
from tests.commands.killed_runs import SMALL, command, in_model, killed, written
from tests.runtime import toy
from tests.slow import slow
from tests.spread import WHOLE
from tests.warm import PICTURES, Warm, wait_for

KEPT = ("checkpoint.every=7", "checkpoint.unit=averages", "train.epochs=8", "world_size=2")


def test_all_ranks_begin_again_as_often_as_they_may_and_not_for_the_same_error(tmp_path: Path) -> None:
    def attempts(most: int | None) -> RestartBudget:
        return RestartBudget(cast(Any, SimpleNamespace(restarts=most)))

    def saved(index: int) -> None:
        (tmp_path / "checkpoints" / f"{index:06}").mkdir(parents=True)

    lost = RankLost("rank 1: gone")
    assert [attempts(None).allows(Diverged("nan"), tmp_path), attempts(0).allows(lost, tmp_path)] == [False] * 2
    always = attempts(None)
    assert [always.allows(lost, tmp_path) for _ in range(4)] == [True, True, True, False], "not for ever in one place"
    saved(1)
    assert always.allows(lost, tmp_path), "it has come further"
    twice = attempts(2)
    for index in (2, 3):
        assert twice.allows(lost, tmp_path)
        saved(index)
    assert not twice.allows(lost, tmp_path)
    wrong = attempts(None)
    assert [wrong.allows(RankFailed(0, "ValueError: no", "..."), tmp_path) for _ in range(2)] == [True, False]
    assert not attempts(None).allows(SeveralFailed(0, "ValueError: no", "..."), tmp_path)


@dataclass(frozen=True)
class OnlyJob:
    """What is asked of a plan."""

    job: Job


def test_what_lasts_is_met_again_and_what_struck_once_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link that was slow before all ranks began again stays slow."""
    script = tuple(map(parse, ("0@3:crash", "1@2:slow*3", "0@2:link*4", "1@1:input", "1@2:heal", "0@90:raise")))
    met: list[tuple[Fault, ...]] = []
    noted: list[tuple[str, ...]] = []

    def launched(plan: Any, *_: object, notes: tuple[str, ...], **__: object) -> str:
        met.append(plan.job.faults)
        noted.append(notes)
        if len(met) == 1:
            raise CutShort(RankLost("rank 0: gone"), script[:-1], Attempt(0.0, 0.5, 1.0, 8, ()))
        return "the outcome"

    job = Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "zero1", tmp_path, faults=script, restarts=None)
    monkeypatch.setattr(automatic_restart, "launch", launched)
    monkeypatch.setattr(automatic_restart, "last_checkpoint", lambda broken: (None, ()))
    automatic_restart.launch_with_restarts(cast(Any, OnlyJob(job)), cast(Any, None), None, 0, ("it was killed",))
    assert met == [script, script[1:]]
    assert [notes[0] for notes in noted] == ["it was killed"] * 2, "what happened before is still said"
    assert [len(notes) for notes in noted] == [1, 2]


def the_run(folder: Path) -> Run:
    (run,), _ = find_runs(folder)
    assert [path.name for path in run.path.parent.iterdir()] == [run.path.name], "nothing is left of before"
    return run


@pytest.mark.parametrize("mode", ["zero1", "zero2", "zero3"] if WHOLE else [*slow("zero1"), "zero3"])
def test_shards_of_a_lost_rank_come_from_the_last_checkpoint(warm: Warm, tmp_path: Path, mode: str) -> None:
    words = (*SMALL, *KEPT, f"mode={mode}")
    code, out, err = command(warm, tmp_path, *words, "cluster.restart=1", "cluster.faults=[1@40:crash]")
    assert (code, err) == (0, ""), out
    assert "rank 1: its process is gone (killed by signal 9); all ranks begin again" in out
    run = the_run(tmp_path / "runs")
    assert command(warm, tmp_path, *words, "output=whole")[0] == 0
    assert run.metrics.params_sha256 == the_run(tmp_path / "whole").metrics.params_sha256
    counts = in_model(run.path)
    assert (len(counts), set(counts.values())) == (run.metrics.samples, {1})
    (row,) = run.metrics.faults
    assert (row.rank, row.kind) == (1, "lost")
    assert row.action.startswith("all ranks went on from checkpoint ")
    assert row.earlier
    assert run.metrics.goodput is not None
    assert run.metrics.goodput.parts.discarded > 0
    assert run.metrics.resumed is not None


def test_a_run_without_a_checkpoint_begins_anew_and_says_so(warm: Warm, tmp_path: Path) -> None:
    words = (*SMALL, "mode=zero1", "train.epochs=2", "world_size=2", "checkpoint.every=0", "cluster.restart=always")
    code, out, err = command(warm, tmp_path, *words, "cluster.faults=[0@3:crash]")
    assert (code, err) == (0, ""), out
    run = the_run(tmp_path / "runs")
    metrics = run.metrics
    assert metrics.resumed is None
    assert any("all ranks began anew (1 time so far)" in line for line in metrics.warnings)
    (row,) = metrics.faults
    assert (row.rank, row.action, row.earlier) == (0, "all ranks began anew", True)
    assert metrics.goodput is not None
    assert metrics.goodput.parts.discarded > 0
    assert metrics.goodput.parts.starting > 0
    code, out, _ = command(warm, tmp_path, "validate", str(run.path))
    assert "figures: " in out
    assert "FAIL" not in out


@pytest.mark.slow
@pytest.mark.timeout(600)  # two commands begin with their imports, as nowhere else
def test_a_coordinator_that_is_killed_is_started_again(warm: Warm, tmp_path: Path) -> None:
    words = (*SMALL, "mode=cpu_async", "train.epochs=12", "world_size=2", "cluster.speeds=[0.3,0.3]")
    process = warm.start(tmp_path, "-m", "bench", *words, "supervise=true", env={PICTURES: "none"})
    try:
        assert wait_for(lambda: written(tmp_path, 2), process, 200.0)
        (coordinator,) = psutil.Process(process.pid).children()
        others = coordinator.children(recursive=True)
        os.kill(coordinator.pid, signal.SIGKILL)
        _, left = psutil.wait_procs(others, 20)
        assert left == [], "nobody outlives it for long"
        code, out, err = process.result(200.0)
    finally:
        process.kill_all()
    assert code == 0, out + err
    assert "the coordinator was killed by signal 9; it is started again" in err
    run = the_run(tmp_path / "runs")
    assert set(in_model(run.path).values()) == {1}
    (row,) = run.metrics.faults
    assert (row.rank, row.text) == (None, "the coordinator was killed by signal 9")


def test_what_is_started_again_goes_on_from_the_checkpoint_of_what_was_killed(warm: Warm, tmp_path: Path) -> None:
    """The second of the two commands above, which need not begin with its imports."""
    words = (*SMALL, "mode=cpu_async", "train.epochs=12", "world_size=2")
    because, since = "the coordinator was killed by signal 9", time.time()
    killed(warm, tmp_path, *words, "cluster.speeds=[0.3,0.3]", checkpoint=2)
    note = {SUPERVISED: json.dumps({"since": since, "because": because}), PICTURES: "none"}
    code, out, err = warm.start(tmp_path, "-m", "bench", *words, "cluster.speeds=[0.3,0.3]", env=note).result()
    assert code == 0, out + err
    run = the_run(tmp_path / "runs")
    assert set(in_model(run.path).values()) == {1}
    (row,) = run.metrics.faults
    assert (row.rank, row.text) == (None, because)


COMMAND = """
import json, os, sys
from pathlib import Path
told = Path("told")
told.write_text((told.read_text() if told.exists() else "") + json.loads(os.environ["BENCH_SUPERVISED"])["because"] + "\\n")
if len(told.read_text().splitlines()) <= int(sys.argv[1]):
    os.kill(os.getpid(), 9)
raise SystemExit(3)
"""


@pytest.mark.parametrize(("deaths", "code", "last"), [(0, 3, ""), (2, 3, "again"), (5, 137, "given up")])
def test_what_a_signal_kills_is_started_again_but_not_for_ever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    deaths: int,
    code: int,
    last: str,
) -> None:
    (tmp_path / "bench.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    assert supervise([str(deaths)]) == code
    because = "the coordinator was killed by signal 9"
    starts = min(deaths + 1, IN_A_ROW)
    assert (tmp_path / "told").read_text().splitlines() == ["", *[because] * (starts - 1)]
    said = capfd.readouterr().err.splitlines()
    assert len(said) == min(deaths, IN_A_ROW)
    assert not said or said[-1].endswith(last)


LISTENING = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_UNBLOCK, signal.valid_signals())
"""
INTERRUPTED = f"""{LISTENING}
from pathlib import Path
with Path("told").open("a") as told:
    told.write("started ")
if sys.argv[1] == "early":  # before anybody listens
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
number = signal.Signals[sys.argv[1]]
signal.signal(number, lambda *_: os._exit(7))
os.kill(os.getppid(), number)
time.sleep(20)
"""


@pytest.mark.parametrize(("number", "code"), [("early", 130), ("SIGHUP", 7), ("SIGINT", 7)])
def test_what_is_to_end_is_not_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, code: int
) -> None:
    """An early Ctrl-C was a death; the end of the terminal ended the supervisor alone, whom an interrupt did not end."""

    def ended(*_: object) -> None:
        raise RuntimeError("the supervisor was to pass it on")

    (tmp_path / "bench.py").write_text(INTERRUPTED)
    monkeypatch.chdir(tmp_path)
    before = signal.signal(signal.SIGHUP, ended)
    try:
        assert supervise([number]) == code
    finally:
        signal.signal(signal.SIGHUP, before)
    assert (tmp_path / "told").read_text() == "started "


def test_a_signal_that_comes_before_the_command_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor ended, and the command that it had just started went on."""
    (tmp_path / "bench.py").write_text(f"{LISTENING}time.sleep(20)\n")
    monkeypatch.chdir(tmp_path)
    start = subprocess.Popen

    def interrupted(*words: Any, **how: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return start(*words, **how)

    monkeypatch.setattr(subprocess, "Popen", interrupted)
    assert supervise([]) == 128 + signal.SIGTERM


def test_what_asks_for_a_supervisor_is_taken_from_the_command_line() -> None:
    assert requested(["model=mlp", "supervise=true"]) == (True, ["model=mlp"])
    assert requested(["supervise=false", "seed=1"]) == (False, ["seed=1"])
    with pytest.raises(ValueError, match="supervise=yes: supervise=true is what there is"):
        requested(["supervise=yes"])

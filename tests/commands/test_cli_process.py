"""The command as a process: exit codes, signals, what is imported."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from bench.base import interrupts
from bench.results.runfolder import find_runs
from tests.bench.dashboard.dashboards import until
from tests.held_up import in_time
from tests.slow import slow
from tests.warm import PICTURES, Warm, wait_for

ROOT = Path(__file__).resolve().parents[2]
FAKED = """
import sys
from dataclasses import replace
from ddp.engine import ENGINES
ENGINES["solo"] = replace(ENGINES["solo"], module="tests.bench.fake_engine")
from bench.__main__ import main
sys.exit(main())
"""


def start(folder: Path, *command: str, fake: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "BENCH_FAKE": fake, "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_a_typo_exits_2_without_a_traceback(tmp_path):
    process = start(tmp_path, "-m", "bench", "mode=solo", "sede=1")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == "bench: unknown key 'sede'; did you mean 'seed'?\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_is_killed_within_3_seconds(warm, tmp_path, number):
    """Interrupt a command: one of the three starts cold, as a user's does."""
    if number == signal.SIGTERM:
        process = start(tmp_path, "-c", FAKED, "model=mlp", "mode=solo", fake="hang")
        assert process.stdout is not None
        assert any("hanging" in line for line in process.stdout)
        told = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        code = process.returncode
    else:
        (tmp_path / "faked.py").write_text(FAKED)
        hanging = warm.start(tmp_path, "faked.py", "model=mlp", "mode=solo", env={"BENCH_FAKE": "hang"})
        assert wait_for(lambda: "hanging" in hanging.printed(), hanging, 60.0)
        told = time.monotonic()
        os.kill(hanging.pid, number)
        code, _, err = hanging.result(60.0)
    assert in_time(told, 3.0)
    assert code == 130
    assert "Traceback" not in err
    (run,), problems = find_runs(tmp_path / "runs")
    assert (run.metrics.status, problems) == ("killed", [])
    assert {"timeline.json", "timeline.html", "timeline.csv"} <= {path.name for path in run.path.iterdir()}
    assert not list((tmp_path / "runs").rglob(".*"))


def test_the_end_of_the_terminal_is_ignored_where_somebody_has_it_so():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interrupts.listening():
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.interrupted()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        with interrupts.listening(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupts.interrupted(), "what this process does next would end as interrupted"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_comes_twice_at_once_is_one(monkeypatch):
    """A terminal tells a whole group, and who supervises the command passes on what he is told: what wrote the results was
    interrupted as well."""
    me = os.getpid()
    monkeypatch.setenv(interrupts.SUPERVISED, "{}")
    monkeypatch.setattr(interrupts, "ECHO_S", 60.0)
    with interrupts.listening():
        with pytest.raises(KeyboardInterrupt), interrupts.deferred():
            os.kill(me, signal.SIGTERM)
        os.kill(me, signal.SIGTERM)
        monkeypatch.setattr(interrupts, "ECHO_S", 0.0)
        with pytest.raises(KeyboardInterrupt):
            os.kill(me, signal.SIGTERM)
    monkeypatch.setattr(interrupts, "ECHO_S", 60.0)
    monkeypatch.delenv(interrupts.SUPERVISED)
    with interrupts.listening():
        for _ in range(2):  # of who holds the keys down
            with pytest.raises(KeyboardInterrupt):
                os.kill(me, signal.SIGINT)


def test_an_interrupt_where_nobody_listens_is_forgotten_once_raised():
    """Else every later command of this process that fails would end as interrupted."""

    def twice():
        with interrupts.deferred():
            os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt), interrupts.deferred():
                os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.interrupted(), "the inner context raised, the outer one has yet to"

    with pytest.raises(KeyboardInterrupt):
        twice()
    assert not interrupts.interrupted()
    interrupts.check()


def test_an_interrupt_at_startup_leaves_nothing(tmp_path):
    """Beyond the one line that says so. The signal goes to the whole group, as from a terminal: the fork server, which is
    importing, once answered with a traceback."""
    process = start(tmp_path, "-m", "bench", "model=mlp", "mode=nccl_sync")
    until(lambda: len(psutil.Process(process.pid).children()) >= 2, 60)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "bench: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_of_a_supervised_command_that_imports_shows_no_traceback(tmp_path):
    process = start(tmp_path, "-m", "bench", "model=mlp", "mode=nccl_sync", "supervise=true")
    until(lambda: psutil.Process(process.pid).children(), 60)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "bench: interrupted\n")


def test_who_leaves_at_once_leaves_no_folder(tmp_path):
    """Every command that was interrupted, and every node agent, left the one that the fork server's socket lay in."""
    code = "from multiprocessing import util; from bench.base.interrupts import leave; util.get_temp_dir(); leave(3, 'over')"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "over")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "word"),
    [
        ("list", "overhead_target"),
        *slow(("doctor --help", "usage"), ("--help", "list|doctor"), ("--info", "world_size")),
        ("mode=cpu_sync --cfg job --resolve", "world_size: null"),
    ],
)
def test_looking_around_works_and_imports_no_torch(tmp_path, command, word):
    process = start(tmp_path, "-X", "importtime", "-m", "bench", *command.split())
    out, imported = process.communicate(timeout=60)
    assert process.returncode == 0
    assert word in out
    names = {line.rpartition("|")[2].strip() for line in imported.splitlines()}
    assert not names & {"torch", "pandas", "matplotlib"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
def test_an_output_without_room_is_no_defect(warm: Warm, tmp_path: Path) -> None:
    """The command ended with a traceback and exit code 120."""
    full = os.open("/dev/full", os.O_WRONLY)
    code, _, err = warm.start(tmp_path, "-m", "bench", "list", "policies", stdout=full).result()
    os.close(full)
    assert (code, err.count("\n"), err.endswith("No space left on device\n")) == (5, 1, True), err


def test_a_reader_that_leaves_does_not_end_a_run(warm: Warm, tmp_path: Path) -> None:
    """`| head` ended it with exit code 1, which means a regression, and lost the results."""
    reader, writer = os.pipe()
    os.close(reader)
    words = (
        "-m",
        "bench",
        "model=mlp",
        "mode=solo",
        "data.name=digits",
        "train.epochs=1",
        "report=false",
        "validate=false",
    )
    code, _, err = warm.start(tmp_path, *words, stdout=writer, env={PICTURES: "none"}).result()
    os.close(writer)
    assert code == 0, err
    runs, _ = find_runs(tmp_path)
    assert [run.metrics.status for run in runs] == ["ok"]

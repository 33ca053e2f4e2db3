"""Commands that measure leave no process behind when they are ended."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from bench.base.exitcodes import Exit

ROOT = Path(__file__).parents[3]
WITHIN_S = 2.0
STARTS = re.compile(r"\b(subprocess\.|ProcessPoolExecutor\(|bench\(|gather\(|play_missing\(|Warm\(|trained\()")
"""What starts processes."""
MEASUREMENT = """
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from benchmarks import frame

DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def begun(name, words):
    process = subprocess.Popen([sys.executable, "-c", words], stdout=subprocess.PIPE)
    process.stdout.readline()
    Path(f"{name}.pid").write_text(f"{process.pid}")
    return process


def work(number):
    process = begun(f"of-worker-{number}", DEAF)
    Path(f"worker-{number}.pid").write_text(f"{os.getpid()}")
    process.wait()


def main():
    begun("command", "import time; print(flush=True); time.sleep(600)")
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        works = [pool.submit(work, number) for number in range(9)]
        if sys.argv[1:] == ["raise"]:
            while len(list(Path().glob("*.pid"))) < 5:
                time.sleep(0.02)
            frame.end_processes()
            raise ValueError("no")
        for each in works:
            each.result()


if __name__ == "__main__":
    frame.run_command(main)
"""


def wait_for(happened: Callable[[], bool], limit_s: float) -> None:
    until = time.monotonic() + limit_s
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def measurement(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a measurement with a command and a pool of two workers, each of which has a process that ignores SIGTERM. Its
    errors go to the file `errors`."""
    (tmp_path / "measurement.py").write_text(MEASUREMENT)
    with ExitStack() as stack:

        def start(*words: str) -> subprocess.Popen[bytes]:
            command, environment = [sys.executable, "measurement.py", *words], os.environ | {"PYTHONPATH": str(ROOT)}
            errors = stack.enter_context((tmp_path / "errors").open("wb"))
            process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=errors)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_measurement_that_is_ended_leaves_no_process(
    tmp_path: Path, measurement: Callable[..., subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    process = measurement()
    wait_for(lambda: len([path for path in tmp_path.glob("*.pid") if path.read_text()]) == 5, 60.0)
    pids = {int(path.read_text()) for path in tmp_path.glob("*.pid")}
    pids |= {each.pid for each in psutil.Process(process.pid).children(recursive=True)}
    assert len(pids) >= 5
    process.send_signal(number)
    wait_for(lambda: not any(map(alive, pids)), WITHIN_S)
    assert process.wait(10) == Exit.KILLED
    assert len(list(tmp_path.glob("*.pid"))) == 5  # nobody began the rest


def test_a_measurement_that_fails_does_not_do_the_rest(
    tmp_path: Path, measurement: Callable[..., subprocess.Popen[bytes]]
) -> None:
    process = measurement("raise")
    assert process.wait(60) == 1
    assert "ValueError: no" in (tmp_path / "errors").read_text()
    pids = [int(path.read_text()) for path in tmp_path.glob("*.pid")]
    assert len(pids) == 5
    assert not any(map(alive, pids))


def test_measurements_that_start_processes_end_them() -> None:
    texts = {path: path.read_text() for path in (ROOT / "benchmarks").rglob("*.py") if path.name != "frame.py"}
    commands = {path: text for path, text in texts.items() if 'if __name__ == "__main__"' in text}
    starting = {path.relative_to(ROOT): text for path, text in commands.items() if STARTS.search(text)}
    assert len(starting) > 20
    assert [path for path, text in starting.items() if "run_command(" not in text] == []

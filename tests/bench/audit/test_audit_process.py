"""An audit that comes to nothing, for lack of room or of a process: a note of the run, whose result is kept."""

from __future__ import annotations

import errno
import os
import shutil
import struct
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench import judge
from bench.audit.process import AuditProcess, Unaudited
from bench.results.audit_file import AUDIT, FOLDER
from bench.results.runfolder import find_runs
from ddp.process import forkserver
from tests.bench.runner.scripts import AuditHere, in_threads, trainer


def torn(connection: Connection) -> None:
    """It was killed in the middle of its report."""
    os.write(connection.fileno(), struct.pack("!i", 100) + b"half")


def without_a_word(connection: Connection) -> None:
    """It was killed before."""


def gone(connection: Connection) -> None:
    raise EOFError("unexpected EOF")


def no_more(connection: Connection) -> None:
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


@pytest.mark.parametrize(
    ("start", "why"),
    [
        (torn, "its process ended with exit code -9"),
        (without_a_word, "its process ended with exit code -9"),
        (gone, "its process cannot be started: the fork server is gone"),
        (no_more, "its process cannot be started: Resource temporarily unavailable: no more processes"),
    ],
)
def test_a_process_that_comes_to_no_report_says_why(
    monkeypatch: pytest.MonkeyPatch, start: Callable[[Connection], None], why: str
) -> None:
    def process(args: tuple[Any, Connection], **_: object) -> Any:
        ends = {"join": lambda: None, "kill": lambda: None, "exitcode": -9}
        return SimpleNamespace(start=lambda: start(args[1]), **ends)

    context = SimpleNamespace(Process=process)
    monkeypatch.setattr(forkserver, "warm", lambda preload=(): context)
    with pytest.raises(Unaudited, match=why), AuditProcess(cast(Any, None)) as audit:
        audit.report()


def unaudited(*_: object) -> Any:
    raise Unaudited("its process ended with exit code -9\nTraceback")


def full(*_: object) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "here/kept", None, "there/kept")


@pytest.mark.parametrize(
    ("place", "breaks", "note", "verdict"),
    [
        (
            (AuditHere, "__init__"),
            unaudited,
            "the run is not audited: its process ended with exit code -9; by hand: ",
            "",
        ),
        (
            (AuditHere, "report"),
            unaudited,
            "the run is not audited: its process ended with exit code -9; by hand: ",
            "",
        ),
        ((shutil, "move"), full, "not left in the run folder (No space left on device: there/kept)", "PASS"),
        (("bench.runner.launch.write_report",), full, "", ""),
    ],
)
def test_an_audit_that_fails_costs_nobody_the_result(
    tmp_path: Path, place: tuple[Any, ...], breaks: Callable[..., Any], note: str, verdict: str
) -> None:
    with in_threads() as patch:
        patch.setattr("bench.runner.script.write_report", lambda *paths, **more: None)
        patch.setattr(*place, breaks)
        (handle := trainer(tmp_path, audit=True, mode="nccl_sync").run()).join()
    (run,), problems = find_runs(tmp_path)
    assert (run.metrics.status, problems) == ("ok", [])
    (said,) = [line for line in run.metrics.warnings if "audit" in line] or [""]
    assert note in said
    assert "by hand" not in note or said.endswith(f"python -m bench audit {run.path}")
    assert (run.path / AUDIT).exists() is (verdict == "PASS")
    assert (run.path / FOLDER).exists() is (place[0] is not shutil), "with them it can be audited by hand"
    (judged,) = [each for each in judge(handle).verdicts if each.check == "audit"]
    assert judged.name == (verdict or "INCONCLUSIVE")
    assert verdict or "was not audited; audit it: python -m bench audit " in str(judged)

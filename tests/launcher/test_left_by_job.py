"""What a requeued job goes on with: what it has left itself, whatever else there is of the run."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.base.usage import UsageError
from bench.results import lease
from bench.runner import resume
from bench.runner.machines import left_by_job
from bench.runner.resume import ResumeSource

STRANGER = 2**22 + 1
"""A number that no process here has."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a finished run of job 41 lies, and what job 42 left when it trained it again."""
    monkeypatch.setattr(resume, "status", lambda folder: "ok" if folder.name == "w2-s0-abc" else None)
    checkpoint = SimpleNamespace(coordinator=SimpleNamespace(samples=5))
    monkeypatch.setattr(resume, "find_latest", lambda folder: (checkpoint, []))
    folder(tmp_path / "w2-s0-abc", "41")
    folder(tmp_path / f".tmp-w2-s0-abc-{STRANGER}", "42")
    return tmp_path / "w2-s0-abc"


def folder(path: Path, job: str) -> Path:
    path.mkdir()
    (path / "config.json").write_text("{}")
    (path / "events.jsonl").write_text(json.dumps({"env": {"launcher": {"job": job}}}) + "\n")
    return path


def test_a_job_that_trains_a_finished_run_again_goes_on_with_its_own(place: Path) -> None:
    mine = left_by_job(place, "42")
    assert isinstance(mine, ResumeSource)
    assert mine.folder.name.startswith(".tmp-")
    assert left_by_job(place, "41") == place
    assert left_by_job(place, "43") is None


def test_a_run_that_another_job_writes_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "POLL_S", 0.01)
    other = folder(place.with_name(f".tmp-w2-s0-abc-{STRANGER}@otherone"), "44")
    renewing = threading.Timer(0.1, lambda: (other / "note").touch())
    renewing.start()
    with pytest.raises(UsageError, match=f"still going on, in process {STRANGER} of another host"):
        left_by_job(place, "42")
    renewing.join()

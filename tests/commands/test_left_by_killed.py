"""What a command that a supervisor started again takes for the run of the one that was killed."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.base.interrupts import SUPERVISED
from bench.runner import resume
from bench.runner.supervise import left_by_killed
from tests.bench.streams import make_metrics, make_spec, write_run


def _begun(place: Path, at: float) -> None:
    """A run without a checkpoint, by the clock of its file system."""
    folder = place.with_name(f".tmp-{place.name}-{2**22 + 1}")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    os.utime(folder / "config.json", (at, at))


def test_only_a_cell_that_was_killed_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells of a sweep that had never begun were said to begin anew."""
    place, since = tmp_path / "mlp" / "solo" / "w1-s0-abc", time.time()
    monkeypatch.setenv(SUPERVISED, json.dumps({"since": since, "because": "killed"}))
    assert left_by_killed(place) == (None, ())
    _begun(place, since + 1.0)
    assert left_by_killed(place) == (None, ("killed; without a checkpoint of this run it began anew",))


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_what_was_begun_since_is_told_by_the_clock_of_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    place, since = tmp_path / "mlp" / "solo" / "w1-s0-abc", time.time()
    monkeypatch.setattr(resume, "now", lambda folder: time.time() + ahead)
    monkeypatch.setenv(SUPERVISED, json.dumps({"since": since, "because": "killed"}))
    _begun(place, since + ahead - 60.0)
    assert left_by_killed(place) == (None, ()), "of before"
    _begun(place.with_name("w1-s1-abc"), since + ahead + 60.0)
    assert left_by_killed(place.with_name("w1-s1-abc"))[1]


@pytest.mark.parametrize("suffix", ["", ".failed"])
def test_a_cell_that_had_failed_by_itself_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """It was said to have been killed, and to have gone on, when another cell was."""
    spec, latest = make_spec("solo"), SimpleNamespace(coordinator=SimpleNamespace(samples=8))
    place = write_run(tmp_path, spec, make_metrics(spec, status="failed"))
    place.rename(place.with_name(place.name + suffix))
    monkeypatch.setattr(resume, "find_latest", lambda folder: (latest, []))
    monkeypatch.setenv(SUPERVISED, json.dumps({"since": time.time() - 60.0, "because": "killed"}))
    assert left_by_killed(place) == (None, ())
    place.with_name(place.name + suffix).rename(place.with_name(f".tmp-{place.name}-{2**22 + 1}"))
    source, _ = left_by_killed(place)
    assert isinstance(source, resume.ResumeSource), "killed before it was in place"
    assert source.because == "killed"

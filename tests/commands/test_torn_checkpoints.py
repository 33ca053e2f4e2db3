"""A run of which no checkpoint is undamaged begins anew, and says why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from bench.base.interrupts import SUPERVISED
from bench.results.analysis.faults import BEGAN_ANEW
from bench.runner import automatic_restart
from bench.runner.launch import CutShort
from bench.runner.supervise import left_by_killed
from ddp.core.errors import RankLost
from ddp.core.messages.run_bounds import Attempt
from ddp.core.policies import POLICIES
from ddp.replica.task import Job
from tests.commands.test_restarts import OnlyJob
from tests.runtime import toy


def torn(folder: Path) -> Path:
    """A run's folder with one checkpoint, which has no manifest."""
    (folder / "checkpoints" / "000001").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_when_all_ranks_are_lost(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It said that there was no checkpoint yet."""
    told: list[tuple[str, ...]] = []

    def launched(*_: object, notes: tuple[str, ...], **__: object) -> str:
        told.append(notes)
        if len(told) == 1:
            broken = CutShort(RankLost("rank 0: gone"), (), Attempt(0.0, 0.5, 1.0, 8, ()))
            broken.folder = torn(tmp_path)
            raise broken
        return "the outcome"

    job = Job(toy.task, 1, 8, 0, 2, POLICIES["sync"](), "zero1", tmp_path, restarts=None)
    monkeypatch.setattr(automatic_restart, "launch", launched)
    automatic_restart.launch_with_restarts(cast(Any, OnlyJob(job)), cast(Any, None), None, 0)
    why = f"{tmp_path}/checkpoints/000001/books: No such file or directory"
    assert told == [(), (f"{BEGAN_ANEW} (0 times so far), as no checkpoint is undamaged ({why}): rank 0: gone",)]


def test_when_a_command_was_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    place = tmp_path / "w1-s0-abc"
    torn(place.with_name(f".tmp-{place.name}-{2**22 + 1}"))
    monkeypatch.setenv(SUPERVISED, json.dumps({"since": 0.0, "because": "killed"}))
    source, (note,) = left_by_killed(place)
    assert source is None
    assert note.startswith(f"killed; it began anew: resume={place}: ")
    assert note.endswith("books: No such file or directory; run it anew")

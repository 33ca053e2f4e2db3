"""Settings for lost ranks that a run did not heed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.runfolder import Run
from bench.validate.records.run_records import Records
from bench.validate.rules.unheeded import unheeded
from ddp.core.membership.joining import OFFERED
from ddp.core.messages.commands import Drop, Restart, Train
from ddp.core.messages.events import Resumed
from ddp.core.samples.spans import Chunk
from tests.bench.streams import make_metrics, make_spec

GONE = Drop(1, "its process is gone (killed by signal 9)")
ON = Train(0, Chunk(0, 0, 8, 8, 0, 1), 0, 1.0, "")


def found(settings: dict[str, Any], *moves: Drop | Restart, trains: float = 100.0, **change: Any) -> str:
    """Return what is said of a run with such moves, one a second, that trains until then."""
    known = Records(moves=[(1.0 + at, move) for at, move in enumerate(moves)], work=[(trains, ON)])
    run = Run(Path(), make_metrics(make_spec("nccl_cadence")), {"cluster": {"deadline_s": 10, **settings}})
    return unheeded(run, replace(known, **change))


@pytest.mark.parametrize(
    ("restart", "moves", "wrong"),
    [
        ("never", [GONE], ""),
        ("never", [GONE, Restart(1, 1, OFFERED)], ""),
        ("never", [GONE, Restart(1, 1, "start 1")], "rank 1 was started again 1 times, with cluster.restart=never"),
        ("always", [GONE], "rank 1 was lost and never started again, with cluster.restart=always"),
        ("2", [GONE], "rank 1 was lost and never started again, with cluster.restart=2"),
        ("2", [GONE, Restart(1, 1, "start 1")], ""),
        ("1", [GONE, Restart(1, 1, "start 1"), GONE], ""),
        ("1", [GONE, Restart(1, 1, "start 1"), GONE, Restart(1, 2, "start 1")], "rank 1 was started again 2 times"),
        ("1", [GONE, Restart(1, 1, "start 1"), Drop(0, ""), Restart(0, 1, "start 1")], ""),
    ],
)
def test_lost_ranks_are_started_again_as_often_as_set(restart: str, moves: list[Drop | Restart], wrong: str) -> None:
    said = found({"restart": restart}, *moves)
    assert said.startswith(wrong)
    assert bool(said) == bool(wrong)
    assert found({"restart": restart}, *moves, resumed=[Resumed(0.5, 0, 0, 0, "there")]) == ""


def test_who_is_lost_when_all_is_trained_is_not_needed() -> None:
    assert found({"restart": "always"}, GONE, trains=0.5) == ""


@pytest.mark.parametrize(("seconds", "wrong"), [(10.0, False), (14.2, False), (60.1, True), (2.0, True)])
def test_a_silent_rank_is_given_up_at_the_deadline(seconds: float, wrong: bool) -> None:
    said = found({"restart": "never"}, Drop(1, f"silent for {seconds} s, since a collective broke"))
    assert bool(said) == wrong
    assert not wrong or said == f"rank 1 was given up after {seconds:g} s of silence, with cluster.deadline_s=10"

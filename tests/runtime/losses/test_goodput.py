"""Goodput of real ranks: one is lost and comes back, and every second of every rank is in the part that it belongs to."""

from __future__ import annotations

import pytest

from bench.results.analysis.goodput import goodput
from bench.results.analysis.stream import RunRecords, sort
from ddp.core.messages.commands import Drop, Restart
from ddp.core.messages.events import Finished, Merged, Progress
from ddp.core.messages.join_events import Joining
from ddp.core.messages.measurements import Slice
from ddp.core.samples.spans import measure
from ddp.process.codec import decode
from tests.runtime.conftest import Play, Played
from tests.runtime.losses.test_rejoin import MODES, returns


def stream(played: Played) -> RunRecords:
    """The records of a run with the slices that its ranks wrote."""
    rows = [(at, record) for at, record in zip(played.times, played.records, strict=True)]
    for path in played.job.scratch.glob("slices-*.jsonl"):
        pieces = [decode(line) for line in path.read_bytes().splitlines()]
        rows += [(piece.at, piece) for piece in pieces if isinstance(piece, Slice)]
    rows.sort(key=lambda row: row[0])
    return sort([record for _, record in rows], rows[0][0])


def first(played: Played, kind: type) -> float:
    return next(at for at, record in zip(played.times, played.records, strict=True) if isinstance(record, kind))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(("policy", "backend"), MODES)
def test_a_rank_that_was_lost_and_came_back(play: Play, policy: str, backend: str) -> None:
    played = returns(play, policy, backend, "1@5:raise", epochs=12)
    launched, ended = played.times[0] - 0.01, max(event.at for event in played.of(Finished))
    result = goodput(stream(played), 3, launched, ended)
    assert result is not None
    parts = result.parts.model_dump()
    assert result.rank_seconds == pytest.approx(3 * (ended - launched), rel=1e-3)
    assert sum(parts.values()) == pytest.approx(1)
    assert min(parts.values()) >= 0
    start = first(played, Joining) - first(played, Restart)
    assert parts["starting"] * result.rank_seconds >= start
    assert first(played, Drop) <= first(played, Restart)
    trained = sum(event.samples for event in played.of(Progress))
    merged = sum(measure(event.spans) for event in played.of(Merged))
    lost = trained - merged
    assert (parts["discarded"] > 0) == (parts["repeated"] > 0)
    assert parts["discarded"] > 0 or not lost, "what was trained twice was thrown away once"
    assert parts["kept"] > parts["repeated"]

"""Waiting for orders has timings: what lies between a rank's last report and its next order."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.results.runfolder import find_runs
from bench.validate.checks import breakdown
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from bench.validate.rules.due_slices import lacking
from bench.validate.rules.idle_ranks import unwaited
from ddp.core.messages.commands import Apply, Average, Evaluate, Train
from ddp.core.messages.events import Averaged, Evaluated, Progress, Snapshot
from ddp.core.samples.spans import Chunk

RECORDED = Path(__file__).parents[4] / "benchmarks/golden/recorded/mlp/cpu_sync"


def rounds(count: int, granted: int = 8, parts: int = 1) -> Records:
    """Rounds of a second: the rank trains for 0.2 s, then waits for its snapshot's average for 0.6 s, if nothing else is
    granted."""
    known = Records()
    for at in range(count):
        chunk = Chunk(0, 0, granted, 8, 0, parts)
        known.work.append((at + 0.0, Train(0, chunk, 0, 1.0, "")))
        known.work.append((at + 0.1, Average(0, at, (0, 1), True, "")))
        known.progress.append(Progress(at + 0.2, 0, 0, 1, 8, 0.2, 1.0, 0.1))
        known.snapshots.append(Snapshot(at + 0.2, 0, at, 1, 8))
        known.work.append((at + 0.8, Apply(0, at, "")))
        known.averaged.append(Averaged(at + 0.9, 0, at, 0, 0, 0.1, 8, 0.0))
    return known


@pytest.mark.parametrize(
    ("waited", "more", "wrong"),
    [
        (0.0, {}, True),
        (1.5, {}, True),
        (2.5, {}, False),
        (0.0, {"granted": 16}, False),
        (0.0, {"parts": 2}, False),
        (0.0, {"count": 1}, False),
        (0.0, {"engine": "graph"}, False),
    ],
)
def test_waiting_for_orders_has_timings(waited: float, more: dict[str, Any], wrong: bool) -> None:
    """Waits without timings were called other time."""
    engine = more.pop("engine", "elche")
    known = rounds(**({"count": 10} | more))
    known.seconds[0, "wait"] = waited
    run: Any = SimpleNamespace(metrics=SimpleNamespace(engine=engine, backend="cpu"))
    said = unwaited(run, known)
    assert said == (f"rank 0 waited for orders for 6.9 s, but recorded {waited:.3g} s of waiting" if wrong else "")


def test_orders_to_work_are_read_with_their_times() -> None:
    (run,) = find_runs(RECORDED)[0]
    known = records(run)
    assert known is not None
    at, order = known.work[0]
    assert isinstance(order, Train)
    assert min(event.at for event in known.ready) <= at <= known.progress[0].at
    assert {type(order) for _, order in known.work} >= {Train, Average, Apply, Evaluate}
    assert [at for at, _ in known.work] == sorted(at for at, _ in known.work)


def test_the_breakdown_asks_for_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    run: Any = SimpleNamespace(metrics=SimpleNamespace(engine="elche", backend="cpu", policy="sync"), config={})
    for name in ("_outside", "lacking", "_meetings", "_averaging", "_booked_twice", "_rests_in_steps", "_away"):
        monkeypatch.setattr(breakdown, name, lambda *_: "")
    monkeypatch.setattr(breakdown, "_processor", lambda *_: "")
    monkeypatch.setattr(breakdown, "otherwise_slow", lambda *_: "")
    assert "waited for orders" in breakdown._unlike(run, rounds(10))


@pytest.mark.parametrize("samples", [0, 5])
def test_an_evaluation_of_samples_has_timings(samples: int) -> None:
    """In virtual time one of an empty test set takes none."""
    known = Records(
        progress=[Progress(0.0, 0, 0, 0, 0, 0.0, 1.0, 0.1)], evaluated=[Evaluated(1.0, 0, 0, samples, 0.0, 0.0, 0.0)]
    )
    metrics = SimpleNamespace(engine="virtual", policy="sync", backend="nccl", world_size=2, batch_size=16)
    run: Any = SimpleNamespace(metrics=metrics)
    assert bool(lacking(run, known)) is (samples > 0)

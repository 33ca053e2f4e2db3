"""The text form of records: what earlier versions wrote is read under the names of now."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ddp.checkpoint.checkpoint import RENAMED
from ddp.core.messages.commands import CoordinatorCheckpoint, LoadState, Plan, Publish, SendState
from ddp.core.messages.events import Averaged, Evaluated, Progress, Snapshot
from ddp.process.codec import Record, body, decode, encode

PLAN = Plan((2, 1), (0, 0), False, 0, False, 1, "a test", rebalance=True)
PUBLISH = Publish(3, (0,), (), CoordinatorCheckpoint(8, 1, (), 2, 1, None, PLAN), "a test")
RECORDS = {
    '"takeover":': '"rebalance":',
    '"books":': '"coordinator":',
    '"Share"': '"SendState"',
    '"Adopt"': '"LoadState"',
}


@pytest.mark.parametrize(
    "record",
    [PLAN, PUBLISH, SendState(0, 1, 'a reason that says "before":'), LoadState(0, 1, "a test")],
    ids=lambda record: type(record).__name__,
)
def test_lines_of_earlier_versions_are_read(record: Record) -> None:
    line = encode(record, 1.0).decode()
    for old, new in RECORDS.items():
        line = line.replace(new, old)
    assert any(old in line for old in RECORDS)
    assert decode(line) == decode(line.encode()) == decode(encode(record)) == record
    assert body(line).keys() >= {field for field in ("rebalance",) if hasattr(record, field)}


@pytest.mark.parametrize(
    ("record", "fields"),
    [
        (Averaged(1.0, 0, 3, 2, 8, 0.1, 64, 0.5), ("brought", "became", "average")),
        (Averaged(1.0, 0, 3, 2, 8, 0.1, 64, 0.5), ("before", "after", "average")),
        (Snapshot(1.0, 0, 3, 2, 8), ("before",)),
        (Evaluated(1.0, 0, 3, 2, 8.0, 0.1, 64.0), ("model",)),
    ],
)
def test_sums_of_earlier_versions_are_passed_over(record: Record, fields: tuple[str, ...]) -> None:
    """They are of all values together; their runs are judged by what else they recorded."""
    line = msgspec.json.decode(encode(record)) | {key: [1.0, 2.0, None, None] for key in fields}
    assert decode(msgspec.json.encode(line)) == record


def test_probes_of_earlier_versions_are_passed_over() -> None:
    report = Progress(1.0, 0, 0, 1, 4, 0.1, 1.0, 0.1, after=2)
    probe = {"samples": 4, "total": 8, "brought": [1.0, 2.0], "became": [1.0, 2.0]}
    line = msgspec.json.decode(encode(report)) | {"probes": [probe]}
    assert decode(msgspec.json.encode(line)) == report


def test_plans_in_the_books_of_earlier_versions_are_read() -> None:
    written = msgspec.msgpack.encode(PLAN).replace(*reversed(RENAMED))
    assert b"takeover" in written
    assert msgspec.msgpack.decode(written, type=Plan) == replace(PLAN, rebalance=False)
    assert msgspec.msgpack.decode(written.replace(*RENAMED), type=Plan) == PLAN

"""The text form of records: what earlier versions wrote is read under the names of now."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from ddp.checkpoint.checkpoint import RENAMED
from ddp.core.commands import LoadState, Plan, SendState
from ddp.core.events import Averaged, Probe, Progress, Snapshot
from ddp.process.codec import Record, body, decode, encode

SUMS = (1.0, 2.0, None, None)
PLAN = Plan((2, 1), (0, 0), False, 0, False, 1, "a test", rebalance=True)
RECORDS = {
    '"brought":': '"before":',
    '"became":': '"after":',
    '"takeover":': '"rebalance":',
    '"Share"': '"SendState"',
    '"Adopt"': '"LoadState"',
}


@pytest.mark.parametrize(
    "record",
    [
        Averaged(1.0, 0, 3, 2, 8, 0.1, 64, 0.5, before=SUMS, after=SUMS, average=SUMS),
        Snapshot(1.0, 0, 3, 2, 8, before=SUMS),
        Progress(1.0, 0, 0, 1, 4, 0.1, 1.0, 0.1, after=2, probes=(Probe(4, 8, before=SUMS, after=SUMS),)),
        PLAN,
        SendState(0, 1, 'a reason that says "before":'),
        LoadState(0, 1, "a test"),
    ],
    ids=lambda record: type(record).__name__,
)
def test_lines_of_earlier_versions_are_read(record: Record) -> None:
    line = encode(record, 1.0).decode()
    for old, new in RECORDS.items():
        whole = f'"after":{getattr(record, "after", None)}'  # the round that a report follows was always called so
        line = line.replace(whole, "\0").replace(new, old).replace("\0", whole)
    assert any(old in line for old in RECORDS)
    assert decode(line) == decode(line.encode()) == decode(encode(record)) == record
    assert body(line).keys() >= {field for field in ("before", "rebalance") if hasattr(record, field)}


def test_plans_in_the_books_of_earlier_versions_are_read() -> None:
    written = msgspec.msgpack.encode(PLAN).replace(*reversed(RENAMED))
    assert b"takeover" in written
    assert msgspec.msgpack.decode(written, type=Plan) == replace(PLAN, rebalance=False)
    assert msgspec.msgpack.decode(written.replace(*RENAMED), type=Plan) == PLAN

"""Slices are read apart from other records, as columns: what is counted of them is what a plain loop counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from bench.results.chain import chained
from bench.results.recompute import plain
from bench.results.runfolder import EVENTS
from bench.validate.records.reading import Reading, _read
from bench.validate.records.run_records import BETWEEN_STEPS
from ddp.core.messages.events import Resumed, Saved, Slice
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.process.codec import Record, encode
from tests.bench.streams import LAUNCHED, make_records, make_spec

SPEC = make_spec("nccl_cadence")
HEADER = RunHeader(LAUNCHED, LAUNCHED, plain(SPEC), {}, {})
RECORDS = make_records(SPEC)
LATEST = max(record.at for record in RECORDS if hasattr(record, "at"))
END = RunEnd(LATEST + 1.0, "ok", None, (), 0)
STRAY = Slice(LATEST, 0, "wait", 0.25)


def read(folder: Path, records: list[Record]) -> Reading:
    path = folder / EVENTS
    path.write_bytes(b"".join(line + b"\n" for line in chained(encode(record, LAUNCHED) for record in records)))
    return _read(path, path.stat().st_mtime_ns, None)


def test_slices_are_counted_as_a_loop_counts_them(tmp_path: Path) -> None:
    hidden = Slice(LATEST, 1, "hidden", 0.125, 7, 64)
    known = read(tmp_path, [HEADER, *RECORDS, hidden, STRAY, END]).records
    counts, seconds = Counter[tuple[int, str]](), defaultdict[tuple[int, str], float](float)
    met, rests = defaultdict[int, list[object]](list), defaultdict[int, list[object]](list)
    for each in (*RECORDS, hidden, STRAY):
        if isinstance(each, Slice):
            counts[each.rank, each.kind] += 1
            seconds[each.rank, each.kind] += each.seconds
            if each.kind == "exchange":
                met[each.seq].append((each.rank, each.at, each.at + each.seconds, each.bytes))
            if each.kind in BETWEEN_STEPS:
                rests[each.rank].append((each.at, each.at + each.seconds))
    assert sum(counts.values()) > 100
    assert met
    assert (known.slices, known.seconds, known.collectives, known.rests) == (counts, seconds, met, rests)
    assert known.hidden == {7: [(1, LATEST, LATEST + 0.125, 64)]}
    assert known.spans[1, "hidden"] == (LATEST, LATEST + 0.125)


def test_what_was_measured_before_a_run_was_gone_on_with_is_forgotten(tmp_path: Path) -> None:
    half = len(RECORDS) // 2
    known = read(tmp_path, [HEADER, *RECORDS[:half], Resumed(LATEST, 1, 1, 64, "elsewhere"), STRAY, END]).records
    assert known.slices == {(0, "wait"): 1}
    assert known.rests == {0: [(LATEST, LATEST + 0.25)]}


def test_the_checkpoint_that_a_run_resumed_from_is_measured_with_what_came_before(tmp_path: Path) -> None:
    """It is recorded at the instant of the resumption, and its timing is not among those since: the run failed."""
    records: list[Record] = [
        Saved(LATEST, 0, 1, ()),
        Resumed(LATEST, 1, 1, 64, "elsewhere"),
        Saved(LATEST + 0.5, 0, 2, ()),
        END,
    ]
    known = read(tmp_path, [HEADER, *RECORDS, *records]).records
    assert [event.index for event in known.saved] == [1, 2]
    assert [event.index for event in known.measured().saved] == [2]


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([STRAY, HEADER, *RECORDS, END], "its first line does not say what the run is"),
        ([HEADER, *RECORDS, END, STRAY], "its last line does not say how the run ended"),
        ([HEADER], "its last line does not say how the run ended"),
        ([STRAY], "its first line does not say what the run is"),
    ],
)
def test_a_slice_is_neither_the_first_record_nor_the_last(tmp_path: Path, records: list[Record], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        read(tmp_path, records)


def test_a_slice_that_is_none_is_named_by_its_line(tmp_path: Path) -> None:
    lines = [encode(record, LAUNCHED) for record in (HEADER, *RECORDS, END)]
    place = next(n for n, line in enumerate(lines) if line.startswith(b'{"type":"Slice"'))
    lines[place] = lines[place].replace(b'"seconds":', b'"minutes":')
    path = tmp_path / EVENTS
    path.write_bytes(b"".join(line + b"\n" for line in chained(lines)))
    with pytest.raises(ValueError, match=rf"{EVENTS}:{place + 1}: malformed message .*seconds"):
        _read(path, 0, None)

"""The chain of a record: what was changed, dropped, added or moved is named, and a whole record is never blamed."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.results.chain import Seal, batches, chained, digest_of, lines, linked, seal_of, unlinked
from bench.results.journal import Journal
from bench.results.runfolder import EVENTS
from ddp import regular_files
from ddp.core.messages.events import Alive, Slice
from ddp.core.messages.run_bounds import RunEnd
from ddp.process.codec import encode

BODIES = st.lists(st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=5), min_size=1), min_size=2)


def spelt(bodies: list[dict[str, object]]) -> list[bytes]:
    """A line for each, all of them different."""
    return [json.dumps({"place": place} | body).encode() for place, body in enumerate(bodies)]


def written(path: Path, rows: list[bytes]) -> Path:
    path.write_bytes(b"".join(row + b"\n" for row in rows))
    return path


def place_of(error: ValueError, path: Path) -> int:
    assert str(error).startswith(f"{path}:"), error
    return int(str(error).removeprefix(f"{path}:").partition(":")[0])


@given(BODIES)
def test_a_digest_is_put_on_and_taken_off(bodies: list[dict[str, object]]) -> None:
    rows = spelt(bodies)
    whole = list(chained(rows))
    assert [unlinked(line) for line in whole] == rows == [unlinked(row) for row in rows]
    assert all(json.loads(line).pop("d") == digest_of(line).decode() for line in whole)


@settings(max_examples=200, deadline=None)
@given(bodies=BODIES, data=st.data(), sealed=st.booleans())
def test_one_edit_is_named_with_its_line(
    bodies: list[dict[str, object]], data: st.DataObject, sealed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.getbasetemp() / f"record-{os.getpid()}.jsonl"
    whole = list(chained(spelt(bodies)))
    seal = seal_of(written(path, whole))
    assert list(lines(path, seal)) == list(lines(path)) == whole
    place = data.draw(st.integers(0, len(whole) - 1), label="place")
    how = data.draw(st.sampled_from(("change", "drop", "add", "move")), label="how")
    rows = list(whole)
    if how == "change":
        rows[place] = rows[place].replace(b'"place": ', b'"place": 1', 1)
    elif how == "drop":
        del rows[place]
    elif how == "add":
        rows.insert(place, data.draw(st.sampled_from(whole), label="again") if place else whole[-1])
    else:
        other = data.draw(st.integers(0, len(whole) - 1).filter(lambda to: to != place), label="to")
        rows.insert(other, rows.pop(place))
    written(path, rows)
    last = how == "drop" and place == len(whole) - 1
    if last and not sealed:
        assert list(lines(path)) == rows, "without a seal nobody knows of a line that is gone from the end"
        return
    with pytest.raises(ValueError, match=re.escape(str(path))) as caught:
        list(lines(path, seal if sealed else None))
    first = next((n for n, (a, b) in enumerate(zip(rows, whole, strict=False)) if a != b), min(len(rows), len(whole)))
    assert place_of(caught.value, path) == (len(rows) if last else first + 1)


def test_what_happened_is_said(tmp_path: Path) -> None:
    whole = list(chained([b'{"a":%d}' % n for n in range(6)]))
    path = tmp_path / EVENTS
    seal = seal_of(written(path, whole))
    for rows, text in (
        ([whole[0], linked(b'{"a":9}', b"elsewhere"), *whole[2:]], f"{path}:2: was changed"),
        ([whole[0], *whole[2:]], f"{path}:2: does not follow the line before it: 1 line of the record is missing"),
        (
            [whole[0], whole[4], *whole[1:]],
            f"{path}:2: was added or moved here: the line that belongs here comes after",
        ),
        (whole[:4], f"{path}:4: ends here, of 6 lines: the last ones are missing"),
        ([*whole, linked(b"{}", digest_of(whole[-1]))], f"{path}:7: was added: the record has 6 lines"),
    ):
        written(path, rows)
        with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
            list(lines(path, seal))


def test_a_chain_that_was_made_anew_does_not_fit_the_seal(tmp_path: Path) -> None:
    seal = seal_of(written(tmp_path / EVENTS, list(chained([b'{"a":1}', b'{"a":2}']))))
    written(tmp_path / EVENTS, list(chained([b'{"a":1}', b'{"a":3}'])))
    with pytest.raises(ValueError, match=r"sha256 is \w{16}, and \w{16} in metrics.json \(record.sha256\)"):
        list(lines(tmp_path / EVENTS, seal))


def test_a_record_of_an_earlier_version_is_read_as_it_is(tmp_path: Path) -> None:
    rows = [b'{"a":1}', b'{"a":2}']
    assert list(lines(written(tmp_path / EVENTS, rows))) == rows
    with pytest.raises(ValueError, match=":1: was changed"):
        list(lines(tmp_path / EVENTS, Seal(2, "")))


def test_a_torn_last_line_is_passed_over_only_where_that_is_meant(tmp_path: Path) -> None:
    whole = list(chained([b'{"a":1}', b'{"a":2}']))
    path = written(tmp_path / EVENTS, whole)
    path.write_bytes(path.read_bytes()[:-3])
    assert list(lines(path, torn=True)) == whole[:1]
    with pytest.raises(ValueError, match=":2: was changed"):
        list(lines(path))


def test_a_journal_is_a_chain_from_its_first_line_on(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    with Journal(path) as journal:
        journal.add(Alive(1.0, 0), 1.0)
        journal.add(Alive(3.0, 0), 3.0)
        assert len(list(lines(path))) == 2, "a run that is killed has a chain"
    with Journal(path) as journal:
        journal.add(Alive(4.0, 0), 4.0)
        assert len(list(lines(path))) == 3, "and one that goes on begins where it ended"
        (tmp_path / "slices-0.jsonl").write_bytes(encode(Slice(2.0, 0, "forward", 0.5)) + b"\n")
        journal.merge()
        seal = journal.end(RunEnd(5.0, "ok", None, (), 0))
    assert [json.loads(line)["at"] for line in lines(path, seal)] == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert seal == seal_of(path)


def test_a_line_without_a_digest_before_others_is_named(tmp_path: Path) -> None:
    rows = [b'{"a":0}', *chained([b'{"a":1}', b'{"a":2}'])]
    with pytest.raises(ValueError, match=":1: was added or changed: it has no digest, and line 2 has one"):
        list(lines(written(tmp_path / EVENTS, rows)))


def test_a_record_of_many_blocks_is_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = list(chained([b'{"a":%d}' % n for n in range(50)]))
    path = written(tmp_path / EVENTS, whole)
    seal = seal_of(path)
    monkeypatch.setattr(regular_files, "BLOCK", 37)
    assert list(lines(path, seal)) == whole
    assert len(list(batches(path, seal))) > 5
    with pytest.raises(ValueError, match=":31: does not follow the line before it: 1 line"):
        list(lines(written(path, [*whole[:30], *whole[31:]]), seal))
    written(path, whole[:20]).write_bytes(path.read_bytes()[:-3])
    assert list(lines(path, torn=True)) == whole[:19]


def test_lines_before_a_changed_one_are_read_first(tmp_path: Path) -> None:
    """So that whoever reads them says what is wrong with the first of them."""
    whole = list(chained([b'{"a":1}', b'{"a":2}', b'{"a":3}']))
    read = lines(written(tmp_path / EVENTS, [*whole[:2], whole[2].replace(b"3", b"4", 1)]))
    assert [next(read), next(read)] == whole[:2]
    with pytest.raises(ValueError, match=":3: was changed"):
        next(read)


def test_no_line_is_longer_than_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_files, "BLOCK", 8)
    monkeypatch.setattr(regular_files, "LONGEST", 20)
    path = tmp_path / EVENTS
    for text, count in ((b"a" * 19 + b"\nb\n", 2), (b"a\n" + b"b" * 20, 2)):
        path.write_bytes(text)
        assert b"".join(regular_files.lines(path)) == text
        assert len(list(regular_files.lines(path))) == count
    for text in (b"a" * 20 + b"\nb\n", b"a\n" + b"b" * 21, b"a\n" + b"b" * 200):
        path.write_bytes(text)
        with pytest.raises(OSError, match="a line of more than 20 bytes"):
            list(regular_files.lines(path))

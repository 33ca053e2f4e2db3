"""The dashboard over folders: what is found, and how it is followed."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.dashboard import tree
from bench.dashboard.about import RUNNING, RunCard
from bench.dashboard.board import ABOUT, LIVE, ROW, RunBoard, whole
from bench.results.journal import Journal
from bench.results.live.history import RunHistory
from bench.results.live.tail import Tail
from bench.results.runfolder import EVENTS
from bench.results.writer import RunWriter
from ddp.core.messages import events
from ddp.process.codec import encode
from tests.bench.dashboard.dashboards import begin, line, progress
from tests.bench.streams import make_spec, write_run


def test_records_are_followed_line_by_line(tmp_path: Path) -> None:
    path = tmp_path / EVENTS
    tail = Tail(tmp_path, RunHistory)
    tail.read()
    whole_line = line(progress(1.0))
    for upto, samples in ((0, 0), (5, 0), (len(whole_line) - 1, 0), (len(whole_line), 10)):
        path.write_bytes(whole_line[:upto])
        tail.read()
        assert tail.state.run.samples == samples
    with path.open("ab") as file:
        file.write(b"no record\n" + b'{"type":"Progress"}\n' + b"\xff\n" + b"[" * 9000 + b"\n" + line(progress(2.0)))
    tail.read()
    assert (tail.state.run.samples, tail.malformed) == (20, 4)


def test_a_file_that_takes_the_place_of_another_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, tail = tmp_path / EVENTS, Tail(tmp_path, RunHistory)
    path.write_bytes(line(progress(1.0)) * 3)
    tail.read()
    part = tmp_path / "part"
    part.write_bytes(line(progress(1.0, samples=7)) * 4)
    os.replace(part, path)
    assert tail.read()
    tail.read()
    assert tail.state.run.samples == 28


def test_what_ranks_measure_counts_once_before_and_after_the_merge(tmp_path: Path) -> None:
    tail = Tail(tmp_path, RunHistory)
    (tmp_path / "scratch").mkdir()
    with Journal(tmp_path / EVENTS) as journal:
        journal.keep_slices(tmp_path / "scratch", 1)
        journal.add(progress(1.0), 1.0)
        memory = [events.Memory(1.0 + i, 0, 100 * i, float(i)) for i in range(1, 4)]
        (tmp_path / "scratch" / "slices-0.jsonl").write_bytes(b"".join(encode(m) + b"\n" for m in memory))
        tail.read()
        shown = tail.state
        assert (shown.run.ranks[0].peak_rss_bytes, shown.run.ranks[0].cpu_s) == (300, 3.0)
        journal.merge()
    while tail.read():
        pass
    assert tail.state.run.ranks == shown.run.ranks
    assert tail.state.series == shown.series


def test_a_run_is_found_while_it_lasts_and_after_under_one_name(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    key = "mlp/nccl_cadence/w2-s0-abc"
    assert {name: found.running for name, found in tree.scan(tmp_path).items()} == {key: True}
    board = RunBoard(tmp_path)
    board.refresh([key])
    (writer.path / EVENTS).write_bytes(line(progress(1.0)))
    board.refresh([key])
    place = writer.commit("failed")
    board.refresh([key])
    (row,) = [json.loads(piece.text) for piece in board.since(0, []) if piece.kind == ROW]
    assert (row["key"], row["status"]) == (key, "left")  # no result was written
    assert tree.scan(place).keys() == {"w2-s0-abc"}
    live = {piece.key: json.loads(piece.text) for piece in board.since(0, [key]) if piece.kind == LIVE}
    assert live[key]["samples"] == 10
    assert any("metrics.json: missing" in note for note in live[key]["notes"])


@pytest.mark.parametrize("before", [False, True])
def test_a_page_over_one_run_has_it_while_it_lasts(tmp_path: Path, before: bool) -> None:
    """Its hidden folder lies beside the place that was asked for, and nothing was shown."""
    if before:
        begin(tmp_path).commit("failed")
    begin(tmp_path, "w2-s0-abc-7")  # another run, whose name begins alike
    writer = begin(tmp_path)
    place = tmp_path / "mlp" / "nccl_cadence" / "w2-s0-abc"
    (found,) = tree.scan(place).values()
    assert (found.key, found.folder, found.running) == ("w2-s0-abc", writer.path, True)
    (row,) = [json.loads(piece.text) for piece in whole(place) if piece.kind == ROW]
    assert (row["key"], row["status"]) == ("w2-s0-abc", "running")


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"mode": "graph"}, "graph"),
        ({"engine": "elche", "policy": {"name": "cadence"}, "backend": "nccl"}, "nccl_cadence"),
        ({"engine": "solo", "policy": None, "backend": None}, "solo"),
        ({"engine": "elche", "policy": {"name": ["cadence"]}, "backend": "zero1"}, "zero1"),
        ({"engine": 7, "mode": {}}, ""),
        ({}, ""),
    ],
)
def test_a_running_run_has_its_mode_over_a_folder_below_the_tree(config: dict[str, Any], mode: str) -> None:
    card = RunCard("w2-s0-abc", RUNNING, {"model": "mlp", "world_size": 2, **config})
    assert card.name == ("mlp", mode, "w2-s0-abc")
    assert replace(card, key="mlp/other/w2-s0-abc").name[1] == (mode or "other")


def test_a_run_that_is_trained_again_is_shown_as_it_is_now(tmp_path: Path) -> None:
    write_run(tmp_path, spec := make_spec())
    key = f"mlp/nccl_cadence/{spec.run_id}"
    board = RunBoard(tmp_path)
    board.refresh([key])
    writer = RunWriter(tmp_path, spec.model, spec.mode, spec.run_id)
    (writer.path / EVENTS).write_bytes(line(progress(1.0)))
    while board.refresh([key]):
        pass
    now = {piece.kind: json.loads(piece.text) for piece in board.since(0, [key])}
    assert (now[ROW]["status"], now[LIVE]["samples"]) == ("running", 10)
    writer.discard()
    while board.refresh([key]):
        pass
    now = {piece.kind: json.loads(piece.text) for piece in board.since(0, [key])}
    assert (now[ROW]["status"], now[LIVE]["samples"]) == ("ok", 5760)


def test_only_what_changed_has_a_new_number(tmp_path: Path) -> None:
    write_run(tmp_path, spec := make_spec())
    key = f"mlp/nccl_cadence/{spec.run_id}"
    board = RunBoard(tmp_path)
    board.refresh([key])
    number = board.number
    assert {piece.kind for piece in board.since(0, [key])} == {ROW, ABOUT, LIVE}
    assert {piece.kind for piece in board.since(0, ["other"])} == {ROW}
    board.refresh([key])
    assert board.number == number
    write_run(tmp_path, make_spec(seed=1))
    board.refresh([key])
    assert [(piece.kind, piece.key[-len("w2-s1-") :] != "") for piece in board.since(number, [key])] == [(ROW, True)]


def test_a_run_that_goes_away_is_taken_from_the_page(tmp_path: Path) -> None:
    writer = begin(tmp_path)
    board = RunBoard(tmp_path)
    board.refresh([])
    number = board.number
    writer.discard()
    board.refresh([])
    assert [(piece.kind, piece.text) for piece in board.since(number, [])] == [(ROW, "null")]

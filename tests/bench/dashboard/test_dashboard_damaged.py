"""Folders that cannot be read, or say what cannot be: a row that says so, and the others as ever."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.dashboard import tree, view
from bench.dashboard.about import RunCard
from bench.dashboard.board import LIVE, ROW, RunBoard, whole
from bench.results.live.history import RunHistory
from bench.results.runfolder import CONFIG, EVENTS, METRICS
from ddp.core.messages import commands
from ddp.process.codec import encode
from tests.bench.dashboard.dashboards import begin, line, progress
from tests.bench.streams import make_spec, write_run


def test_damaged_folders_are_rows_with_a_note(tmp_path: Path) -> None:
    for name, body in {"a": "{", "b": "[]", "c": '{"schema_version": 99}'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.json").write_text(body)
        (tmp_path / name / CONFIG).write_text(body)
    rows = [json.loads(piece.text) for piece in whole(tmp_path) if piece.kind == ROW]
    assert [row["status"] for row in rows] == ["left"] * 3
    notes = [json.loads(piece.text)["notes"] for piece in whole(tmp_path) if piece.kind == LIVE]
    assert all(notes)


def shown(board: RunBoard, kind: str, keys: tuple[str, ...] = ()) -> dict[str, Any]:
    return {piece.key: json.loads(piece.text) for piece in board.since(0, keys) if piece.kind == kind}


def test_what_one_folder_does_is_said_in_its_row_and_harms_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bad", "good"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).write_text(json.dumps({"model": name, "run_id": name, "world_size": 2}))
    live = view.live

    def fail(about: RunCard, state: RunHistory) -> Any:
        if about.key == "bad" and about.status != "broken":
            raise ZeroDivisionError("in its\nown way")
        return live(about, state)

    monkeypatch.setattr(view, "live", fail)
    board, keys = RunBoard(tmp_path), ("bad", "good")
    for _ in range(3):
        assert board.refresh(keys) is False
    rows, lives = shown(board, ROW), shown(board, LIVE, keys)
    assert {key: row["status"] for key, row in rows.items()} == {"bad": "broken", "good": "left"}
    assert rows["bad"]["problem"] == "this folder cannot be shown (ZeroDivisionError: in its own way)"
    assert lives["bad"]["notes"] == [rows["bad"]["problem"]]
    assert "metrics.json: missing" in rows["good"]["problem"]
    number = board.number
    board.refresh(keys)
    assert board.number == number, "it is not tried at every look"


def test_a_folder_that_cannot_be_read_at_all_is_read_again_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path)
    read, tried = tree.read, []

    def fail(found: tree.RunPlace) -> RunCard:
        tried.append(found)
        raise RuntimeError("no")

    board = RunBoard(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(tree, "read", fail)
        for _ in range(3):
            board.refresh([])
    assert len(tried) == 1
    (row,) = shown(board, ROW).values()
    assert row["status"] == "broken"
    assert tree.read is read
    (tmp_path / "mlp" / "nccl_cadence" / tried[0].folder.name / CONFIG).write_text('{"model": "mlp"}')
    board.refresh([])
    (row,) = shown(board, ROW).values()
    assert (row["status"], row["problem"]) == ("running", None)


@pytest.mark.parametrize("where", ["config", "metrics", "records"])
def test_ranks_that_no_run_has_are_said_and_not_counted(tmp_path: Path, where: str) -> None:
    folder = write_run(tmp_path, spec := make_spec())
    key, many = f"mlp/nccl_cadence/{spec.run_id}", 2_000_000_000
    if where == "config":
        (folder / "metrics.json").unlink()
        (folder / CONFIG).write_text(json.dumps({"world_size": many}))
    elif where == "metrics":
        body = json.loads((folder / "metrics.json").read_text()) | {"world_size": many}
        (folder / "metrics.json").write_text(json.dumps(body))
    else:
        plan = commands.Plan((1,) * 5000, (), False, 1, False, 1, "too many")
        with (folder / EVENTS).open("ab") as file:
            file.write(encode(plan, 200.0) + b"\n" + line(progress(200.0, rank=many)))
    board = RunBoard(tmp_path)
    while board.refresh([key]):
        pass
    row, live = shown(board, ROW)[key], shown(board, LIVE, (key,))[key]
    assert len(live["ranks"]) == 2
    assert len(live["controller"]["counts"]) == 2
    said = {
        "config": "world_size=2e+09: no run has more than 4096 ranks",
        "metrics": f"{folder / METRICS}: world_size: Input should be less than or equal to 4096",
        "records": None,
    }[where]
    assert row["problem"] == said
    assert (said in live["notes"]) is (said is not None)

"""Verdicts of the page while runs, baselines and audits change."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from socket import socket

import pytest

from bench.command.printed.cell_verdict import cell_verdicts
from bench.command.verbs.dashboard_command import dashboard, stamp_of
from bench.dashboard import server
from bench.dashboard.board import RunBoard
from bench.dashboard.verdicts import CellVerdicts
from bench.results.audit_file import AUDIT
from bench.results.cells import Cell
from bench.validate.expected import FILE
from tests.bench.dashboard.dashboards import messages, serving
from tests.bench.references import FIVE, baselines, cell


def said(verdicts: CellVerdicts, board: RunBoard) -> set[str]:
    """The names of the verdicts that are new."""
    while board.refresh([]):
        pass
    return {verdict["name"] for _, verdict in verdicts.next(board.finished)}


def test_a_page_judges_again_when_a_baseline_or_a_known_failure_changes(tmp_path: Path) -> None:
    """It kept its old verdicts until a run changed."""
    base, runs = tmp_path / "baselines", tmp_path / "runs"
    shutil.copytree(baselines(tmp_path / "made"), base)
    cell(runs, "nccl_sync", FIVE)
    board = RunBoard(runs)
    verdicts = CellVerdicts(lambda cells: cell_verdicts(cells, base), partial(stamp_of, base))
    sound = said(verdicts, board)
    assert len(sound - {"REFUSED"}) == 1
    assert said(verdicts, board) == set()
    (base / "damaged.json").write_text("{")
    assert said(verdicts, board) == {"REFUSED"}
    (base / "damaged.json").unlink()
    assert said(verdicts, board) == sound
    (base / FILE).write_text("- {")
    assert said(verdicts, board) == {"REFUSED"}
    (base / FILE).unlink()
    assert said(verdicts, board) == sound
    assert said(verdicts, board) == set()


def test_a_single_file_of_a_baseline_has_a_stamp(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    stamps = [stamp_of(file)]
    for name in (file.name, FILE):
        (tmp_path / name).write_text("{}")
        stamps.append(stamp_of(file))
    assert len({str(stamp) for stamp in stamps}) == 3
    assert stamp_of(file) == stamps[-1]


def test_a_page_judges_again_when_a_run_is_audited(tmp_path: Path) -> None:
    asked: list[int] = []

    def judge(every: Sequence[Cell]) -> dict[str, dict[str, str]]:
        asked.append(len(every))
        return {each.name: {"name": "PASS"} for each in every}

    folder = cell(tmp_path, "solo", FIVE[:1])
    board, verdicts = RunBoard(tmp_path), CellVerdicts(judge)
    assert said(verdicts, board) == {"PASS"}
    (run,) = board.finished.values()
    (run[0].path / AUDIT).write_text("{}")
    assert said(verdicts, board) == {"PASS"}
    assert said(verdicts, board) == set()
    shutil.rmtree(folder)
    assert said(verdicts, board) == set()
    assert asked == [1, 1]


def test_a_served_page_has_the_new_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, base = cell(tmp_path / "runs", "solo", FIVE[:1]), tmp_path / "baselines"
    base.mkdir()
    said: list[Callable[[], object]] = []

    def judge(every: Sequence[Cell]) -> dict[str, dict[str, str]]:
        return {each.name: {"name": "PASS" if any(base.iterdir()) else "-"} for each in every}

    def run(path: Path, host: str, listening: socket, judge: object, stamp: Callable[[], object]) -> None:
        listening.close()
        said.append(stamp)

    monkeypatch.setattr("bench.dashboard.command.run", run)
    assert dashboard([str(runs), "--baseline", str(base)], runs) == 0
    monkeypatch.setattr(server, "JUDGE_S", 0.05)
    with serving(runs, judge=judge, stamp=said[0]) as port:
        stream = (message.body["body"]["name"] for message in messages(port) if message.kind == "verdict")
        assert next(stream) == "-"
        (base / "new.json").write_text("{}")
        assert next(stream) == "PASS"

"""Careless input: empty words, torn notes, orders to a terminal in names of folders, ranks that are given up twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.exitcodes import Exit
from bench.command import cli
from bench.command.sweeps.submitted import SWEEP, under_way
from bench.faults import store
from bench.faults.meaning import FaultCell, FaultOutcome
from bench.faults.outcome import FaultResult
from bench.results import writer
from bench.results.analysis.faults import missing, rows
from bench.results.runfolder import CHECKPOINTS, METRICS, find_runs
from bench.results.writer import RunWriter
from ddp.core.errors import RankFailed
from ddp.core.messages.commands import Drop, Restart
from ddp.core.messages.events import Lost
from ddp.core.messages.join_events import Joined
from tests.bench.audit.audited import train_alone
from tests.runtime import toy


def test_an_empty_side_is_not_the_present_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["compare", "", "."]) == Exit.USAGE
    assert "a side of the comparison is empty" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["{", "[]", '"5"'])
def test_a_torn_note_of_a_sweep_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    folder = tmp_path / ".slurm-20260101-000000-001"
    folder.mkdir()
    (folder / SWEEP).write_text(text)
    for verb in ("status", "cancel"):
        assert cli.dispatch([verb, str(tmp_path)]) == Exit.USAGE
        assert "not what is noted of a sweep" in capsys.readouterr().err
    assert list(under_way(str(tmp_path))) == []


def test_a_link_to_itself_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert cli.dispatch(["status", str(tmp_path / "loop")]) == Exit.USAGE
    assert "no sweep was submitted from there" in capsys.readouterr().err
    assert cli.dispatch(["plan", "model=mlp", f"output={tmp_path / 'loop'}"]) == Exit.OK


@pytest.mark.parametrize("word", ["objective=speed", "dashboard=99999"])
def test_a_plan_refuses_what_the_command_refuses(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["plan", "model=mlp", word]) == Exit.USAGE
    assert f"impossible: {'unknown objective' if word[0] == 'o' else word}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["supervise=true"], ["launch=slurm", "launch.cpus=2"], ["-m", "launch=ray"]])
def test_a_plan_takes_what_starts_the_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """It called them unknown keys."""
    assert cli.dispatch(["plan", "model=mlp", *words]) == Exit.OK
    assert "planned: 1 run of 1 cell" in capsys.readouterr().out
    assert cli.dispatch(["plan", "model=mlp", f"{words[-1]}x"]) == Exit.USAGE


def test_names_of_folders_give_no_orders(tmp_path: Path) -> None:
    folder = tmp_path / "w2\x1b]0;x\x07\nPASS all"
    folder.mkdir()
    (folder / METRICS).write_text("{")
    _, (problem,) = find_runs(tmp_path)
    assert problem.isprintable()


def test_results_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    body: Any = 1
    for _ in range(900):
        body = [body]
    (tmp_path / METRICS).write_text(json.dumps({"schema_version": 4, "warnings": body}))
    runs, problems = find_runs(tmp_path)
    assert (runs, len(problems)) == ([], 1)


def kept(output: Path, checkpoint: int) -> Path:
    """The folder of a run that was killed behind a checkpoint."""
    run = RunWriter(output, "mlp", "solo", "w1-s0-abc")
    (run.path / CHECKPOINTS / f"{checkpoint:06}").mkdir(parents=True)
    return run.commit("killed")


def test_a_run_that_came_further_keeps_its_place(tmp_path: Path) -> None:
    first = kept(tmp_path, 90)
    beside = kept(tmp_path, 1)
    assert beside != first
    assert [path.name for path in (first / CHECKPOINTS).iterdir()] == ["000090"]
    assert kept(tmp_path, 91) == first


def test_a_run_that_came_further_keeps_its_place_beside_a_finished_one(tmp_path: Path) -> None:
    place = tmp_path / "mlp" / "solo" / "w1-s0-abc"
    place.mkdir(parents=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "may_be_ok", lambda folder: folder == place)
        beside = kept(tmp_path, 90)
        latest = kept(tmp_path, 1)
        started = RunWriter(tmp_path, "mlp", "solo", "w1-s0-abc")
        (started.path / CHECKPOINTS / "000002").mkdir(parents=True)
        assert str(started.path) in started.left()
        assert place.name not in started.left().replace(started.path.name, "")
    assert [path.name for path in (beside / CHECKPOINTS).iterdir()] == ["000090"]
    assert [path.name for path in (latest / CHECKPOINTS).iterdir()] == ["000001"]


def test_a_rank_that_is_given_up_twice_is_one_row() -> None:
    lost, drop = Lost(1.0, 1, "is gone"), Drop(1, "is gone")
    trouble = [(1.0, lost), (1.1, drop), (1.2, Restart(1, 1, "again")), (2.0, lost), (2.1, drop)]
    assert missing(rows(trouble, 0.0, 2)) == {1}
    assert missing(rows([*trouble[:2], (3.0, Joined(3.0, 1, 5))], 0.0, 2)) == set()


def leaving(model: Any, batch: Any) -> Any:
    raise SystemExit(0)


def test_a_step_that_leaves_the_program_is_a_failure(tmp_path: Path) -> None:
    with pytest.raises(RankFailed, match="SystemExit"):
        train_alone(tmp_path / "run", lambda: replace(toy.task(), loss=leaving), audit="")


def test_results_behind_a_line_that_was_cut_are_read(tmp_path: Path) -> None:
    results = [
        FaultResult(FaultCell(kind, "step", "first", "nccl_sync"), "virtual", 4, "yes", FaultOutcome.LOST, 0.1)
        for kind in ("crash", "stop")
    ]
    store.ResultStore(tmp_path).add(results[0])
    with (tmp_path / store.FILE).open("ab") as file:
        file.write(b'{"revision": "cut')
    store.ResultStore(tmp_path).add(results[1])
    assert list(store.ResultStore(tmp_path).found.values()) == results

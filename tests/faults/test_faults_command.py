"""The command: results are kept, the page and the table say what came of cells, and the exit code whether that is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.command.cli import dispatch
from bench.faults import meaning, store
from bench.faults.meaning import FaultCell, FaultOutcome
from bench.faults.outcome import FaultResult
from bench.faults.page import page
from bench.faults.played import results

FEW = ["faults", "--matrix", "--modes", "nccl_sync", "--kinds", "crash,slow", "--phases", "step,end", "--sizes", "4"]


def test_the_matrix_is_played_once_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*FEW, "--out", str(tmp_path), "--json", str(tmp_path / "all.json")]
    assert dispatch(words) == 0
    out = capsys.readouterr().out
    assert out.startswith("12 of 1,928 cells played, 0 not as documented.")
    assert "| nccl_sync | 12 |" in out
    assert "Every cell that was played is as documented." in out
    found = json.loads((tmp_path / "all.json").read_text())
    assert len(found["cells"]) == 12
    assert found["no_meaning"] == {f"nccl_sync/slow/end/{ranks}": "no step follows" for ranks in meaning.RANKS}
    assert all(row["happened"] for row in found["cells"])
    lines = (tmp_path / store.FILE).read_text()
    assert dispatch(words) == 0
    assert (tmp_path / store.FILE).read_text() == lines, "nothing is played again"


def test_what_is_repeated_is_what_was_selected(tmp_path: Path) -> None:
    """All results were deleted, also those of other cells and of other sources."""
    words = [*FEW, "--ranks", "first", "--out", str(tmp_path)]
    assert dispatch([*words, "--sizes", "4,8"]) == 0
    path = tmp_path / store.FILE
    lines = [*path.read_text().splitlines(), '{"revision": "another"}']
    path.write_text("".join(f"{line}\n" for line in lines))
    assert dispatch([*words, "--kinds", "crash", "--fresh"]) == 0
    after = path.read_text().splitlines()
    again = [line for line in lines if '"kind": "crash"' in line and '"size": 4' in line]
    assert after[: -len(again)] == [line for line in lines if line not in again]
    assert len(after) == len(lines)
    assert 0 < len(again) < len(lines) // 2
    known = store.ResultStore(tmp_path).found
    assert store.ResultStore(tmp_path, list(known)[:1]).found.keys() == set(list(known)[1:]), "not yet played again"
    assert store.ResultStore(tmp_path).found.keys() == set(list(known)[1:])


def test_a_matrix_that_is_cut_short_says_that_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add = store.ResultStore.add

    def cut(own: store.ResultStore, result: FaultResult) -> None:
        add(own, result)
        if len(own.found) == 2:
            raise KeyboardInterrupt

    words = [*FEW, "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(store.ResultStore, "add", cut)
        with pytest.raises(KeyboardInterrupt):
            dispatch(words)
    out = capsys.readouterr().out
    assert out.startswith("2 of 1,928 cells played")
    assert out.endswith("cut short: the same command plays the rest\n")
    assert dispatch(words) == 0
    assert capsys.readouterr().out.startswith("12 of 1,928 cells played")


def _without(cell: FaultCell, size: int) -> FaultResult:
    raise FileNotFoundError("checkpoint-3")


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_unexpected_error_names_its_cell(jobs: int) -> None:
    cell = FaultCell("crash", "step", "first", "nccl_sync")
    with pytest.raises(FileNotFoundError, match="checkpoint-3") as caught:
        list(results(_without, [(cell, 4)], jobs))
    assert caught.value.__notes__ == [f"while {cell} was played on 4 ranks"]


def test_what_is_not_as_documented_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from bench.faults import outcome

    monkeypatch.setattr(outcome, "documented", lambda cell: frozenset({FaultOutcome.UNHURT}))
    assert dispatch([*FEW, "--ranks", "first", "--out", str(tmp_path)]) == 1
    assert "went on, documented: unhurt" in capsys.readouterr().out
    assert "class=x" in (tmp_path / "faults.html").read_text()


def test_results_of_other_sources_are_played_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = FaultResult(FaultCell("crash", "step", "first", "nccl_sync"), "virtual", 4, "yes", FaultOutcome.LOST, 0.1)
    store.ResultStore(tmp_path).add(result)
    assert list(store.ResultStore(tmp_path).found.values()) == [result]
    monkeypatch.setattr(store, "revision", lambda: "another")
    assert store.ResultStore(tmp_path).found == {}


def test_a_line_that_was_cut_off_is_played_again_and_a_strange_one_is_an_error(tmp_path: Path) -> None:
    result = FaultResult(FaultCell("crash", "step", "first", "nccl_sync"), "virtual", 4, "yes", FaultOutcome.LOST, 0.1)
    store.ResultStore(tmp_path).add(result)
    path = tmp_path / store.FILE
    whole = path.read_bytes()
    for cut in (b'{"revision": "', b"5", b"\xff\x00", b"[" * 100_000):
        path.write_bytes(whole + cut)
        assert len(store.ResultStore(tmp_path).found) == 1
    path.write_text(f'{{"revision": "{store.revision()}"}}\n')
    with pytest.raises(ValueError, match="line 1: no result of a cell"):
        store.ResultStore(tmp_path)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "give --matrix"),
        (["--matrix", "--kinds", "crush"], "did you mean 'crash'"),
        (
            ["--matrix", "--phases", "snapshot", "--modes", "nccl_sync"],
            "no cell of these has a meaning",
        ),
        (["--matrix", "--sizes", "2"], "whole numbers from 3"),
        (["--matrix", "--world", "processes", "--sizes", "64"], "to 16"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["faults", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_a_mistake_deletes_no_results_and_no_readme(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, readme = tmp_path / "out" / store.FILE, tmp_path / "README.md"
    results.parent.mkdir()
    results.write_text("")
    readme.write_text("# My project\n")
    for words in (["--fresh", "--sizes", "2"], ["--fresh", "--jobs", "0"], ["--report", str(tmp_path)]):
        assert dispatch([*FEW, "--out", str(results.parent), *words]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert results.exists()
    assert readme.read_text() == "# My project\n"


def test_the_page_needs_nothing_else() -> None:
    cells = [FaultCell("crash", "step", ranks, "nccl_sync") for ranks in meaning.RANKS]
    text = page([FaultResult(cell, "virtual", 8, "yes", FaultOutcome.LOST, 0.1, 0.2, 3.25) for cell in cells])
    assert "http" not in text
    assert "<script" not in text
    assert text.count('<b class="w h1">') == 3
    assert "ended, documented" not in text
    assert 'class=x title="went on, documented: ended"' in text
    assert "width=device-width" in text

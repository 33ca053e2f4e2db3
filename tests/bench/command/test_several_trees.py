"""A sweep over `output`: each tree is judged and reported."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from bench.base.exitcodes import Exit
from bench.command.printed import summary
from bench.results.sweep_file import SWEEP
from tests.bench.conftest import Bench
from tests.bench.report_parts import undrawn as undrawn

TREES = ("-m", "model=mlp,lenet", "mode=solo", "train.epochs=1", "output=sw/${model.name}")


@pytest.mark.usefixtures("undrawn")
def test_each_tree_is_judged_and_reported(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """The last one alone was."""
    assert bench(*TREES) == 0
    said = capsys.readouterr().out
    assert said.count("verdict") == 2
    for tree in ("mlp", "lenet"):
        assert f"\nsw/{tree}\n" in said
        assert f"reports/sw/{tree}/report.md" in said
        assert Path(f"reports/sw/{tree}/report.md").is_file()
        (log,) = Path("sw", tree).rglob("training.log")
        assert log.read_text().count("verdict") == 1
    assert not list(Path("sw").rglob(SWEEP))


def test_a_regression_in_any_tree_counts(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def judge(printed: Any, root: Path, baseline: Path, own: Collection[Path]) -> Exit:
        assert {folder.parts[:2] for folder in own} == {root.parts}
        return Exit.REGRESSION if root.name == "mlp" else Exit.OK

    monkeypatch.setattr(summary, "judge", judge)
    assert bench(*TREES, "report=false") == Exit.REGRESSION


def test_reports_lie_as_their_trees_do() -> None:
    reports = Path("reports")
    assert summary.report_folders([Path("a/b")], None) == {Path("a/b"): reports / "b"}
    assert summary.report_folders([Path("a/b")], "ci") == {Path("a/b"): reports / "ci"}
    assert summary.report_folders([Path("a"), Path("a/b")], None) == {
        Path("a"): reports / "a",
        Path("a/b"): reports / "a/b",
    }

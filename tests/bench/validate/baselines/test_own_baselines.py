"""Baselines of a user's own beside those of an installed package."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import bench
from bench.base import paths
from bench.base.paths import judged_by
from bench.command.printed.summary import in_words
from bench.report import judged
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate import Terms, judge
from bench.validate.baselines.folder import load
from tests.bench.references import FIVE, TODAY, TWENTY, baselines, cell, one

VALUES = tuple(value - 0.2 for value in TWENTY)
BETTER = tuple(value + 0.02 for value in FIVE)


@pytest.fixture
def committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The baselines of an installed package, with that of `solo`, in a user's empty folder."""
    folder = baselines(tmp_path / "package")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(paths, "BASELINES", folder)
    monkeypatch.setattr(paths, "OWN_BASELINES", Path("baselines"))
    return folder


def test_within_the_source_tree_own_baselines_are_the_committed_ones_and_elsewhere_they_are_here(
    tmp_path: Path,
) -> None:
    """In a folder beside the clone, baselines went into the clone, and those of the folder were not read."""
    assert paths.own_baselines(paths.ROOT / "reports") == paths.own_baselines(paths.ROOT) == paths.BASELINES
    assert paths.own_baselines(tmp_path) == Path("baselines")
    here = "from bench.base import paths; print(paths.OWN_BASELINES)"
    for folder, own in ((tmp_path, "baselines"), (paths.ROOT, str(paths.BASELINES))):
        path = {**os.environ, "PYTHONPATH": str(paths.ROOT)}
        assert subprocess.check_output([sys.executable, "-c", here], cwd=folder, env=path, text=True).strip() == own


def accepted(values: tuple[float, ...], mode: str = "solo") -> None:
    """Accept a baseline of a user's own."""
    shutil.copytree(baselines(Path(f"made-{mode}"), values, mode), "baselines", dirs_exist_ok=True)


def test_an_own_baseline_comes_before_the_committed_one_of_its_cell(committed: Path) -> None:
    runs = cell(Path("runs"), "solo", FIVE)
    assert one(runs, committed).name == "PASS"
    accepted(BETTER)
    assert one(runs, committed).name != "PASS"
    assert bench.judge(next(runs.glob("*/*/*"))).verdicts == bench.judge(next(runs.glob("*/*/*")), "baselines").verdicts
    library = load(*judged_by(committed))
    assert not library.broken
    assert [reference.config_hash for reference in library.references] == [*load(committed).places]


@pytest.mark.parametrize(("mode", "said"), [("solo", "one device"), ("nccl_sync", "its own baseline")])
def test_what_is_compared_with_its_own_baseline_is_called_so(committed: Path, mode: str, said: str) -> None:
    """A pass was called as good as one device, though none was compared with."""
    accepted(VALUES, mode)
    verdicts = judge([cell(Path("runs"), mode, VALUES)], committed, Terms(today=TODAY)).verdicts
    (words,) = in_words([verdict for verdict in verdicts if verdict.name == "PASS"])
    assert words.startswith(f"as good as {said}: ")


def test_both_folders_are_read(committed: Path) -> None:
    accepted(FIVE, "nccl_sync")
    library = load(*judged_by(committed))
    assert len(library.references) == 2
    assert judged_by(Path("baselines")) == (Path("baselines"),)


def test_another_folder_of_that_name_is_nobodys_business(committed: Path) -> None:
    Path("baselines/theirs").mkdir(parents=True)
    Path("baselines/theirs/results.json").write_text("[]")
    assert judged_by(committed) == (committed,)


def test_own_known_failures_hold_for_committed_baselines(committed: Path) -> None:
    runs = cell(Path("runs"), "solo", tuple(value - 0.5 for value in FIVE))
    bad = one(runs, committed)
    assert bad.name == "FAIL"
    assert bad.identity is not None
    known = bad.identity
    Path("baselines").mkdir()
    Path("baselines/expected.yaml").write_text(
        f"- {{cell: {known.cell}, data: {known.data}, recipe: {known.recipe}, check: quality, reason: issue, "
        f"until: {TODAY}}}"
    )
    assert one(runs, committed).name == "XFAIL"


def test_a_report_judges_anew_when_an_own_baseline_comes(
    committed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    grouped = cells(find_runs(cell(Path("runs"), "solo", FIVE))[0])
    before = judged(grouped, [], committed).verdicts
    accepted(BETTER)
    assert judged(grouped, [], committed).verdicts != before


@pytest.mark.parametrize(("judged", "named"), [("package", ""), ("baselines", ""), ("others", " --baseline others")])
def test_a_lacking_baseline_is_accepted_where_it_is_looked_for(committed: Path, judged: str, named: str) -> None:
    """It went to the usual folder, so that the next verdict lacked it again."""
    runs = cell(Path("runs"), "nccl_sync", FIVE, batch_size=7)
    told = one(runs, committed if judged == "package" else Path(judged), "baseline").line
    assert told.endswith(f"baseline accept{named}")

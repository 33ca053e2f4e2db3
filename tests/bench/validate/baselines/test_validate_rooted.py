"""Baselines are rooted in their history: an edit with its digest made anew is found."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bench.validate import Terms, judge
from bench.validate.baselines.reference import digest
from bench.validate.revisions.revision import accept, write_proposals
from tests.bench.references import FIVE, TODAY, baselines, cell

Edit = Callable[[dict[str, Any]], object]


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", str(folder), *name, *words], check=True, capture_output=True)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A committed folder of one baseline."""
    folder = baselines(tmp_path)
    git(folder, "init", "-q")
    commit(folder)
    return folder


def commit(folder: Path) -> None:
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "baselines")


def refused(tmp_path: Path, base: Path) -> str:
    runs = tmp_path / "judged"
    if not runs.exists():
        cell(runs, "nccl_cadence", FIVE)
    found = [v for v in judge([runs], base, Terms(today=TODAY)).verdicts if v.check == "baseline"]
    assert {v.name for v in found} <= {"REFUSED"}
    return "".join(v.line for v in found)


def forge(base: Path, edit: Edit) -> None:
    (path,) = base.rglob("*.json")
    body = json.loads(path.read_text())
    edit(body)
    path.write_text(json.dumps(body | {"digest": digest(body)}))


@pytest.mark.parametrize("committed", [False, True])
def test_an_edit_whose_digest_was_made_anew_is_refused(tmp_path: Path, base: Path, committed: bool) -> None:
    assert refused(tmp_path, base) == ""
    forge(base, lambda body: body["metrics"]["quality"].update(margin=0.5))
    if committed:
        commit(base)
    line = refused(tmp_path, base)
    assert "changed since commit" in line
    assert "does not name that version" in line


def test_who_names_the_version_before_still_needs_a_reason_to_ask_less(tmp_path: Path, base: Path) -> None:
    def edit(body: dict[str, Any]) -> None:
        body["supersedes"] = body["digest"]
        body["metrics"]["quality"]["margin"] = 0.5

    forge(base, edit)
    assert "it asks less (quality has a larger margin" in refused(tmp_path, base)


def test_what_was_accepted_is_rooted_committed_or_not(tmp_path: Path, base: Path) -> None:
    for values in ((0.972, *FIVE[1:]), (0.973, *FIVE[1:])):  # twice without a commit between them
        write_proposals(cell(tmp_path / str(values), "solo", values), tmp_path / "p", TODAY)
        accept(tmp_path / "p", base)
        assert refused(tmp_path, base) == ""
    commit(base)
    assert refused(tmp_path, base) == ""


def test_a_reason_is_kept_until_the_version_is_in_git(tmp_path: Path, base: Path) -> None:
    """Accepted once more before a commit, the baseline was refused as forged."""
    worse = cell(tmp_path / "worse", "solo", tuple(value - 0.1 for value in FIVE))
    for because in ("less data", None):
        write_proposals(worse, tmp_path / "p", TODAY)
        accept(tmp_path / "p", base, because)
        assert refused(tmp_path, base) == ""

"""The verb `compare`: two trees of runs, or the runs of two commits or machines in one tree."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.base.environment import commit
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, usage
from bench.command.verbs.validate_command import some_runs
from bench.report.cell_changes import Side
from bench.report.two_sides import write_comparison
from bench.results.cells import cells
from bench.results.runfolder import Run
from bench.validate.evidence.consistency import intact, sound

LEAST = 4
"""Least digits of an abbreviated commit."""


def compare(words: Sequence[str], root: Path, out: Path, github: bool) -> Exit:
    """Write the report of a comparison and print its answer. `words`: the side before and the side now; `root`: tree
    in which the runs of a commit or machine are searched. Raise UsageError."""
    with usage():
        before, now = (side(word, root) for word in words)
        path, summary = write_comparison(before, now, out)
    print(summary.partition("\n<details>")[0].strip())
    print(f"\n{path}")
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if place and (github or os.environ.get("GITHUB_ACTIONS") == "true"):
        with usage(), Path(place).open("a", encoding="utf-8") as file:
            file.write(summary)
    return Exit.OK


def side(word: str, root: Path) -> Side:
    """Return the runs that `word` names: a tree of runs, or the runs of a commit or machine in `root`. Raise
    UsageError that lists the known commits and machines, ValueError for a missing folder."""
    if not word:
        raise UsageError("a side of the comparison is empty: give a folder, a commit or a machine")
    if Path(word).is_dir():
        return _origin(word, _some(Path(word)))
    if not root.is_dir():
        raise ValueError(f"{word}: no such folder; for a commit or a machine, name the tree of its runs: --runs TREE")
    runs = _some(root)
    if chosen := [run for run in runs if _is_of(run, word, commit(word))]:
        return _origin(word, chosen)
    every = Side("", tuple(cells(runs)))
    known = "; ".join(f"{key}s {', '.join(every.values(key)) or 'none'}" for key in ("commit", "machine"))
    raise UsageError(f"{word} is no folder, nor a commit or machine of the runs in {root}, which has {known}")


def _is_of(run: Run, word: str, sha: str | None) -> bool:
    """Return whether a run was made at the commit or on the machine `word`. `word` may be the first digits of a
    commit, or a name that git resolves to `sha`."""
    made = str(run.metrics.git.get("sha") or "")
    if made and (made == sha or (len(word) >= LEAST and made.startswith(word.lower()))):
        return True
    env = run.metrics.env
    gpus = env.get("gpus")
    names = [env.get("cpu"), env.get("platform"), *(gpus if isinstance(gpus, list) else [])]
    return any(word.lower() in str(name).lower() for name in names if name)


def _origin(name: str, runs: Sequence[Run]) -> Side:
    return Side(name, tuple(cells(runs)))


def _some(path: Path) -> Sequence[Run]:
    read, problems = some_runs(path)
    runs, unsound = sound(read, intact)
    for problem in (*problems, *(text for _, text in unsound)):
        print(f"bench: left out: {problem}", file=sys.stderr)
    if not runs:
        raise ValueError(f"no run in {path} can be read: mend it, or train it again")
    return runs

"""Trains cells of the `ci` experiment with seeded bugs and judges them, and the same cells without any: what is caught?

    python -m benchmarks.bugs [NAME ...] [--clean N] [--jobs N] [--write]

Every bug is put into the processes of a run of its own, whose folder is then judged as any other (`bench.validate.judge`)
against the committed baselines. It is caught if the check that is named for it fails; a run that crashes counts for the
check `status` alone. `--clean`: the cells that bugs touch, N times each with other seeds and no bug; every verdict of
failure is a false alarm. `--jobs`: runs at a time. Finished runs are kept under .benchmarks/bugs, apart from
those that a `validate` of `runs` is to judge, so it can be interrupted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.results.runfolder import find_runs
from bench.validate import Verdict, judge
from benchmarks.bugs.registry import BUGS, Bug
from benchmarks.documents import put

ROOT = Path(__file__).parent.parent.parent
BASELINES = ROOT / "baselines"
RUNS = ROOT / ".benchmarks" / "bugs"
SIGN = "broken.txt"
"""File in a bug's folder: the modules that were broken, a line for each process. Without it a bug was never there."""
ALARMS = ("FAIL", "SUSPICIOUS", "VARIANCE_SHIFT", "REFUSED", "EXPIRED", "NO_BASELINE")
"""Verdicts of failure. INCONCLUSIVE is none: it asks for seeds."""
LIMIT_S = 600.0
"""Of one run: a bug that makes it hang is not waited for."""


@dataclass(frozen=True)
class Found:
    """What became of a bug."""

    name: str
    caught: bool
    by: tuple[str, ...]
    """Checks that failed."""
    line: str
    seconds: float


def train(folder: Path, model: str, mode: str, seeds: Iterable[int], bug: str = "") -> None:
    """Train a cell of `ci`. Its exit code says nothing here: the folder is judged."""
    folder.mkdir(parents=True, exist_ok=True)
    cell = folder / model / mode
    runs = find_runs(cell)[0] if cell.is_dir() else []
    there = {run.metrics.seed for run in runs if run.metrics.status != "killed"}  # a failure stands
    if not (left := [seed for seed in seeds if seed not in there]):
        return
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SEEDED_BUG": bug, "SEEDED_BUG_SIGN": str(folder / SIGN)}
    if bug:
        environment["PYTHONPATH"] = f"{Path(__file__).parent / 'hook'}{os.pathsep}{ROOT}"
    words = [f"model={model}", f"mode={mode}", "recipe=quick", f"seed={','.join(map(str, left))}"]
    command = [sys.executable, "-m", "bench", "-m", *words, f"output={folder}", "report=false", "validate=false"]
    limit = LIMIT_S * len(left)
    with (folder / "output.txt").open("ab") as output, suppress(subprocess.TimeoutExpired):  # then it is not there
        subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, timeout=limit, check=False)


def failed(path: Path) -> list[Verdict]:
    """The verdicts of failure on the runs in a folder."""
    return [verdict for verdict in judge([path], BASELINES).verdicts if verdict.name in ALARMS]


def hunt(name: str, bug: Bug) -> Found:
    """Train a bug's cell and judge it."""
    began, folder = time.monotonic(), RUNS / name
    for time_again in range(bug.times):
        train(folder / f"{time_again}", bug.model, bug.mode, [0], name)
    signs = [folder / f"{time_again}" / SIGN for time_again in range(bug.times)]
    seconds = time.monotonic() - began
    if not all(sign.is_file() for sign in signs):
        return Found(name, False, (), "the bug was never put in", seconds)
    verdicts = failed(folder)
    crashed = any(run.metrics.status != "ok" for run in find_runs(folder)[0])
    named = [one for one in verdicts if one.check == bug.check and one.name == "FAIL"]
    caught = bool(named) and (bug.check == "status" or not crashed)
    by = tuple(dict.fromkeys(one.check for one in verdicts))
    line = named[0].line if named else "; ".join(f"{one.name} {one.check}: {one.line}" for one in verdicts) or "nothing"
    return Found(name, caught, by, line, seconds)


def hunt_all(names: Sequence[str], jobs: int) -> list[Found]:
    """All of them, told as they come."""
    with ThreadPoolExecutor(jobs) as pool:
        found = []
        for one in pool.map(lambda name: hunt(name, BUGS[name]), names):
            word = "caught by" if one.caught else "MISSED; failed:"
            print(f"{one.name:<28} {one.seconds:5.0f} s  {word} {', '.join(one.by) or '-'}", flush=True)
            print(f"    {one.line[:240]}", flush=True)
            found.append(one)
    return found


def clean(names: Sequence[str], reruns: int, jobs: int) -> tuple[int, list[str]]:
    """(runs, alarms) of the cells that these bugs touch, without them. Each rerun is judged by itself, then all together."""
    cells = list(dict.fromkeys((BUGS[name].model, BUGS[name].mode) for name in names))
    folder = RUNS / "clean"

    def one(cell: tuple[str, str]) -> tuple[int, list[str]]:
        model, mode = cell
        train(folder, model, mode, range(reruns))
        runs = find_runs(folder / model / mode)[0]
        alarms = [f"{run.metrics.run_id}: {said}" for run in runs for said in failed(run.path)]
        print(f"{model} {mode}: {len(runs)} clean runs, {len(alarms)} alarms", flush=True)
        return len(runs), alarms

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(one, cells))
    alarms = [text for _, texts in results for text in texts]
    alarms += [f"together: {said}" for said in failed(folder)]
    for text in alarms:
        print(f"ALARM {text}", flush=True)
    missing = reruns * len(cells) - sum(count for count, _ in results)
    return sum(count for count, _ in results), [*alarms, *([f"{missing} runs are missing"] if missing else [])]


def table(found: Sequence[Found]) -> str:
    """Return an item for each named check, in Markdown; a bug that it missed stands in bold."""
    items: dict[str, list[str]] = {}
    for one in found:
        bug = BUGS[one.name]
        items.setdefault(f"`{bug.check}`", []).append(bug.breaks if one.caught else f"**missed: {bug.breaks}**")
    return "\n".join(f"- {check}: {'; '.join(bugs)}" for check, bugs in items.items())


def main() -> int:
    """The exit code: 1 if a bug is missed, or a clean run raises an alarm."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bugs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BUGS)}; none: all")
    parser.add_argument(
        "--clean", type=int, default=0, metavar="N", help="clean reruns of every cell, in place of bugs"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--write", action="store_true", help="put the table into docs/explanation/validation.md")
    asked = parser.parse_args()
    for name in asked.names:
        if name not in BUGS:
            parser.error(f"unknown bug {name!r}; choose from {', '.join(BUGS)}")
    names, began = asked.names or list(BUGS), time.monotonic()
    if asked.clean:
        runs, alarms = clean(names, asked.clean, asked.jobs)
        told = f"{runs} clean runs, {asked.clean} of each cell: {len(alarms)} alarms."
        bad = bool(alarms)
    else:
        found = hunt_all(names, asked.jobs)
        told = f"{table(found)}\n\n{sum(one.caught for one in found)} of {len(found)} bugs are caught."
        bad = not all(one.caught for one in found)
    print(f"\n{told}\n{(time.monotonic() - began) / 60:.1f} minutes")
    if asked.write:
        put("explanation/validation.md", **{"clean" if asked.clean else "bugs": told})
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())

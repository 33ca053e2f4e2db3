"""Trains cells of the `ci` experiment with seeded bugs and judges them, and the same cells without any: what is caught?

    python -m benchmarks.bugs [NAME ...] [--family NAME] [--lots] [--all-cells] [--clean N] [--jobs N] [--write]

Every bug is put into the processes of a run of its own, whose folder is then judged as any other
(`bench.validate.judge`) against the baselines. It is caught if the check that is named for it fails; a run that crashes
counts for the check `status` alone. By default the bugs of the nine families are tried, with `--lots` those that people
wrote who had not seen the checks; one cell is trained with each bug, with `--all-cells` every cell that it touches.
`--clean`: the cells of `ci`, N times each with seeds drawn anew and no bug; every verdict of failure is a false alarm.
`--jobs`: runs at a time. Finished runs are kept under .benchmarks/bugs, apart from those that a `validate` of `runs` is
to judge, so it can be interrupted; remove the folder to begin anew. The minutes told are those of training, divided by
the runs at a time, whenever that was.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.results.runfolder import find_runs
from bench.validate import Verdict, judge
from benchmarks import frame
from benchmarks.bugs.bug import ANY, EVERY, MODELS, Bug
from benchmarks.bugs.registry import BUGS, LISTED
from benchmarks.documents import put

ROOT = Path(__file__).parent.parent.parent
BASELINES = ROOT / "baselines"
RUNS = ROOT / ".benchmarks" / "bugs"
TOOK = "seconds.txt"
"""File in a bug's folder: how long each part of its training took, a line for each."""
SIGN = "broken.txt"
"""File in a bug's folder: the modules that were broken, a line for each process. Without it a bug was never there."""
ALARMS = ("FAIL", "SUSPICIOUS", "VARIANCE_SHIFT", "REFUSED", "EXPIRED", "NO_BASELINE")
"""Verdicts of failure. INCONCLUSIVE is none: it asks for seeds."""
LIMIT_S = 600.0
"""Of one run: a bug that makes it hang is not waited for."""
REFUSING = ("readable", "determinism")
"""Checks that refuse what is wrong."""
FRESH = 100
"""The least seed of clean runs: no baseline has it."""
SEED = "first_seed.txt"
"""File in the folder of clean runs: the first seed, drawn when they begin."""
OLD = ("EXPIRED", "NO_BASELINE")
"""Verdicts that say nothing of the run."""


@dataclass(frozen=True)
class Attempt:
    """What became of a bug in one cell."""

    name: str
    cell: tuple[str, str]
    caught: bool
    checks: tuple[str, ...]
    """Those that failed."""
    line: str
    seconds: float


def train(folder: Path, model: str, mode: str, seeds: Iterable[int], bug: str = "") -> None:
    """Train a cell of `ci`. Its exit code says nothing here: the folder is judged."""
    folder.mkdir(parents=True, exist_ok=True)
    cell = folder / model.rpartition(".")[2] / mode
    runs = find_runs(cell)[0] if cell.is_dir() else []
    there = {run.metrics.seed for run in runs if run.metrics.status != "killed"}  # a failure stands
    left = [seed for seed in seeds if seed not in there]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "SEEDED_BUG": bug, "SEEDED_BUG_SIGN": str(folder / SIGN)}
    if bug:
        environment["PYTHONPATH"] = f"{Path(__file__).parent / 'hook'}{os.pathsep}{ROOT}"

    def command(*words: str) -> None:
        words = *words, f"output={folder}", "report=false", "validate=false"
        how = {"cwd": ROOT, "env": environment, "timeout": limit, "check": False}
        with (folder / "output.txt").open("ab") as output, suppress(subprocess.TimeoutExpired):  # then it is not there
            frame.bench(*words, stdout=output, stderr=output, **how)

    limit, settings = LIMIT_S * max(len(left), 1), BUGS[bug].settings if bug else ()
    if left:
        chosen = f"model={model}", f"mode={mode}", "recipe=quick", f"seed={','.join(map(str, left))}"
        command("-m", *chosen, *settings)
    for how in BUGS[bug].resumed if bug and cell.is_dir() else ():
        for run in find_runs(cell)[0]:
            if run.metrics.status == "failed":
                command(f"resume={run.path}", *how)
                if how:  # it went on in another folder
                    shutil.rmtree(run.path)


def timed(folder: Path, training: Callable[[], None]) -> float:
    """Return the seconds that what is in a folder took to train, in as many parts as it was interrupted."""
    began = time.monotonic()
    training()
    with (folder / TOOK).open("a+") as file:
        file.write(f"{time.monotonic() - began}\n")
        file.seek(0)
        return sum(map(float, file))


def failed(path: Path, baselines: Path) -> list[Verdict]:
    """Return the verdicts of failure on the runs in a folder."""
    return [verdict for verdict in judge([path], baselines).verdicts if verdict.name in ALARMS]


def attempt(name: str, cell: tuple[str, str], baselines: Path) -> Attempt:
    """Train a cell with a bug and judge it."""
    bug, folder = BUGS[name], RUNS / name / "-".join(cell)
    signs = [folder / f"{number}" / SIGN for number in range(bug.times)]
    seconds = sum(timed(sign.parent, partial(train, sign.parent, *cell, bug.seeds, name)) for sign in signs)
    if not all(sign.is_file() for sign in signs):
        return Attempt(name, cell, False, (), "the bug was never put in", seconds)
    trained = [find_runs(sign.parent)[0] for sign in signs]
    if not all(trained):
        return Attempt(name, cell, False, (), f"no run came of it: see {signs[0].with_name('output.txt')}", seconds)
    verdicts = failed(folder, baselines)
    ended = all(run.metrics.status == "ok" for runs in trained for run in runs)
    named = [one for one in verdicts if is_named(bug, one)]
    caught = bool(named) and (bug.check == "status" or ended)
    line = named[0].line if named else "; ".join(f"{one.name} {one.check}: {one.line}" for one in verdicts) or "nothing"
    return Attempt(name, cell, caught, tuple(dict.fromkeys(one.check for one in verdicts)), line, seconds)


def is_of_the_run(verdict: Verdict) -> bool:
    """Whether a verdict of failure says something of the run: other settings than the baseline's are no defect."""
    return verdict.name not in OLD and verdict.check != "baseline"


def is_named(bug: Bug, verdict: Verdict) -> bool:
    """Whether this verdict is what must come of a bug."""
    if bug.check == ANY:
        return is_of_the_run(verdict)
    refused = bug.check in REFUSING and verdict.name == "REFUSED"
    return verdict.check == bug.check and (verdict.name == "FAIL" or refused)


def attempt_all(cells: Sequence[tuple[str, tuple[str, str]]], jobs: int, baselines: Path) -> list[Attempt]:
    """Return all attempts, which are printed as they come."""
    with ThreadPoolExecutor(jobs) as pool:
        attempts, began = [], time.monotonic()
        for done, one in enumerate(pool.map(lambda pair: attempt(*pair, baselines), cells), 1):
            left = (time.monotonic() - began) / done * (len(cells) - done) / 60
            word = "caught by" if one.caught else "MISSED; failed:"
            print(f"{one.name:<28} {' '.join(one.cell):<24} {one.seconds:5.0f} s  {word}", end=" ")
            print(f"{', '.join(one.checks) or '-'}\n    {one.line[:240]}")
            print(f"    {done} of {len(cells)}, {left:.0f} minutes left", flush=True)
            attempts.append(one)
    return attempts


def clean(reruns: int, jobs: int, baselines: Path) -> tuple[str, bool]:
    """Return what came of the cells of `ci` without bugs, and whether there was an alarm or a run is missing. Each rerun is
    judged by itself, then all together."""
    cells, folder = [(model, mode) for model in MODELS for mode in EVERY], RUNS / "clean"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SEED).is_file():
        (folder / SEED).write_text(f"{random.randrange(FRESH, 10**6)}\n")
    first = int((folder / SEED).read_text())

    def one(cell: tuple[str, str]) -> tuple[int, list[str]]:
        model, mode = cell
        train(folder, model, mode, range(first, first + reruns))
        runs = find_runs(folder / model / mode)[0]
        alarms = [f"{run.metrics.run_id}: {bad}" for run in runs for bad in failed(run.path, baselines)]
        print(f"{model} {mode}: {len(runs)} clean runs, {len(alarms)} alarms", flush=True)
        return len(runs), alarms

    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(one, cells))
    alone = [text for _, texts in results for text in texts]
    together = [f"together: {bad}" for bad in failed(folder, baselines)]
    for text in (*alone, *together):
        print(f"ALARM {text}", flush=True)
    count, wanted = sum(count for count, _ in results), reruns * len(cells)
    outcome = f"{count} of {wanted} clean runs, {reruns} of each cell from seed {first}: {len(alone)} alarms"
    outcome += " on runs by themselves"
    return f"{outcome}, {len(together)} on all together", bool(alone or together or count < wanted)


def table(attempts: Sequence[Attempt]) -> str:
    """Return a row for each family, in Markdown: how many of its bugs are caught in all cells, by which checks."""
    missed = {one.name for one in attempts if not one.caught}
    rows = []
    for family in dict.fromkeys(BUGS[one.name].family for one in attempts):
        names = list(dict.fromkeys(one.name for one in attempts if BUGS[one.name].family == family))
        checks = ", ".join(f"`{check}`" for check in dict.fromkeys(BUGS[name].check for name in names))
        rows.append([family, len(names), len([name for name in names if name not in missed]), checks])
    lines = [f"Missed: {', '.join(sorted(missed))}."] if missed else []
    body = frame.table(rows, ["family", "bugs", "caught", "checks"])
    return "\n\n".join([body, *lines])


def asked() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bugs", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of a bug; none: all")
    parser.add_argument("--family", action="append", default=[], help="the bugs of a family")
    parser.add_argument("--list", action="store_true", help="say what each breaks, and what must catch it")
    parser.add_argument("--lots", action="store_true", help="those of people who had not seen the checks")
    parser.add_argument("--all-cells", action="store_true", help="every cell of `ci` that a bug touches, not one")
    parser.add_argument("--clean", type=int, default=0, metavar="N", help="clean reruns of every cell, without bugs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--baselines", type=Path, default=BASELINES, help="what runs are compared with")
    parser.add_argument("--write", action="store_true", help="put the table into docs/explanation/validation.md")
    words = parser.parse_args()
    if unknown := [name for name in words.names if name not in BUGS]:
        parser.error(f"unknown bug {unknown[0]!r}; `--list` names all")
    chosen = [name for name in BUGS if name in words.names or BUGS[name].family in words.family]
    listed = [name for family in LISTED for name in family.bugs]
    words.names = chosen or ([name for name in BUGS if name not in listed] if words.lots else listed)
    return words


def main() -> int:
    """Return the exit code: 1 if a bug is missed, or a clean run raises an alarm."""
    words, began = asked(), time.monotonic()
    if words.list:
        rows = [(name, BUGS[name].family, BUGS[name].check, BUGS[name].source) for name in words.names]
        for name, family, check, source in rows:
            print(f"{name:<28} {family:<10} {check:<11} {source:<6} {BUGS[name].breaks}")
        return 0
    if words.clean:
        outcome, bad = clean(words.clean, words.jobs, words.baselines)
        outcome += f", in {(time.monotonic() - began) / 60:.0f} minutes."
    else:
        cells = [(name, cell) for name in words.names for cell in BUGS[name].cells[: None if words.all_cells else 1]]
        attempts = attempt_all(cells, words.jobs, words.baselines)
        caught = sum(one.caught for one in attempts)
        what = f"{len(attempts)} cells with a bug" if words.all_cells else f"{len(attempts)} bugs"
        minutes = sum(one.seconds for one in attempts) / words.jobs / 60
        outcome = f"{table(attempts)}\n\n{caught} of {what} are caught, in {minutes:.0f} minutes."
        bad = caught < len(attempts)
    print(f"\n{outcome}\n{(time.monotonic() - began) / 60:.1f} minutes")
    if words.write:
        put("explanation/validation.md", **{"clean" if words.clean else "lots" if words.lots else "bugs": outcome})
    return int(bad)


if __name__ == "__main__":
    frame.run_command(main)

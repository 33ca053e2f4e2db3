"""The verbs `validate` and `baseline`: their arguments, and what is printed. What they do is `bench.validate`'s."""

from __future__ import annotations

import argparse
import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, file_of, path_of, there, usage
from bench.base.writing import write_text
from bench.results.runfolder import Run, find_runs, unfinished

if TYPE_CHECKING:
    from bench.validate import Judgement

PROPOSALS = Path("proposals")
Read = Callable[[list[str]], argparse.Namespace]


def add_validate(parser: argparse.ArgumentParser, runs: Path, baselines: Path) -> None:
    """The arguments of `validate`."""
    parser.add_argument("path", type=path_of, nargs="*", default=[runs], help=f"run folders or trees (default: {runs})")
    parser.add_argument("--baseline", type=there, default=baselines, help="folder of baselines, or one of its files")
    parser.add_argument("--brief", action="store_true", help="print what did not pass, and the summary")
    parser.add_argument("--experiment", metavar="NAME", help="demand every run that it plans")
    parser.add_argument("--junit", type=file_of, help="write the verdicts as JUnit XML")
    parser.add_argument(
        "--github", action="store_true", help="annotations and step summary (default in GitHub Actions)"
    )
    parser.add_argument("--with", dest="optional", action="append", default=[], metavar="CHECK", help="also: rcp")
    parser.add_argument(
        "--only", action="append", default=[], metavar="CHECK", help="this check (and `status`); can be said again"
    )
    parser.add_argument("--accept-improvement", action="store_true", help="better than can be is no reason to stop")
    parser.add_argument("--allow-expired", action="store_true", help="compare with baselines whose last day is over")
    parser.add_argument(
        "--allow-inconclusive", action="store_true", help="too few seeds for a verdict: exit code 0, not 3"
    )
    parser.add_argument("--allow-mismatch", default="", metavar="FIELD,...", help="fields that may differ; is recorded")


def validate(asked: argparse.Namespace) -> Exit:
    """Judge and tell; the exit code. Raises UsageError."""
    from bench.validate import Terms, judge_trees
    from bench.validate.show import lines

    terms = Terms(
        today=_today(),
        optional=tuple(asked.optional),
        only=tuple(asked.only),
        accept_improvement=asked.accept_improvement,
        allow_expired=asked.allow_expired,
        allow_inconclusive=asked.allow_inconclusive,
        allowed=tuple(field for field in asked.allow_mismatch.split(",") if field),
    )
    with usage():
        trees = {path: some_runs(path) for path in asked.path}
        found = [run for runs, _ in trees.values() for run in runs]
        judgement = _whole(judge_trees(trees, asked.baseline, terms), asked, found)
        if asked.junit:
            _junit(asked.junit, judgement)
        print("\n".join(lines(judgement, asked.brief)))
        if asked.github or os.environ.get("GITHUB_ACTIONS") == "true":
            _github(judgement)
    return judgement.code


def _junit(place: Path, judgement: Judgement) -> None:
    from bench.validate.junit import xml

    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, xml(judgement))
    except OSError as error:
        raise UsageError(f"--junit {place}: cannot be written: {error.strerror}") from None


def _whole(judgement: Judgement, asked: argparse.Namespace, runs: Sequence[Run]) -> Judgement:
    """The judgement with what an experiment planned and is not here: a verdict if it was asked for, else a remark."""
    from bench.report.planned import planned
    from bench.results.rerun_command import said
    from bench.validate.verdict import EXITS, Verdict

    plan = planned(asked.path[0], asked.experiment)
    missing = plan.missing(runs) if plan is not None else []
    if plan is None or not missing:
        return judgement
    seeds: dict[str, list[str]] = defaultdict(list)
    for point in missing:
        seeds[f"{point.model} {point.mode} ×{point.world_size}"].append(str(point.seed))
    line = f"{len(missing)} of the {len(plan.points)} runs that it plans are not here: "
    line += "; ".join(f"{cell} seeds {', '.join(listed)}" for cell, listed in seeds.items())
    line += f"; train them: python -m bench experiment={plan.experiment} {said('output', str(asked.path[0]))}"
    if asked.experiment is None:
        return replace(judgement, footer=[*judgement.footer, f"experiment {plan.experiment}: {line}"])
    told = Verdict("INCONCLUSIVE", "planned", f"experiment {plan.experiment}", line, EXITS["INCONCLUSIVE"])
    return replace(judgement, verdicts=[told, *judgement.verdicts])


def _github(judgement: Judgement) -> None:
    from bench.validate import github

    for line in github.commands(judgement):
        print(line)
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        path = Path(place)
        there = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as file:
            file.write(github.markdown(judgement, github.SUMMARY_BYTES - there))


def add_baseline(parser: argparse.ArgumentParser, runs: Path, baselines: Path) -> None:
    """The arguments of `baseline` and of what it can do."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=text, allow_abbrev=False)

    one = action(
        "propose",
        "Make baselines from the runs of five seeds or more (below 20: provisional), to be accepted.",
    )
    one.add_argument("path", type=path_of, nargs="?", default=runs, help=f"tree of runs (default: {runs})")
    one.add_argument("--out", type=path_of, default=PROPOSALS, help=f"where proposals go (default: {PROPOSALS})")
    one.add_argument("--mode", help="only cells of this mode, such as solo")
    one.add_argument("--time", action="store_true", help="keep speeds too, for comparisons on the same machine")
    one.add_argument(
        "--slower", type=float, metavar="PERCENT", help="with --time: how much longer cells may take (default: 10)"
    )
    one.add_argument("--dirty", action="store_true", help="though the source tree had uncommitted changes")
    one.add_argument("--because", help="what explains seeds far from the others")
    one.add_argument("--baseline", type=path_of, default=baselines, help="what the differences are shown to")
    one.set_defaults(committed=baselines)
    one = action(
        "accept",
        "Put proposals into place, out of their folder. What asks less than what it replaces: only with a reason.",
    )
    one.add_argument("path", type=path_of, nargs="?", default=PROPOSALS, help=f"file or folder (default: {PROPOSALS})")
    one.add_argument("--baseline", type=path_of, default=baselines, help="folder of baselines")
    one.add_argument("--because", help="why a baseline is right that asks less than the old one")
    one = action("diff", "Old and new means with intervals.")
    one.add_argument("old", type=there, help="file or folder")
    one.add_argument("new", type=there, help="file or folder")
    one = action("audit", "Age, seeds and power of every baseline. Exit code 4 if one is damaged or expired.")
    one.add_argument(
        "path", type=there, nargs="?", default=baselines, help="file or folder (default: the committed ones)"
    )
    one.add_argument("--runs", type=path_of, help="tree of runs: which baselines does it use?")


def baseline(asked: argparse.Namespace) -> Exit:
    """Do what was asked; the exit code. Raises UsageError."""
    told: Sequence[str] = []
    code = Exit.OK
    with usage():
        match asked.action:
            case "propose":
                told = _propose(asked)
            case "accept":
                from bench.validate.revision import accept

                told = accept(asked.path, asked.baseline, asked.because)
            case "diff":
                from bench.validate.revision import diff, some, whole

                told = diff(*(some(whole(path), path) for path in (asked.old, asked.new)))
            case "audit":
                told, code = _audit(asked)
    print("\n".join(told))
    return code


def _propose(asked: argparse.Namespace) -> Sequence[str]:
    from bench.validate.library import Library, load
    from bench.validate.revision import diff, write_proposals

    some_runs(asked.path)
    made = write_proposals(
        asked.path,
        asked.out,
        _today(),
        mode=asked.mode,
        slower=_slower(asked),
        dirty=asked.dirty,
        because=asked.because,
    )
    known = {reference.config_hash for reference in made}
    old = Library(tuple(r for r in load(asked.baseline).references if r.config_hash in known))
    words = ["python", "-m", "bench", "baseline", "accept", str(asked.out)]
    words += [] if asked.baseline == asked.committed else ["--baseline", str(asked.baseline)]
    how = f"{len(made)} proposals in {asked.out}; to put them into place: {shlex.join(words)}"
    return [*diff(old, Library(tuple(made))), how]


def _slower(asked: argparse.Namespace) -> float | None:
    """How much longer cells may take, per cent; None: time is not asked for."""
    if asked.slower is not None and not asked.time:
        raise UsageError("--slower is the margin of --time: say both")
    from bench.validate.propose import SLOWER

    return (SLOWER if asked.slower is None else asked.slower) if asked.time else None


def _audit(asked: argparse.Namespace) -> tuple[Sequence[str], Exit]:
    from bench.validate.library import load
    from bench.validate.revision import audit, some

    used, problems = None, list[str]()
    if asked.runs is not None:
        runs, problems = find_runs(asked.runs)
        used = frozenset(run.metrics.config_hash for run in runs)
    told, sound = audit(some(load(asked.path), asked.path), _today(), used)
    told = [*told, *(f"left out, so what it uses is not known: {problem}" for problem in problems)]
    return told, Exit.OK if sound and not problems else Exit.REFUSED


def some_runs(path: Path) -> tuple[list[Run], list[str]]:
    """As `find_runs`. Raises ValueError if there is nothing to judge: no folder of a run, be it one that cannot be read."""
    runs, problems = find_runs(path)
    if not runs and not problems:
        raise ValueError(f"no run to be read in {path}{_left(path)}")
    return runs, problems


def _left(path: Path) -> str:
    """What to do where there is no run: go on with one that was killed, if there is such a one; make one where nothing else
    lies."""
    from bench.results.rerun_command import said

    found = unfinished(path)
    for place, process in found:
        if process is not None:
            return f": {place} is still going on, in process {process}; wait for it"
    if (path / "report.md").exists():
        return ", which is a report; give the run folder or the tree that it is about, such as runs/"
    if not found and any(path.iterdir()):
        return "; give a run folder or a tree of them, such as runs/"
    if not found:
        return f"; make one: python -m bench {said('output', str(path))}"
    place, more = found[0][0], f", as were {len(found) - 1} more" if len(found) > 1 else ""
    return f": {place} was killed{more}; go on with it: python -m bench {said('resume', str(place))}"


def _today() -> date:
    return datetime.now(UTC).date()

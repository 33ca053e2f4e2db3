"""The verbs `validate` and `baseline`: their arguments and printed output. `bench.validate` does the work."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base.exitcodes import Exit
from bench.base.grouping import grouped
from bench.base.paths import judged_by
from bench.base.usage import UsageError, file_of, path_of, there, usage, writing
from bench.base.writing import write_text
from bench.results.runfolder import Run, find_runs, unfinished

if TYPE_CHECKING:
    from bench.validate import Judgement

PROPOSALS = Path("proposals")


def add_validate(parser: argparse.ArgumentParser, runs: Path, baselines: Path) -> None:
    """Add the arguments of `validate`."""
    add = parser.add_argument
    add("path", type=path_of, nargs="*", default=[runs], help=f"run folders or trees (default: {runs})")
    add("--baseline", type=there, default=baselines, help="folder of baselines, or one of its files")
    add("--brief", action="store_true", help="print only what did not pass, and the summary")
    add("--experiment", metavar="NAME", help="make planned runs that are missing INCONCLUSIVE")
    add("--config-dir", "-cd", type=there, metavar="FOLDER", help="look for experiments in this folder too")
    add("--junit", type=file_of, help="write the verdicts as JUnit XML")
    add("--github", action="store_true", help="annotations and step summary (default in GitHub Actions)")
    add("--with", dest="optional", action="append", default=[], metavar="CHECK", help="also: rcp")
    add("--only", action="append", default=[], metavar="CHECK", help="only this check (and `status`); may be repeated")
    add("--accept-improvement", action="store_true", help="accept results that are better than plausible")
    add("--allow-expired", action="store_true", help="compare with expired baselines too")
    add(
        "--allow-inconclusive",
        action="store_true",
        help="exit code 0 instead of 3 if seeds are too few, or runs not audited",
    )
    add(
        "--allow-mismatch",
        default="",
        metavar="FIELD,...",
        help="fields that may differ from the baseline; exit code at least 3",
    )


def validate(options: argparse.Namespace) -> Exit:
    """Judge the runs and print the verdicts; return the exit code. Raise UsageError."""
    from bench.validate import Terms, judge_trees
    from bench.validate.outputs.verdict_text import lines

    terms = Terms(
        today=_today(),
        optional=tuple(options.optional),
        only=tuple(options.only),
        accept_improvement=options.accept_improvement,
        allow_expired=options.allow_expired,
        allow_inconclusive=options.allow_inconclusive,
        allowed=tuple(field for field in options.allow_mismatch.split(",") if field),
    )
    with usage():
        trees = {path: some_runs(path) for path in options.path}
        runs = [run for tree, _ in trees.values() for run in tree]
        judgement = _with_missing(judge_trees(trees, options.baseline, terms), options, runs)
        if options.junit:
            _junit(options.junit, judgement)
        print("\n".join(lines(judgement, options.brief)))
        if options.github or os.environ.get("GITHUB_ACTIONS") == "true":
            _github(judgement)
    return judgement.code


def _junit(place: Path, judgement: Judgement) -> None:
    from bench.validate.outputs.junit import xml

    with writing(f"--junit {place}"):
        place.parent.mkdir(parents=True, exist_ok=True)
        write_text(place, xml(judgement))


def _with_missing(judgement: Judgement, options: argparse.Namespace, runs: Sequence[Run]) -> Judgement:
    """Add the planned but missing runs of an experiment: as a verdict if the user named the experiment, else as a
    remark."""
    from bench.config.overrides import setting
    from bench.results.planned import planned
    from bench.validate.verdicts.verdict import EXITS, Verdict

    plan = planned(options.path[0], options.experiment, presets=options.config_dir)
    missing = plan.missing(runs) if plan is not None else []
    if plan is None or not missing:
        return judgement
    seeds = grouped((f"{point.model} {point.mode} ×{point.world_size}", str(point.seed)) for point in missing)
    line = f"{len(missing)} of the {len(plan.points)} runs that it plans are not here: "
    line += "; ".join(f"{cell} seeds {', '.join(listed)}" for cell, listed in seeds.items())
    flag = "" if options.config_dir is None else f"--config-dir {shlex.quote(str(options.config_dir))} "
    line += (
        f"; train them: python -m bench {flag}experiment={plan.experiment} {setting('output', str(options.path[0]))}"
    )
    if options.experiment is None:
        return replace(judgement, footer=[*judgement.footer, f"experiment {plan.experiment}: {line}"])
    verdict = Verdict("INCONCLUSIVE", "planned", f"experiment {plan.experiment}", line, EXITS["INCONCLUSIVE"])
    return replace(judgement, verdicts=[verdict, *judgement.verdicts])


def _github(judgement: Judgement) -> None:
    from bench.validate.outputs import github

    for line in github.commands(judgement):
        print(line)
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        path = Path(place)
        written = path.stat().st_size if path.exists() else 0
        with path.open("a", encoding="utf-8") as file:
            file.write(github.markdown(judgement, github.SUMMARY_BYTES - written))


def add_baseline(parser: argparse.ArgumentParser, runs: Path, baselines: Path, own: Path) -> None:
    """Add the arguments of `baseline` and of its actions. `baselines`: the committed ones; `own`: where new ones belong."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, text: str) -> Callable[..., object]:
        action_parser = actions.add_parser(name, help=text, description=text, allow_abbrev=False)
        action_parser.set_defaults(own=own)
        return action_parser.add_argument

    add = action(
        "propose", "Make baselines from the runs of five seeds or more (below 20: provisional), to be accepted."
    )
    add("path", type=path_of, nargs="?", default=runs, help=f"tree of runs (default: {runs})")
    add("--out", type=path_of, default=PROPOSALS, help=f"where proposals go (default: {PROPOSALS})")
    add("--mode", help="only cells of this mode, such as solo")
    add("--time", action="store_true", help="keep speeds too, for comparisons on the same machine")
    add("--slower", type=float, metavar="PERCENT", help="with --time: how much longer cells may take (default: 10)")
    add("--dirty", action="store_true", help="accept runs of a source tree with uncommitted changes")
    add("--because", help="reason for seeds far from the others")
    add("--baseline", type=path_of, default=own, help="baselines to compare the proposals with")
    reason = "A weaker baseline needs a reason."
    add = action("accept", f"Move proposals to the baselines. {reason}")
    add("path", type=path_of, nargs="?", default=PROPOSALS, help=f"file or folder (default: {PROPOSALS})")
    add("--baseline", type=path_of, default=own, help="folder of baselines")
    add("--because", help="reason for a weaker baseline")
    add = action("diff", "Old and new means with intervals.")
    add("old", type=there, help="file or folder")
    add("new", type=there, help="file or folder")
    add = action("audit", "Age, seeds and power of every baseline. Exit code 4 if one is damaged or expired.")
    add("path", type=there, nargs="?", default=baselines, help="file or folder (default: all that `validate` reads)")
    add("--runs", type=path_of, help="also say which baselines this tree of runs uses")


def baseline(options: argparse.Namespace) -> Exit:
    """Do one action on baselines and print its result; return the exit code. Raise UsageError."""
    lines: Sequence[str] = []
    code = Exit.OK
    with usage():
        match options.action:
            case "propose":
                lines = _propose(options)
            case "accept":
                from bench.validate.revisions.revision import accept

                lines = accept(options.path, options.baseline, options.because)
                if options.baseline != options.own:
                    judge = shlex.join(
                        ["python", "-m", "bench", "validate", "RUNS", "--baseline", str(options.baseline)]
                    )
                    lines.append(f"in {options.baseline}; to judge by them: {judge}")
            case "diff":
                from bench.validate.revisions.revision import diff, some, whole

                lines = diff(*(some(whole(path), path) for path in (options.old, options.new)))
            case "audit":
                lines, code = _audit(options)
    print("\n".join(lines))
    return code


def _propose(options: argparse.Namespace) -> Sequence[str]:
    from bench.validate.baselines.folder import Library, load
    from bench.validate.revisions.propose import SLOWER
    from bench.validate.revisions.revision import diff, write_proposals

    some_runs(options.path)
    if options.slower is not None and not options.time:
        raise UsageError("--slower is the margin of --time: say both")
    slower = (SLOWER if options.slower is None else options.slower) if options.time else None
    terms = {"mode": options.mode, "slower": slower, "dirty": options.dirty, "because": options.because}
    proposals = write_proposals(options.path, options.out, _today(), **terms)
    known = {reference.config_hash for reference in proposals}
    old = Library(tuple(r for r in load(options.baseline).references if r.config_hash in known))
    words = ["python", "-m", "bench", "baseline", "accept", str(options.out)]
    words += [] if options.baseline == options.own else ["--baseline", str(options.baseline)]
    how = f"{len(proposals)} proposals in {options.out}; to put them into place: {shlex.join(words)}"
    return [*diff(old, Library(tuple(proposals))), how]


def _audit(options: argparse.Namespace) -> tuple[Sequence[str], Exit]:
    from bench.validate.baselines.folder import load
    from bench.validate.revisions.revision import audit, some

    used, problems = None, list[str]()
    if options.runs is not None:
        runs, problems = find_runs(options.runs)
        used = frozenset(run.metrics.config_hash for run in runs)
    lines, sound = audit(some(load(*judged_by(options.path)), options.path), _today(), used)
    lines = [*lines, *(f"left out, so what it uses is not known: {problem}" for problem in problems)]
    return lines, Exit.OK if sound and not problems else Exit.REFUSED


def some_runs(path: Path) -> tuple[list[Run], list[str]]:
    """Return the runs and problems of `find_runs`. Raise ValueError if `path` has no run folder at all, readable or
    not."""
    runs, problems = find_runs(path)
    if not runs and not problems:
        raise ValueError(f"no run to be read in {path}{_remedy(path)}")
    return runs, problems


def _remedy(path: Path) -> str:
    """Return advice for a folder without runs: resume a killed run if there is one; train one if the folder is
    empty."""
    from bench.config.overrides import setting

    begun = unfinished(path)
    for place, maker in begun:
        if maker is not None:
            return f": {place} is still going on, in process {maker.process}; wait for it"
    if (path / "report.md").exists():
        return ", which is a report; give the run folder or the tree that it is about, such as runs/"
    if not begun and any(path.iterdir()):
        return "; give a run folder or a tree of them, such as runs/"
    if not begun:
        return f"; make one: python -m bench {setting('output', str(path))}"
    place, more = begun[0][0], f", as were {len(begun) - 1} more" if len(begun) > 1 else ""
    return f": {place} was killed{more}; go on with it: python -m bench {setting('resume', str(place))}"


def _today() -> date:
    return datetime.now(UTC).date()

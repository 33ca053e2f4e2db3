"""Prints the end of a run or a sweep: result, verdict in words, path of the report. `training.log` gets the same text,
uncut.

Imports validation only when needed: it imports pandas and matplotlib, which would delay the start of a run.
"""

from __future__ import annotations

import math
import os
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from bench.base import number_format
from bench.base.console import WIDTH, cut, verbosity
from bench.base.exitcodes import Exit
from bench.base.usage import reason
from bench.command.printed.run_lines import (
    LABEL,
    TROUBLE,
    Line,
    error_lines,
    result_lines,
    shortened,
    sweep_notes,
    sweep_table,
    trouble_lines,
)
from bench.results.analysis.faults import raised
from bench.results.runfolder import LOG, Run, going_on
from bench.results.schema import Metrics

if TYPE_CHECKING:
    from bench.config.config import Config
    from bench.runner.launch import Outcome
    from bench.validate import Verdict

ROOM = WIDTH - LABEL - 1
"""Characters of a line beside its label."""
NOTES = 4
"""Most notes shown on the cells of a sweep."""
UNDECIDED = ("INCONCLUSIVE", "NO_BASELINE")
"""Verdicts which mean that seeds or a baseline are missing, not that a result is wrong."""


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of one cell of a command."""

    title: str
    code: Exit
    folder: Path | None = None
    metrics: Metrics | None = None
    note: str = ""
    """Why this command has no new result for the cell."""
    refused: bool = False
    """Whether the cell could not start or its results could not be written; `note` says why."""
    defect: Exception | None = None
    """An unexpected exception: a bug of the harness."""
    objective: float | None = None
    """The number that a searching sweeper optimizes."""
    config: Config | None = None
    """Configuration of the cell; settings of the whole command are the same in all cells."""
    experiment: str | None = None
    swept: bool = False
    """Whether the cell is part of a sweep."""


@dataclass
class Summary:
    """Prints lines on a console and appends them to the logs of their runs."""

    console: Console
    logs: Sequence[Path] = ()
    """Run folders."""

    @staticmethod
    def of(console: Console, cells: Sequence[CellOutcome]) -> Summary:
        """Make a summary that also goes to the logs of the new runs among `cells`."""
        return Summary(console, [cell.folder for cell in cells if cell.folder is not None and not cell.note])

    def show(self, lines: Iterable[Line], whole: bool = False) -> None:
        """Print and log lines. Printed lines are cut to the width unless `whole`, which commands and paths need."""
        for line in lines:
            text = str(line).rstrip()
            self.print(text if whole or verbosity() > 0 else cut(text))
            self.log(self.logs, [text])

    def print(self, text: str) -> None:
        """Print lines as they are."""
        self.console.print(text, markup=False, soft_wrap=True)

    @staticmethod
    def log(folders: Iterable[Path], lines: Iterable[str]) -> None:
        """Append lines to the logs of runs. A log that cannot be written is skipped: it must not fail the run."""
        text = "".join(f"{line}\n" for line in lines)
        for folder in folders:
            with suppress(OSError):
                if (path := folder / LOG).is_file() and not path.is_symlink():
                    with path.open("a", encoding="utf-8", errors="backslashreplace") as log:
                        log.write(text)


def show_run(summary: Summary, cell: CellOutcome) -> None:
    """Print the result of one run, a line for each question."""
    m, detail = cell.metrics, verbosity() > 0
    assert m is not None
    summary.print("")
    logged = [*error_lines(m), *result_lines(m, detail=True), *trouble_lines(m)]
    summary.log(summary.logs, ["", *map(str, logged)])
    terse = Summary(summary.console)
    if detail:
        terse.show(logged)
    else:
        errors = shortened(error_lines(m), 1)
        terse.show([*errors, *result_lines(m), *shortened(trouble_lines(m), TROUBLE - len(errors))])
    summary.show([Line("results", str(cell.folder))], whole=True)
    if m.status == "failed" and cell.folder is not None and (more := going_on(cell.folder)):
        summary.show([Line("continue", more)], whole=True)


def show_search(summary: Summary, search: Mapping[str, Any]) -> None:
    """Print what a sweeper found by searching."""
    summary.print("")
    for name in ("best_params", "best_evaluated_params"):
        if isinstance(best := search.get(name), Mapping):
            value = search.get("best_value", search.get("best_evaluated_result"))
            settings = " ".join(f"{key}={value}" for key, value in best.items())
            none = "no run has the objective: all failed, or missed their target"
            known = not isinstance(value, float) or math.isfinite(value)
            summary.show([Line("best", f"{settings}  ({value})" if known else none)], whole=True)
    summary.show([Line("best", f"{solution}") for solution in search.get("solutions", ())], whole=True)


def show_sweep(summary: Summary, outcomes: Sequence[CellOutcome]) -> None:
    """Print a row for each cell with means over its seeds; then the cells that did not run or were disturbed. Each
    run's log gets its own result."""
    from bench.results.cells import cells

    unique = {cell.folder: cell for cell in outcomes if cell.metrics is not None and cell.folder is not None}
    for folder, cell in unique.items():
        if cell.metrics is not None and not cell.note:
            lines = [*error_lines(cell.metrics), *result_lines(cell.metrics, detail=True), *trouble_lines(cell.metrics)]
            summary.log([folder], ["", *map(str, lines), str(Line("results", str(folder)))])
    grouped = cells([Run(folder, cell.metrics) for folder, cell in unique.items() if cell.metrics is not None])
    summary.print("")
    summary.print(sweep_table(grouped))
    terse = Summary(summary.console)
    terse.show([Line("not run", cell.title) for cell in outcomes if cell.metrics is None])
    terse.show(shortened(sweep_notes(grouped), NOTES))


def judge(summary: Summary, root: Path, baselines: Path, own: Collection[Path]) -> Exit:
    """Print the verdicts on the runs in the folders `own`, and one line on the other runs in `root`.

    Return a failing exit code only for a proved regression or a failed run. Too few seeds, a missing baseline or a
    warning do not fail the command: `bench validate` has exit codes for these. Earlier finished seeds of a cell count
    for its verdicts; other runs do not."""
    from bench.results.cells import apart, cells
    from bench.results.runfolder import find_runs
    from bench.validate import judge_cells

    try:
        runs, unread = find_runs(root)
        mine, others = apart(cells(runs), own)
        judgement = judge_cells(mine, [], baselines)
        beside = judge_cells(others, [(root.name, text) for text in unread], baselines)
    except ValueError as error:
        summary.show([Line("verdict", f"none: {error}")])
        return Exit.USAGE
    verdicts = judgement.verdicts
    errors = [line for cell in mine for m in cell.bereft for line in raised(m.faults)]
    raised_first = f"{errors[0]}{f' ({len(errors)} such errors)' * (len(errors) > 1)}; " if errors else ""
    first, *rest = in_words(verdicts)
    summary.show([Line("verdict", raised_first + first), *(Line("", line) for line in rest)])
    summary.show([Line(*pair) for pair in what_next(verdicts, root)], whole=True)
    if line := _others([verdict for verdict in beside.verdicts if verdict not in verdicts]):
        more = f"{line}; not of this command: python -m bench validate {shlex.quote(str(root))}"
        summary.show([Line("others", more)], whole=True)
    return Exit.OK if judgement.code in (Exit.REFUSED, Exit.INCONCLUSIVE) else judgement.code


def in_words(verdicts: Sequence[Verdict]) -> list[str]:
    """Return the verdicts in plain words, then the first verdict that did not pass. Before both, a line on diverged
    seeds if no check fails because of them."""
    undecided = [v for v in verdicts if v.check == "diverged" and v.name == "INCONCLUSIVE"]
    lost = [f"{v.cell}: {v.why.partition(':')[0]}" for v in undecided if "seeds diverged (" in v.why]
    return [*lost[:1], *_summed(verdicts)]


def _summed(verdicts: Sequence[Verdict]) -> list[str]:
    failing = [verdict for verdict in verdicts if verdict.name not in ("PASS", "XFAIL")]
    kinds = {verdict.name for verdict in failing}
    known = list(dict.fromkeys(verdict.check for verdict in verdicts if verdict.name == "XFAIL"))
    if known and kinds <= {*UNDECIDED, "REFUSED"}:
        passing = sum(verdict.name == "PASS" for verdict in verdicts)
        others = f"{number_format.plural(passing, 'other verdict')} pass{'es' * (passing == 1)}"
        rest = _summed(failing) if failing else [others]
        first = rest[0].replace("no check", "no other check")
        return [f"fails as expected: {', '.join(known)}; {first}", *rest[1:]]
    if not failing:
        own = {verdict.figures.own for verdict in verdicts if verdict.figures is not None}
        like = "as their baselines" if len(own) > 1 else "as its own baseline" if True in own else "as one device"
        return [f"as good {like}: all {len(verdicts)} verdicts pass" if verdicts else "none"]
    seeds = max((verdict.figures.seeds for verdict in verdicts if verdict.figures is not None), default=0)
    if kinds == {"INCONCLUSIVE"}:
        if any(verdict.more for verdict in failing):
            more = f", {lacking} more can" if (lacking := max(verdict.lacking for verdict in failing)) else ""
            return [f"no check failed; {number_format.plural(seeds, 'seed')} cannot decide yet{more}"]
        return [f"no check failed; not decided: {', '.join(dict.fromkeys(verdict.check for verdict in failing))}"]
    if kinds == {"NO_BASELINE"}:
        return ["nothing to compare the result with"]
    count = "cannot be compared" if kinds == {"REFUSED"} else _counted(verdict.name for verdict in verdicts)
    return [count, *_wrong(failing)[:1]]


def what_next(verdicts: Sequence[Verdict], root: Path) -> list[tuple[str, str]]:
    """Return pairs of a label and a command: the command that trains missing seeds or a baseline, or that prints in
    full what did not pass."""
    place = shlex.quote(str(root))
    wrong = _wrong(verdicts)
    if len(wrong) > 1 or any(len(line) > ROOM for line in wrong):
        return [("in full", f"python -m bench validate --brief {place}")]
    if any(verdict.more for verdict in verdicts if verdict.name not in ("PASS", "XFAIL")):
        return [("next", f"python -m bench more {place}")]
    return []


def _wrong(verdicts: Sequence[Verdict]) -> list[str]:
    return list(
        dict.fromkeys(
            f"{v.name} {v.cell}  {v.check}: {v.why}"
            for v in verdicts
            if v.name not in ("PASS", "XFAIL") and v.name not in UNDECIDED
        )
    )


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(names).items())


def _others(verdicts: Sequence[Verdict]) -> str:
    """Return what is wrong with the other cells of the tree, by verdict; empty if nothing is."""
    wrong = [each for each in verdicts if each.exit_code and each.name not in ("INCONCLUSIVE", "NO_BASELINE")]
    places = number_format.plural(len({verdict.cell for verdict in wrong}), "place")
    return f"{_counted(verdict.name for verdict in wrong)} in {places}" if wrong else ""


def report_folders(trees: Collection[Path], experiment: str | None) -> dict[Path, Path]:
    """Return tree -> folder of its report. The reports on several trees lie as the trees do."""
    whole = {tree: Path(os.path.realpath(tree)) for tree in trees}
    common = Path(os.path.commonpath(whole.values()))
    return {
        tree: Path("reports") / (experiment or common.name) / path.relative_to(common) for tree, path in whole.items()
    }


def report(summary: Summary, root: Path, out: Path, baseline: Path | None) -> Exit:
    """Write the report and print where it is. If it cannot be written, print why and the command that writes it later;
    return FAILED. The results are kept."""
    from bench.report import write_report

    try:
        lines, code = [Line("report", str(write_report(root, out, baseline=baseline)))], Exit.OK
    except (ValueError, OSError) as error:
        again = _report_command(root, out)
        lost = Line("report", f"not written, the results are kept: {reason(error)}")
        lines, code = [lost, Line("again", again)], Exit.FAILED
    summary.show(lines, whole=True)
    return code


def write_own_report(outcome: Outcome) -> list[str]:
    """Write the report of one run for loggers that store it; skipped after an interrupt. Return why it could not be
    written, with the command that writes it later; [] if it was. The results are kept."""
    from bench.report import write_report

    if outcome.metrics.status == "killed":
        return []
    folder = outcome.folder
    try:
        write_report(folder, folder)
    except (ValueError, OSError) as error:
        return [f"report not written, the results are kept: {reason(error)}; again: {_report_command(folder, folder)}"]
    return []


def _report_command(root: Path, out: Path) -> str:
    """Return the command that writes a report."""
    return f"python -m bench report {shlex.quote(str(root))} --out {shlex.quote(str(out))}"

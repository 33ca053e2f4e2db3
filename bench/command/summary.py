"""What is printed when a run or a sweep is over: quality, speed, where the time went, the verdict, where the report lies.

Imports the judges when they are needed: they bring pandas and matplotlib, and a run should begin at once.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from tabulate import tabulate

from bench.base import figures
from bench.base.exitcodes import Exit
from bench.results.analysis.faults import notes, raised
from bench.results.runfolder import going_on
from bench.results.schema import Metrics, RankTime, Steady

if TYPE_CHECKING:
    from bench.config.config import Config
    from bench.validate import Verdict

MOST, WIDTH = 4, 90
"""Verdicts that are named; signs of a line beside its label."""
UNDECIDED = ("INCONCLUSIVE", "NO_BASELINE")
"""Verdicts that say that something is lacking, not that something is wrong."""
PARTS = ("compute", "data", "comm", "wait", "eval", "checkpoint", "other")


@dataclass(frozen=True)
class CellOutcome:
    """What became of one cell of a command."""

    title: str
    code: Exit
    folder: Path | None = None
    metrics: Metrics | None = None
    note: str = ""
    """Why there is nothing new to see."""
    refused: bool = False
    """It could not begin, or its results could not be written: `note` is to be shown."""
    defect: Exception | None = None
    """Ours, not the user's nor the world's."""
    objective: float | None = None
    """What a searching sweeper makes better."""
    config: Config | None = None
    """Of the cell; what concerns the command as a whole is the same in all."""
    experiment: str | None = None
    swept: bool = False
    """It is one of a sweep."""


def show_run(console: Console, cell: CellOutcome) -> None:
    """Print the result of one run, a line for each question."""
    m = cell.metrics
    assert m is not None
    console.print()
    for line in raised(m.faults):  # before all figures: they are of a program with an error
        _line(console, "error", line)
    _line(console, m.final.eval_metric, f"{figures.metric(m.final.eval)}  ({_best(m)}{_target(m)})")
    _line(console, "speed", _speed(m))
    if m.throughput.steady is not None and m.world_size > 1:
        _line(console, "steady", _steady(m.throughput.steady))
    t = m.time_s
    parts = f"startup {t.startup:.1f}, train {t.train:.1f}, eval {t.eval:.1f}, shutdown {t.shutdown:.1f}"
    _line(console, "time", f"{t.total:.1f} s: {parts}")
    lost = {fault.rank for fault in m.faults}
    for rank, spent in enumerate(m.breakdown):
        _line(console, f"rank {rank}", f"{'lost:  ' if rank in lost else ''}{_breakdown(spent)}")
    for fault in m.faults:
        who = "" if fault.rank is None else f"rank {fault.rank}, "
        _line(console, "fault", f"{who}{fault.seconds:.1f} s after launch: {fault.text}; {fault.action}".rstrip("; "))
    for warning in m.warnings:
        if warning not in notes(m.faults):  # shown above
            _line(console, "note", warning)
    _line(console, "results", str(cell.folder))
    if m.status == "failed" and cell.folder is not None and (more := going_on(cell.folder)):
        _line(console, "go on", more)


def show_search(console: Console, search: Mapping[str, Any]) -> None:
    """Print what a sweeper found by searching."""
    console.print()
    for name in ("best_params", "best_evaluated_params"):
        if isinstance(best := search.get(name), Mapping):
            value = search.get("best_value", search.get("best_evaluated_result"))
            settings = " ".join(f"{key}={value}" for key, value in best.items())
            _line(console, "best", f"{settings}  ({value})")
    for solution in search.get("solutions", ()):
        _line(console, "best", f"{solution}")


def show_sweep(console: Console, cells: list[CellOutcome]) -> None:
    """Print a row for each cell."""
    headers = ["cell", "ranks", "seed", "status", "eval", "samples/s", "efficiency", "steady", "seconds"]
    align = ("left", "right", "right", "left", *["right"] * 5)
    table = tabulate([_row(cell) for cell in cells], headers, disable_numparse=True, colalign=align)
    console.print()
    console.print(table, markup=False, soft_wrap=True)
    for warning in dict.fromkeys(note for cell in cells if cell.metrics for note in cell.metrics.warnings):
        _line(console, "note", warning)


def _row(cell: CellOutcome) -> list[str]:
    m = cell.metrics
    if m is None:
        return [cell.title, "-", "-", "not run"]
    return [
        f"{m.model} {m.mode}",
        str(m.world_size),
        str(m.seed),
        cell.note or (f"{m.status}, a rank raised" if raised(m.faults) else m.status),
        figures.metric(m.final.eval),
        _number(m.throughput.samples_per_s, ",.0f"),
        _number(m.throughput.efficiency, ".2f"),
        _number(m.throughput.steady_efficiency, ".3f"),
        f"{m.time_s.total:.1f}",
    ]


def judge(console: Console, root: Path, baselines: Path, own: Collection[Path]) -> Exit:
    """Print the verdicts on the runs in the folders `own`, and one line on what else lies in `root`.

    Return the exit code as far as it concerns who trained: a regression that is proved, and a run that failed, do. Too few
    seeds for a verdict, nothing to compare with, or something to look at, do not: a run is no claim. `bench validate` has
    exit codes for these. Seeds of a cell that finished earlier count with its own; nothing else does."""
    from bench.results.cells import apart, cells
    from bench.results.runfolder import find_runs
    from bench.validate import judge_cells

    try:
        runs, unread = find_runs(root)
        mine, others = apart(cells(runs), own)
        judgement = judge_cells(mine, [], baselines)
        beside = judge_cells(others, [(root.name, text) for text in unread], baselines)
    except ValueError as error:
        _line(console, "verdict", f"none: {error}")
        return Exit.REFUSED
    verdicts = judgement.verdicts
    errors = [line for cell in mine for m in cell.bereft for line in raised(m.faults)]
    raised_first = f"{errors[0]}{f' ({len(errors)} such errors)' * (len(errors) > 1)}; " if errors else ""
    first, *rest = in_words(verdicts, root)
    _line(console, "verdict", raised_first + first)
    for line in rest:
        _line(console, "", line)
    if line := _others([verdict for verdict in beside.verdicts if verdict not in verdicts]):
        _line(console, "others", f"{line}; not of this command: python -m bench validate {shlex.quote(str(root))}")
    return Exit.OK if judgement.code in (Exit.REFUSED, Exit.INCONCLUSIVE) else judgement.code


def in_words(verdicts: Sequence[Verdict], root: Path) -> list[str]:
    """Return what verdicts come to, for somebody who does not know their names; then whatever did not pass, cut short."""
    place = shlex.quote(str(root))
    failing = [verdict for verdict in verdicts if verdict.name not in ("PASS", "XFAIL")]
    kinds = {verdict.name for verdict in failing}
    if not failing:
        return [f"as good as one device: all {len(verdicts)} verdicts pass" if verdicts else "none"]
    seeds = max((verdict.figures.seeds for verdict in verdicts if verdict.figures is not None), default=0)
    decided = f"; what decides: python -m bench more {place}" if any(verdict.more for verdict in failing) else ""
    if kinds == {"INCONCLUSIVE"}:
        lines = [f"nothing is wrong so far as {figures.plural(seeds, 'seed')} can tell{decided}"]
    elif kinds == {"NO_BASELINE"}:
        lines = [f"nothing to compare the result with{decided}"]
    else:
        lines = [f"{_counted(verdict.name for verdict in verdicts)}{decided}"]
    shown = list(dict.fromkeys(f"{v.name} {v.cell}  {v.check}: {v.why}" for v in failing if v.name not in UNDECIDED))
    lines += [line if len(line) <= WIDTH else f"{line[: WIDTH - 1]}…" for line in shown[:MOST]]
    if len(shown) > MOST or any(len(line) > WIDTH for line in shown):
        lines.append(f"in full: python -m bench validate --brief {place}")
    return lines


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in Counter(names).items())


def _others(verdicts: Sequence[Verdict]) -> str:
    """Return what is wrong with cells that nobody asked for, by verdict; empty: nothing that is known."""
    wrong = [each for each in verdicts if each.exit_code and each.name not in ("INCONCLUSIVE", "NO_BASELINE")]
    places = figures.plural(len({verdict.cell for verdict in wrong}), "place")
    return f"{_counted(verdict.name for verdict in wrong)} in {places}" if wrong else ""


def report(console: Console, root: Path, out: Path, baseline: Path | None) -> None:
    """Write the report and print where it is."""
    from bench.report import write_report

    try:
        _line(console, "report", str(write_report(root, out, baseline=baseline)))
    except (ValueError, OSError) as error:
        _line(console, "report", f"not written: {error}")


def _line(console: Console, label: str, text: str) -> None:
    console.print(f"{label:<9} {text}", markup=False, soft_wrap=True)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _best(m: Metrics) -> str:
    if m.final.best is None or m.final.best_epoch is None or m.final.best == m.final.eval:
        return ""
    return f"best {figures.metric(m.final.best)} in epoch {m.final.best_epoch + 1}, "  # as progress counts them


def _target(m: Metrics) -> str:
    if m.target.value is None:
        return "no target"
    if m.target.reached and m.target.seconds is not None:
        return f"target {m.target.value:g} reached after {m.target.samples:,} samples, {m.target.seconds:.1f} s"
    return f"target {m.target.value:g} not reached"


def _speed(m: Metrics) -> str:
    if m.throughput.samples_per_s is None:
        return "-"
    ranks = "" if m.world_size == 1 else f" ({' + '.join(f'{speed:,.0f}' for speed in m.throughput.per_rank)})"
    efficiency = m.throughput.efficiency
    bound = "" if efficiency is None else f", {efficiency:.0%} of what the ranks could do without waiting and averaging"
    return f"{m.throughput.samples_per_s:,.0f} samples/s{ranks}{bound}"


def _steady(steady: Steady) -> str:
    """Return the speed without the beginning, the end and evaluation."""
    apart = " / ".join("-" if share is None else f"{share:.1%}" for share in steady.waiting_or_communicating)
    return (
        f"{steady.samples_per_s:,.0f} samples/s over {steady.seconds:.1f} s, {steady.efficiency:.1%} of what the ranks do "
        f"alone ({steady.bound:,.0f}); waiting or communicating {apart}"
    )


def _breakdown(spent: RankTime) -> str:
    shares = [(name, getattr(spent, name)) for name in PARTS]
    return "  ".join(f"{name} {share:.0%}" for name, share in shares if share >= 0.005)

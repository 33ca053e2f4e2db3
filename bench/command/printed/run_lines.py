"""The lines printed at the end of a run or a sweep: result, speed, where the time went, what went wrong. Pure.

Lines have at most `WIDTH` characters; `training.log` has them uncut. Verdicts and reports have lines of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from tabulate import tabulate

from bench.base import number_format
from bench.base.console import WIDTH
from bench.base.environment import BUSY
from bench.results.analysis.explained import NAMES
from bench.results.analysis.faults import missing, notes, raised
from bench.results.cells import Cell
from bench.results.schema import Metrics, RankTime, Steady

LABEL = 9
MOST, TROUBLE = 5, 2
"""Most parts of the time shown; most errors, faults and notes shown at the end of a run. training.log has all of
them."""
PARTS = ("compute", "data", "comm", "wait", "eval", "checkpoint", "absent", "other")


class Line(NamedTuple):
    """A line with its label; an empty label continues the line before."""

    label: str
    text: str

    def __str__(self) -> str:
        return f"{self.label:<{LABEL}} {self.text}"


def result_lines(m: Metrics, detail: bool = False) -> list[Line]:
    """Return the result of a run, its speed and where the time went; with `detail`, rank by rank."""
    t = m.time_s
    parts = f"training {t.train:.1f}, start-up {t.startup:.1f}, evaluation {t.eval:.1f}, shutdown {t.shutdown:.1f}"
    lines = [
        Line(m.final.eval_metric[:LABEL], f"{number_format.metric(m.final.eval)}  ({_best(m)}{_target(m)})"),
        Line("speed", _speed(m)),
        Line("time", f"{t.total:.1f} s: {parts}"),
    ]
    if not detail:
        return lines + ([Line("", _mean_breakdown(m))] if m.breakdown else [])
    if m.throughput.steady is not None and m.world_size > 1:
        lines.append(Line("steady", _steady(m.throughput.steady)))
    lost = missing(m.faults)
    for rank, spent in enumerate(m.breakdown):
        lines.append(Line(f"rank {rank}", f"{'lost:  ' if rank in lost else ''}{_breakdown(spent)}"))
    return lines


def error_lines(m: Metrics) -> list[Line]:
    """Return the errors of the user's program. They come before all figures, which an erroneous program produced."""
    return [Line("error", text) for text in raised(m.faults)]


def trouble_lines(m: Metrics) -> list[Line]:
    """Return faults and notes, each once."""
    lines = []
    for fault in m.faults:
        who = "" if fault.rank is None else f"rank {fault.rank}, "
        text = f"{who}{fault.seconds:.1f} s after launch: {fault.text}; {fault.action}"
        lines.append(Line("fault", text.rstrip("; ")))
    return lines + [Line("note", text) for text in m.warnings if text not in notes(m.faults)]  # which are faults


def shortened(lines: Sequence[Line], most: int = TROUBLE) -> list[Line]:
    """Return at most `most` lines; the last one gives the number of lines left out."""
    if len(lines) <= most:
        return list(lines)
    rest = len(lines) - most + 1
    return [*lines[: most - 1], Line(lines[most - 1].label, f"{rest} more such lines are in training.log")]


def row_line(m: Metrics) -> str:
    """Return a run of a sweep on one line."""
    name = f"{m.model} {m.mode}" + (f" ×{m.world_size}" if m.world_size > 1 else "") + f" seed {m.seed}"
    end = f"{m.final.eval_metric} {number_format.metric(m.final.eval)}" if m.status == "ok" else m.status
    text = f"{name}  {end}  {_rate(m.throughput.samples_per_s)} samples/s  {m.time_s.total:.1f} s"
    return text + ("  (disturbed by other programs)" if disturbance(m) else "")


def disturbance(m: Metrics) -> str | None:
    """Return the note that other programs took the run's cores, or None."""
    return next((text for text in m.warnings if text.startswith(BUSY)), None)


def sweep_table(cells: Sequence[Cell]) -> str:
    """Write a row for each cell: means over its seeds, with standard deviations of the result."""
    headers = ["cell", "seeds", "status", "result", "samples/s", "vs alone", "seconds"]
    align = ("left", "right", "left", *["right"] * 4)
    return str(tabulate([_row(cell) for cell in cells], headers, disable_numparse=True, colalign=align))


def sweep_notes(cells: Sequence[Cell]) -> list[Line]:
    """Return notes on the cells of a sweep, each once: first the cells disturbed by other programs, then the rest."""
    lines = []
    for cell in cells:
        disturbed = [(run.metrics.seed, text) for run in cell.runs if (text := disturbance(run.metrics))]
        if disturbed:
            seeds = f"seed{'s' * (len(disturbed) > 1)} {', '.join(str(seed) for seed, _ in disturbed)}"
            what = disturbed[0][1].partition(" during ")[0]
            lines.append(Line("disturbed", f"{cell.name}, {seeds}: {what}; its speeds read too low"))
    others = [text for cell in cells for run in cell.runs for text in run.metrics.warnings if not text.startswith(BUSY)]
    return lines + [Line("note", text) for text in dict.fromkeys(others)]


def _row(cell: Cell) -> list[str]:
    errors = any(raised(run.metrics.faults) for run in cell.runs)
    spread = "" if cell.eval.sd is None else f" ± {number_format.metric(cell.eval.sd, cell.eval.mean)}"
    return [
        cell.name,
        str(len({run.metrics.seed for run in cell.runs})),
        f"{cell.status}, a rank failed" if errors else cell.status,
        f"{number_format.metric(cell.eval.mean)}{spread}",
        _rate(cell.speed.mean),
        _number(cell.sample(lambda m: m.throughput.efficiency).mean, ".2f"),
        _number(cell.total(lambda m: m.time_s.total if m.timing else None), ".1f"),
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _rate(samples_per_s: float | None) -> str:
    return "-" if samples_per_s is None else number_format.rate(samples_per_s)


def _best(m: Metrics) -> str:
    if m.final.best is None or m.final.best_epoch is None or m.final.best == m.final.eval:
        return ""
    return f"best {number_format.metric(m.final.best)} in epoch {m.final.best_epoch + 1}, "  # as progress counts them


def _target(m: Metrics) -> str:
    if m.target.value is None:
        return "no target"
    if m.target.reached and m.target.samples is not None:
        seconds = "" if m.target.seconds is None else f", {m.target.seconds:.1f} s"
        return f"target {m.target.value:g} reached after {m.target.samples:,} samples{seconds}"
    return f"target {m.target.value:g} not reached"


def _speed(m: Metrics) -> str:
    if m.throughput.samples_per_s is None:
        return "-"
    text, efficiency = f"{_rate(m.throughput.samples_per_s)} samples/s", m.throughput.efficiency
    if m.world_size > 1:
        ranks = f" ({' + '.join(_rate(speed) for speed in m.throughput.per_rank)})"
        bound = "" if efficiency is None else f", {efficiency:.0%} of what the ranks could do alone"
        short = len(text) + len(ranks) + len(bound) < WIDTH - LABEL
        text += (ranks if short else f" of {m.world_size} ranks") + bound
    return text


def _steady(steady: Steady) -> str:
    """Return the steady speed: without the beginning, the end and evaluation."""
    apart = " / ".join("-" if share is None else f"{share:.1%}" for share in steady.waiting_or_communicating)
    return (
        f"{_rate(steady.samples_per_s)} samples/s over {steady.seconds:.1f} s, {steady.efficiency:.1%} of what the ranks do "
        f"alone ({_rate(steady.bound)}); waiting or communicating {apart}"
    )


def _mean_breakdown(m: Metrics) -> str:
    """Return where the ranks' time went on average, the largest part first, and which rank waited most."""
    means = {name: fmean(getattr(spent, name) for spent in m.breakdown) for name in PARTS}
    shown = sorted((name for name in PARTS if means[name] >= 0.005), key=lambda name: -means[name])[:MOST]
    text = ", ".join(f"{NAMES.get(name, name)} {means[name]:.0%}" for name in shown)
    waits = [spent.wait for spent in m.breakdown]
    if len(waits) > 1 and max(waits) - min(waits) >= 0.05:
        text += f"; rank {waits.index(max(waits))} waiting {max(waits):.0%}"
    return text


def _breakdown(spent: RankTime) -> str:
    shares = [(name, getattr(spent, name)) for name in PARTS]
    return ", ".join(f"{NAMES.get(name, name)} {share:.0%}" for name, share in shares if share >= 0.005)

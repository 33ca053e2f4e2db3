"""The questions that a reader comes with, answered in sentences computed from the runs, one for each workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

from bench.base import figures
from bench.base.figures import plural
from bench.base.style import CATEGORIES
from bench.report.blocks import Block, Bullets, Heading, Text, plain, told
from bench.report.compare import Rival, gap, ideal, rivals
from bench.report.differences import Quality, qualities
from bench.report.page import Page, listed, more, number
from bench.report.reaching import reach
from bench.report.sections.environment import crowding
from bench.results.cells import Cell, Workload, solo_of
from bench.results.schema import Metrics, RankTime

WORKLOADS = 8
"""Answered one by one."""


def section(page: Page) -> list[Block]:
    """A question, an answer over all, and one for each workload."""
    if not any(cell.one_each for cell in page.cells):
        return []
    questions: dict[str, Callable[[Page, Workload, list[Cell]], str]] = {
        "Does it converge like one device?": _converges,
        "Is a second device worth it?": _worth,
        "Where did the time go?": _time,
        "Which rank waited?": _waited,
        "When did the anchor move?": _anchor,
    }
    blocks: list[Block] = [Heading("In two minutes"), *told(Text(_all_qualities(page)))]
    shown = list(page.workloads.items())[:WORKLOADS]
    for question, answer in questions.items():
        said = [(page.title(workload), answer(page, workload, found)) for workload, found in shown]
        items = tuple(f"**{plain(title)}**: {text}" for title, text in said if text)
        blocks += told(Text(f"**{question}**"), Bullets(items)) if items else []
        if items and answer is _worth:
            blocks += told(Text(crowding([run.metrics for cell in page.cells for run in cell.runs])))
    return [*blocks, *told(more(len(page.workloads) - WORKLOADS, "workload", "see the sections below"))]


def _all_qualities(page: Page) -> str:
    rows = [row for found in page.workloads.values() for row in qualities(page, found, solo_of(found))]
    counts = Counter(row.verdict for row in rows)
    if not rows:
        return ""
    said = [
        f"**{counts['within']} are as good** (95 % interval within the margin)",
        f"**{counts['worse']} worse** by more than the margin",
        f"{counts['open']} open, for want of seeds",
    ]
    said += (
        [f"{counts['no margin']} without a margin, for no baseline is of their workload"] if counts["no margin"] else []
    )
    return f"Of {plural(len(rows), 'cell')} that can be held against solo: {listed(said)}."


def _converges(page: Page, workload: Workload, found: list[Cell]) -> str:
    solo = solo_of(found)
    metric = plain(found[0].about.final.eval_metric)
    if solo is None or solo.eval.mean is None:
        ends = [
            f"{plain(c.label)} ends at {metric} {figures.metric(c.eval.mean)}" for c in found if c.eval.mean is not None
        ]
        return f"no finished solo run to compare with. {listed(ends[:WORKLOADS])}." if ends else ""
    text = f"Solo ends at {metric} {figures.metric(solo.eval.mean)} (n={solo.eval.n})"
    rows = sorted(qualities(page, found, solo), key=lambda row: row.difference.value)
    if not rows:
        return f"{text}; nothing else finished."
    low, high = _end(rows[0], metric), _end(rows[-1], metric)
    text += f"; {len(rows)} other cells from {low} to {high}." if len(rows) > 1 else f"; 1 other cell: {low}."
    bad = [plain(row.cell.label) for row in rows if row.verdict == "worse"]
    if bad:
        text += f" Worse by more than the margin: {listed(bad)}."
    came = [reach(cell) for cell in found]
    return (
        f"{text} The target was reached by {sum(r.reached for r in came)} of {plural(sum(r.n for r in came), 'run')}."
    )


def _end(row: Quality, metric: str) -> str:
    return f"{gap(-row.difference.value, metric)} ({plain(row.cell.label)}, n={row.difference.n})"


def _worth(page: Page, workload: Workload, found: list[Cell]) -> str:
    """For each number of ranks the fastest and the slowest, and what of an added device arrives."""
    known = [r for r in rivals(found) if r.speedup is not None and r.cell.about.world_size > 1]
    parts = []
    for size in sorted({r.cell.about.world_size for r in known if not r.distorted}):
        group = sorted((r for r in known if r.cell.about.world_size == size and not r.distorted), key=_speedup)
        best, least = group[-1], group[0]
        text = f"{size} ranks make {_speedup(best):.2f} times solo's samples/s with {plain(best.cell.label)} "
        text += f"(n={best.cell.speed.n}), {_speedup(best) / size:.0%} of the ideal"
        if least is not best:
            text += (
                f"; the least is {_speedup(least):.2f} times, with {plain(least.cell.label)} (n={least.cell.speed.n})"
            )
        cores = page.cores(best.cell)
        text += f"; they are more than the {cores} cores" if cores is not None and cores < size else ""
        arrives = (_speedup(best) - 1) / (size - 1)
        text += (
            f". So each device added brings {arrives:.0%} of one" if arrives > 0 else ". So one device alone is faster"
        )
        parts.append(text)
    emulated = [r for r in known if r.cell.about.emulated_speeds]
    if emulated:
        best = max(emulated, key=lambda r: _speedup(r) / ideal(r))
        parts.append(
            f"of emulated unequal devices, {plain(best.cell.label)} makes most: {_speedup(best):.2f} times, "
            f"ideal is {ideal(best):g} (n={best.cell.speed.n})"
        )
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "." if parts else ""


def _speedup(rival: Rival) -> float:
    return rival.speedup or 0.0


def _time(page: Page, workload: Workload, found: list[Cell]) -> str:
    whole = [cell for cell in found if cell.about.world_size > 1 and _ranks(cell)]
    several = [cell for cell in whole if any(m.throughput.efficiency is not None for m in cell.one_each)]
    chosen = several or [cell for cell in found if _ranks(cell)]
    if not chosen:
        return ""
    means = {name: fmean(getattr(r, name) for c in chosen for r in _ranks(c)) for name in CATEGORIES}
    ordered = sorted(means.items(), key=lambda item: -item[1])
    shares = listed(f"{name} {share:.0%}" for name, share in ordered if share >= 0.01)
    runs = sum(len(cell.one_each) for cell in chosen)
    text = f"{shares} of the ranks' wall time, mean over {plural(len(chosen), 'cell')} ({plural(runs, 'run')})"
    text += " on more than one rank" if several else ""
    if len(several) > 1:
        lost = sorted(several, key=lambda cell: _lost(cell))
        text += f"; waiting and communication take least in {plain(lost[0].label)} ({_lost(lost[0]):.0%}) "
        text += f"and most in {plain(lost[-1].label)} ({_lost(lost[-1]):.0%})"
    hidden = len(whole) - len(several)
    if several and hidden:
        text += f"; left out: {plural(hidden, 'cell')} whose collectives hide in compute"
    return f"{text}."


def _ranks(cell: Cell) -> list[RankTime]:
    return [rank for m in cell.one_each for rank in m.breakdown]


def _lost(cell: Cell) -> float:
    return fmean(rank.wait + rank.comm for rank in _ranks(cell))


def _waited(page: Page, workload: Workload, found: list[Cell]) -> str:
    """The cell that waits most, rank by rank; and which rank it is in general."""
    waits = {cell.name: by_rank for cell in found if len(by_rank := _waiting(cell)) > 1}
    if not waits:
        return ""
    cells = {cell.name: cell for cell in found}
    worst = max(waits, key=lambda name: max(waits[name]))
    most = [by_rank.index(max(by_rank)) for by_rank in waits.values()]
    shares = listed(f"rank {rank} {share:.0%}" for rank, share in enumerate(waits[worst][:8]))
    text = f"most in {plain(cells[worst].label)}: {shares} of its time (n={len(cells[worst].one_each)})"
    tally = Counter(most)
    text += "; the one that waits most is " + listed(
        f"rank {rank} in {plural(count, 'cell')}"
        for rank, count in sorted(tally.items(), key=lambda i: (-i[1], i[0]))[:4]
    )
    rows = page.idle.get(worst, [])
    blamed = max((row for row in rows if row.late), key=lambda row: row.total, default=None)
    if blamed is not None:
        late = max(blamed.late, key=lambda by: blamed.late[by])
        text += f". There rank {blamed.rank} stood {blamed.late[late]:.0%} of its time in collectives until rank {late} came"
    return f"{text}."


def _waiting(cell: Cell) -> list[float]:
    """By rank, mean over the finished runs."""
    runs = [m.breakdown for m in cell.one_each if len(m.breakdown) == cell.about.world_size]
    return [fmean(ranks[rank].wait for ranks in runs) for rank in range(cell.about.world_size)] if runs else []


def _anchor(page: Page, workload: Workload, found: list[Cell]) -> str:
    """Of the cells whose schedule moved, first finished seed: from where to where, how often and when."""
    moved = [(cell, said) for cell in found if cell.one_each and (said := _moves(cell.one_each[0]))]
    if not moved:
        planned = sum(any(m.elche for m in cell.one_each) for cell in found)
        return f"in none of {plural(planned, 'cell')} with a schedule." if planned else ""
    shown = [f"{plain(cell.label)} {said}" for cell, said in moved[:3]]
    text = "; ".join(shown) + (f"; and in {plural(len(moved) - 3, 'more cell')}" if len(moved) > 3 else "")
    return f"{text}."


def _moves(m: Metrics) -> str:
    plans = m.elche.plans if m.elche else []
    anchors = [(p.seconds, p.anchor) for p in plans]
    steps = [now for before, now in pairwise(anchors) if before[1] != now[1]]
    if not steps:
        return ""
    times = f"{plural(len(steps), 'move')}, the first after {number(steps[0][0])} s"
    times += f", the last after {number(steps[-1][0])} s" if len(steps) > 1 else ""
    return f"{anchors[0][1]} → {anchors[-1][1]} ({times} of {number(m.time_s.total)} s, seed {m.seed})"

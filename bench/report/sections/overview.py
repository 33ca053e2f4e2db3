"""Common questions, answered for each workload in sentences that are computed from the runs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from statistics import fmean

from bench.base import number_format
from bench.base.number_format import plural
from bench.base.style import CATEGORIES
from bench.report.blocks import Block, Bullets, Heading, Text, nonempty, plain
from bench.report.measures.compare import Rival, gap, in_points, rivals
from bench.report.measures.differences import Quality, qualities
from bench.report.measures.time_to_target import reach
from bench.report.measures.timing import Timing
from bench.report.page import Page, listed, more, number
from bench.report.sections.environment import crowding
from bench.results.cells import Cell, solo_of
from bench.results.schema import Metrics, RankTime
from bench.validate.verdicts.verdict import FAILED, Name

WORKLOADS = 8
"""Most workloads that are answered."""


def section(page: Page) -> list[Block]:
    """Return the verdicts on quality of all cells in one sentence, and each question with its answers, one for each
    workload."""
    if not any(cell.one_each for cell in page.cells):
        return []
    blocks: list[Block] = [Heading("Short answers"), Text(_all_qualities(page))]
    for question, answer in QUESTIONS.items():
        answers = [(page.title(w), answer(page, cells)) for w, cells in list(page.workloads.items())[:WORKLOADS]]
        items = tuple(f"**{plain(title)}**: {text}" for title, text in answers if text)
        blocks += [Text(f"**{question}**"), Bullets(items)] if items else []
        if items and answer is _worth:
            blocks.append(Text(crowding(page.runs)))
    return nonempty(blocks, more(len(page.workloads) - WORKLOADS, "workload", "see the sections below"))


MEANINGS: dict[Name, str] = {
    "PASS": "are as good as their baseline",
    "FAIL": "worse",
    "INCONCLUSIVE": "not shown yet",
    "SUSPICIOUS": "too good to believe",
    "XFAIL": "worse, as expected",
    "XPASS": "as good, though expected to be worse",
}
"""Verdict on quality -> its words, in the order of the sentence."""


def _all_qualities(page: Page) -> str:
    rows = (row for cells in page.workloads.values() for row in qualities(page, cells))
    counts = Counter(row.verdict for row in rows if not row.cell.is_solo)
    judged = [f"**{counts[name]} {words}** ({name})" for name, words in MEANINGS.items() if counts[name]]
    if not judged:
        return ""
    whole = sum(not cell.is_solo for cell in page.cells)
    if rest := whole - sum(counts[name] for name in MEANINGS):
        judged.append(f"{rest} without a verdict on quality")
    return f"Of {plural(whole, 'cell')} beside solo: {listed(judged)}."


def _converges(page: Page, cells: list[Cell]) -> str:
    solo = solo_of(cells)
    metric = plain(cells[0].about.final.eval_metric)
    if solo is None or solo.eval.mean is None:
        finished = [cell for cell in cells if cell.eval.mean is not None]
        ends = [f"{plain(c.label)} ends at {metric} {number_format.metric(c.eval.mean)}" for c in finished[:WORKLOADS]]
        return f"no finished solo run to compare with. {listed(ends)}." if ends else ""
    text = f"Solo ends at {metric} {number_format.metric(solo.eval.mean)} (n={solo.eval.n})"
    rows = sorted(qualities(page, cells, own=False), key=lambda row: row.difference.value)
    if not rows:
        return f"{text}; nothing else finished."
    low, high = _end(rows[0], metric), _end(rows[-1], metric)
    text += f"; {len(rows)} other cells from {low} to {high}." if len(rows) > 1 else f"; 1 other cell: {low}."
    failed = {row.cell.name for row in qualities(page, cells) if row.verdict in FAILED}
    if worse := [plain(row.cell.label) for row in rows if row.cell.name in failed]:
        text += f" Worse than the baseline: {listed(worse)}."
    reaches = [reach(cell) for cell in cells]
    reached = f"{sum(r.reached for r in reaches)} of {plural(sum(r.n for r in reaches), 'run')}"
    untargeted = all(row.cell.about.target.value is None or not row.n for row in reaches)
    return text if untargeted else f"{text} The target was reached by {reached}."


def _end(row: Quality, metric: str) -> str:
    shown = gap(-row.difference.value, metric, row.cell.about.final.higher_is_better, in_points(row.cell))
    return f"{shown} ({plain(row.cell.label)}, n={row.difference.n})"


def _worth(page: Page, cells: list[Cell]) -> str:
    """Return which way of training is fastest and which is slowest on each number of ranks, and what share of its speed
    an added device contributes."""
    known = [r for r in rivals(cells) if r.speedup is not None and r.cell.about.world_size > 1]
    groups: dict[int, list[Rival]] = defaultdict(list)
    for rival in sorted(known, key=_speedup):
        if not rival.distorted:
            groups[rival.cell.about.world_size].append(rival)
    parts = [_fastest(page, size, group) for size, group in sorted(groups.items())]
    if emulated := [r for r in known if r.cell.about.emulated_speeds]:
        best = max(emulated, key=lambda r: _speedup(r) / r.ideal)
        parts.append(
            f"of emulated unequal devices, {plain(best.cell.label)} makes most: {_speedup(best):.2f} times, "
            f"ideal is {best.ideal:g} (n={Timing.of(best.cell).speed.n})"
        )
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "." if parts else ""


def _fastest(page: Page, size: int, group: list[Rival]) -> str:
    least, best = group[0], group[-1]
    text = f"{size} ranks make {_speedup(best):.2f} times solo's samples/s with {plain(best.cell.label)} "
    text += f"(n={Timing.of(best.cell).speed.n}), {_speedup(best) / size:.0%} of the ideal"
    if least is not best:
        seeds = Timing.of(least.cell).speed.n
        text += f"; the least is {_speedup(least):.2f} times, with {plain(least.cell.label)} (n={seeds})"
    cores = page.cores(best.cell)
    text += f"; they are more than the {cores} cores" if cores is not None and cores < size else ""
    arrives = (_speedup(best) - 1) / (size - 1)
    if arrives <= 0:
        return f"{text}. So one device alone is faster"
    return f"{text}. So each device added brings {'all' if arrives >= 1 else f'{arrives:.0%}'} of one"


def _speedup(rival: Rival) -> float:
    return rival.speedup or 0.0


def _time(page: Page, cells: list[Cell]) -> str:
    whole = [cell for cell in cells if cell.about.world_size > 1 and _ranks(cell)]
    several = [cell for cell in whole if any(m.throughput.efficiency is not None for m in cell.one_each)]
    chosen = several or [cell for cell in cells if _ranks(cell)]
    if not chosen:
        return ""
    means = {name: fmean(getattr(r, name) for c in chosen for r in _ranks(c)) for name in CATEGORIES}
    ordered = sorted(means.items(), key=lambda item: -item[1])
    shares = listed(f"{name} {share:.0%}" for name, share in ordered if share >= 0.01)
    runs = sum(len(cell.timed) for cell in chosen)
    text = f"{shares} of the ranks' wall time, mean over {plural(len(chosen), 'cell')} ({plural(runs, 'run')})"
    text += " on more than one rank" if several else ""
    if len(several) > 1:
        least, *_, most = sorted(several, key=_lost)
        text += f"; waiting and communication take least in {plain(least.label)} ({_lost(least):.0%}) "
        text += f"and most in {plain(most.label)} ({_lost(most):.0%})"
    if several and (hidden := len(whole) - len(several)):
        text += f"; left out: {plural(hidden, 'cell')} whose collectives hide in compute"
    return f"{text}."


def _ranks(cell: Cell) -> list[RankTime]:
    return [rank for m in cell.timed for rank in m.breakdown]


def _lost(cell: Cell) -> float:
    return fmean(rank.wait + rank.comm for rank in _ranks(cell))


def _waited(page: Page, cells: list[Cell]) -> str:
    """Return which cell has the rank that waits longest, with the waiting of all its ranks, and which rank waits
    longest in most cells."""
    waits = [(cell, by_rank) for cell in cells if len(by_rank := _waiting(cell)) > 1]
    if not waits:
        return ""
    worst, shares = max(waits, key=lambda wait: max(wait[1]))
    listing = listed(f"rank {rank} {share:.0%}" for rank, share in enumerate(shares[:8]))
    text = f"most in {plain(worst.label)}: {listing} of its time (n={len(worst.timed)})"
    most = Counter(by_rank.index(max(by_rank)) for _, by_rank in waits)
    ordered = sorted(most.items(), key=lambda item: (-item[1], item[0]))[:4]
    text += "; the one that waits most is " + listed(
        f"rank {rank} in {plural(count, 'cell')}" for rank, count in ordered
    )
    rows = [row for row in page.idle.get(worst.name, []) if row.late]
    if rows:
        row = max(rows, key=lambda row: row.total)
        late = max(row.late, key=lambda by: row.late[by])
        text += f". There rank {row.rank} stood {row.late[late]:.0%} of its time in collectives until rank {late} came"
    return f"{text}."


def _waiting(cell: Cell) -> list[float]:
    """Return the share of time that each rank waited, averaged over the timed runs that have all ranks."""
    runs = [m.breakdown for m in cell.timed if len(m.breakdown) == cell.about.world_size]
    return [fmean(ranks[rank].wait for ranks in runs) for rank in range(cell.about.world_size)] if runs else []


def _anchor(page: Page, cells: list[Cell]) -> str:
    """Return how the anchors changed, how often and when, of the first finished seed of each cell."""
    moved = [f"{plain(cell.label)} {moves}" for cell in cells if cell.one_each and (moves := _moves(cell.one_each[0]))]
    if not moved:
        planned = sum(any(m.elche for m in cell.one_each) for cell in cells)
        return f"in none of {plural(planned, 'cell')} with a schedule." if planned else ""
    return "; ".join(moved[:3]) + (f"; and in {plural(len(moved) - 3, 'more cell')}" if len(moved) > 3 else "") + "."


def _moves(m: Metrics) -> str:
    anchors = [(p.seconds, p.anchor) for p in m.elche.plans] if m.elche else []
    steps = [now for before, now in pairwise(anchors) if before[1] != now[1]]
    if not steps:
        return ""
    times = f"{plural(len(steps), 'move')}, the first after {number(steps[0][0])} s"
    times += f", the last after {number(steps[-1][0])} s" if len(steps) > 1 else ""
    whole = f" of {number(m.time_s.total)} s" if m.resumed is None else ""  # else that is the time of the rest
    return f"{anchors[0][1]} → {anchors[-1][1]} ({times}{whole}, seed {m.seed})"


QUESTIONS: dict[str, Callable[[Page, list[Cell]], str]] = {
    "Does it converge like one device?": _converges,
    "How fast are several devices?": _worth,
    "Where did the time go?": _time,
    "Which rank waited?": _waited,
    "When did the anchor move?": _anchor,
}

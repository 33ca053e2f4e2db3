"""The report of a comparison: page one on the differences, the changes by cell, and a description of both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.base.number_format import plural
from bench.base.style import brief, styled
from bench.base.usage import writing
from bench.base.writing import write_text
from bench.report import html, markdown
from bench.report.blocks import Block, Heading, LeadText, TableBlock, Text, Tile, Tiles, nonempty, plain
from bench.report.cell_changes import CellMove, Side, Trend, middle, moves
from bench.report.measures.compare import in_points
from bench.report.measures.differences import MeanDifference, factor
from bench.report.page import NONE, Page, listed, more, table
from bench.report.page_one.plane import clipped, limits, ticks
from bench.report.sections import changes
from bench.report.sections.changes import arrivals

ROWS, NAMED, DRAWN, FOLDED = 8, 2, 12, 100
"""Most cells in the table of page one, in a sentence, in the picture, and in the summary of a CI step."""
WORDS: dict[Trend, str] = {
    "worse": "worse",
    "otherwise": "other settings",
    "better": "better",
    "open": "too few seeds to tell",
    "same": "no change shown",
}
ORIGINS = ("commit", "machine", "torch", "python", "platform")


def write_comparison(before: Side, now: Side, out: Path) -> tuple[Path, str]:
    """Write `report.md`, `report.html` and figures into `out`; return the path of the first, and the summary of a CI step.
    Raises ValueError if `out` cannot be written, OSError if there is no room."""
    cells = moves(before, now)
    with writing(f"the comparison to {out}"):
        out.mkdir(parents=True, exist_ok=True)
        page = Page(Path(now.name), out, now.cells, (), (), previous=before.cells)
        with styled():
            blocks = [*front(page, before, now, cells), *changes.section(page), *_sides(before, now)]
        write_text(out / "report.md", markdown.render(blocks))
        write_text(out / "report.html", html.render(blocks, out, "Comparison"))
    return out / "report.md", step_summary(before, now, cells)


def front(page: Page, before: Side, now: Side, cells: Sequence[CellMove]) -> list[Block]:
    """Return page one: the answer, four figures, a picture, and the most important cells."""
    shown = table(map(row, cells[:ROWS]), left=2)
    return nonempty(
        Heading(f"{plain(before.name)} → {plain(now.name)}", 1),
        LeadText(sentence(cells)),
        _alone(before, now, len(cells)),
        _warning(before, now),
        Tiles(tiles(cells)) if cells else None,
        _picture(page, cells[:DRAWN]),
        shown,
        more(len(cells) - ROWS, "cell", "*What changed* and its data have them all"),
        Text(_scope(cells)),
    )


def sentence(cells: Sequence[CellMove]) -> str:
    """Return the answer in one or two sentences."""
    if not cells:
        return "**Nothing to compare**: no cell is on both sides."
    counts = Counter(move.trend for move in cells)
    parts = []
    for trend, mark in (
        ("worse", "**Worse in {}**"),
        ("better", "**Better in {}**"),
        ("otherwise", "**Trained with other settings in {}**"),
    ):
        if kind := [move for move in cells if move.trend == trend]:
            named = [f"{plain(move.name)}{_words(move)}" for move in kind[:NAMED]]
            rest = [plural(len(kind) - NAMED, "other")] if len(kind) > NAMED else []
            share = f"{len(kind)} of {plural(len(cells), 'cell')}"
            parts.append(f"{mark.format(share)}: {listed([*named, *rest])}.")
    if counts["same"]:
        same = plural(counts["same"], "cell")
        parts.append(f"No change is shown in the other {same}." if parts else f"**No change is shown** in {same}.")
    if counts["open"]:
        parts.append(f"{plural(counts['open'], 'cell')} had too few seeds to tell a change from chance.")
    return " ".join(parts)


def _alone(before: Side, now: Side, common: int) -> Text | None:
    """Return a line on the cells of one side that are not compared; None if there are none."""
    new, gone = (len(side.cells) - common for side in (now, before))
    lines = [f"{plural(count, 'cell')} only in {side.name}" for count, side in ((gone, before), (new, now)) if count]
    return Text(f"Not compared: {plain('; '.join(lines))}.") if lines and common else None


def _words(move: CellMove) -> str:
    names = move.losses or move.gains
    metric = move.pair.now.about.final.eval_metric
    shown = {
        "status": lambda: f"{move.pair.before.status} → {move.pair.now.status}",
        "target": lambda: f"target reached by {arrivals(move.pair)} seeds",
        "result": lambda: f"{plain(metric)} {_points(move)}",
        "samples/s": lambda: f"samples/s {_factor(move.speed)}",
        "time to target": lambda: f"time to target {_factor(move.time)}",
    }
    words = [shown[name]() for name in names]
    words += [f"other {listed([f'`{name}`' for name in move.pair.otherwise[:NAMED]])}"] if move.pair.otherwise else []
    return f" ({'; '.join(words)})" if words else ""


def tiles(cells: Sequence[CellMove]) -> tuple[Tile, ...]:
    """Return four figures over all cells: how many are worse, the change of speed, the change of the time to the
    target, and how many have the same bits."""
    counts = Counter(move.trend for move in cells)
    rest = ", ".join(f"{WORDS[trend]}: {counts[trend]}" for trend in WORDS if trend != "worse" and counts[trend])
    timed = [move for move in cells if move.pair.timed]
    shown = timed or [move for move in cells if move.pair.one_clock]
    bits = sum(move.pair.same_bits for move in cells)
    return (
        Tile("cells worse", f"{counts['worse']} of {len(cells)}", rest),
        _factors("samples/s, now ÷ before", [move.speed for move in shown], not timed),
        _factors("time to target, now ÷ before", [move.time for move in shown], not timed),
        Tile("bit-identical cells", f"{bits} of {len(cells)}", "every seed ended with the same parameters"),
    )


def _factors(label: str, moved: Sequence[MeanDifference | None], dim: bool) -> Tile:
    known = [move.value for move in moved if move is not None]
    mean = middle(known)
    if mean is None:
        return Tile(label, NONE, "not known of any cell")
    low, high = factor(min(known)), factor(max(known))
    return Tile(
        label, f"{mean:.2f} ×", f"geometric mean of {plural(len(known), 'cell')}, from {low:.2f} to {high:.2f}", dim
    )


def row(move: CellMove) -> dict[str, str]:
    """Return the changes of one cell, with 95 % intervals."""
    return {
        "cell": plain(move.name),
        "change": WORDS[move.trend],
        "final metric": _points(move),
        "samples/s": _factor(move.speed),
        "time to target": arrivals(move.pair) if len(set(move.pair.reached)) > 1 else _factor(move.time),
        "seeds": f"{len(move.pair.before.one_each)}, {len(move.pair.now.one_each)}",
    }


def _points(move: CellMove) -> str:
    return _interval(
        move.pair.growth, move.pair.growth_words, " pt" if in_points(move.pair.before, move.pair.now) else ""
    )


def _factor(change: MeanDifference | None) -> str:
    return _interval(change, lambda value: f"{factor(value):.2f} ×", " ×")


def _interval(change: MeanDifference | None, show: Callable[[float], str], unit: str) -> str:
    if change is None:
        return NONE
    if change.low is None or change.high is None:
        return show(change.value)
    low, high = (show(end).removesuffix(unit) for end in (change.low, change.high))
    return f"{show(change.value)} ({low} to {high})"


def _scope(cells: Sequence[CellMove]) -> str:
    tests = sum(move is not None and move.low is not None for m in cells for move in (m.quality, m.speed, m.time))
    return (
        "A cell is one model, trained in one mode on so many devices, with all its seeds. In brackets: 95 % intervals, "
        "Student's t over seeds. Final metric: now − before, pt: percentage points. ×: now ÷ before. If "
        f"nothing had changed, chance would show a change in about {0.05 * tests:.1f} of {plural(tests, 'interval')}."
    )


def _picture(page: Page, cells: Sequence[CellMove]) -> Block | None:
    """Draw the change of result and speed of each cell with its interval, and the line of no change."""
    drawn = [move for move in cells if move.quality is not None or move.speed is not None]
    if not drawn:
        return None
    figure = Figure(figsize=(10.5, 0.9 + 0.3 * len(drawn)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    metrics = sorted({move.pair.now.about.final.eval_metric for move in drawn})
    points = all(in_points(move.pair.before, move.pair.now) for move in drawn)
    for place, move in enumerate(reversed(drawn)):
        style = page.styles[move.pair.now.about.mode]
        _whisker(left, place, move.quality, style, lambda value: (100 if points else 1) * value)
        _whisker(right, place, move.speed, style, lambda value: clipped(factor(value)))
    left.set_yticks(range(len(drawn)), [brief(move.name) for move in reversed(drawn)])
    left.set_ylim(-0.7, len(drawn) - 0.3)
    if not any(move.pair.now.about.final.higher_is_better for move in drawn):  # better is right
        left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{-value + 0.0:g}"))
    left.set_xlabel(brief(f"{listed(metrics)}{', points' if points else ''}, right is better"))
    right.set_xlabel("samples/s, now ÷ before")
    right.tick_params(labelleft=True)  # a narrow page shows it below the other
    for axes, none in ((left, 0.0), (right, 1.0)):
        axes.axvline(none, color="#666666", lw=1)
        axes.grid(False, axis="y")
    right.set_xscale("log")
    right.set_xlim(limits([1.0, *right.get_xlim()], logarithmic=True))
    right.set_xticks(shown := ticks(*right.get_xlim()), [f"{tick:g}" for tick in shown])
    right.set_xticks([], minor=True)
    cells_shown = plural(len(drawn), "cell")
    alt = f"Change of final metric and speed of {cells_shown} with 95 % intervals; the grey lines mark no change"
    return page.figure(figure, "comparison", [_datum(move) for move in drawn], "", alt)


def _whisker(
    axes: Axes, place: int, change: MeanDifference | None, style: tuple[str, str], scale: Callable[[float], float]
) -> None:
    if change is None:
        return
    axes.plot([scale(change.value)], [place], style[1], color=style[0], ms=5)
    if change.low is not None and change.high is not None:
        axes.plot([scale(change.low), scale(change.high)], [place, place], color=style[0], lw=1.2, alpha=0.6)


def _datum(move: CellMove) -> dict[str, Any]:
    about = {"cell": move.name, "change": move.trend}
    return {**about, **_ends("result", move.quality), **_ends("log speed", move.speed)}


def _ends(name: str, change: MeanDifference | None) -> dict[str, float | None]:
    parts = ("value", "low", "high")
    return {f"{name} {part}": None if change is None else getattr(change, part) for part in parts}


def _sides(before: Side, now: Side) -> list[Block]:
    """Return a table of the origin of both sides: commit, machine, versions and numbers of runs."""
    rows = []
    for key in ORIGINS:
        old, new = (", ".join(side.values(key)) or NONE for side in (before, now))
        rows.append(
            {"setting": key, "before": plain(old), "now": plain(new), "equal": "yes" if old == new else "**no**"}
        )
    runs = [
        f"{sum(len(cell.runs) for cell in side.cells)} of {plural(len(side.cells), 'cell')}" for side in (before, now)
    ]
    rows.append({"setting": "runs", "before": runs[0], "now": runs[1], "equal": ""})
    return nonempty(Heading("The two sides"), _warning(before, now), TableBlock(tuple(rows), 4))


def _warning(before: Side, now: Side) -> Text | None:
    if before.values("machine") == now.values("machine"):
        return None
    return Text("**The machines differ**: speeds say nothing of a change of the code.")


def step_summary(before: Side, now: Side, cells: Sequence[CellMove]) -> str:
    """Return Markdown for the summary of a CI step: at most thirty visible lines, and a folded table."""
    head = nonempty(
        Heading(f"{plain(before.name)} → {plain(now.name)}"),
        LeadText(sentence(cells)),
        _alone(before, now, len(cells)),
        _warning(before, now),
        Tiles(tiles(cells)) if cells else None,
    )
    text = markdown.render(head)
    if not cells:
        return text
    rows = nonempty(table(map(row, cells[:FOLDED]), left=2), more(len(cells) - FOLDED, "cell", "see the report"))
    body = markdown.render([*rows, Text(_scope(cells))])
    return f"{text}\n<details><summary>{plural(len(cells), 'cell')}</summary>\n\n{body}\n</details>\n"

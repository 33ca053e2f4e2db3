"""Strong and weak scaling on page one: the recommendation for each series, a figure, and a table of all ways of
training by number of devices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.base.number_format import plural
from bench.base.style import brief
from bench.report.blocks import BADGE, Block, Facts, LeadText, Picture, Text, Verdicts, nonempty, plain
from bench.report.measures.compare import Rival, legend, rivals
from bench.report.page import NONE, Page, listed, more, percent
from bench.report.page_one.answer import Option, options_of
from bench.report.page_one.scaling_advice import answers, lead, taken
from bench.report.page_one.scaling_series import (
    SHOWN,
    ScalingSeries,
    dashes,
    first,
    outside,
    reachable,
    spanned,
    way_of,
)
from bench.report.page_one.scaling_words import Studied, facts, known, speed, title
from bench.report.page_one.words import NAMES, RECOMMENDED, badges, difference, reason, standing, state
from bench.report.sections.speedup import CORE_LIMIT, draw_core_limit, mark_sizes

WIDE, NARROW = (4.4, 2.5), (2.85, 1.5)
"""Width and height of a plot in inches: with at most two series, and with more."""
LOWEST = "worst quality"
"""Heading of the column of the worst result and its number of devices."""
COLUMNS = 3
"""Most numbers of devices with a column: the largest ones. The table then has six columns."""


def blocks(page: Page, series: Sequence[ScalingSeries]) -> list[Block]:
    """Return the blocks on scaling, ordered by model; [] without series."""
    if not series:
        return []
    ordered, shown = first(series), studied(page, series)
    rest = more(len(series) - SHOWN, "series", "not shown")
    cells = list(dict.fromkeys(cell.name for each in ordered for cell in (each.solo, *each.cells)))
    trained = [cell for cell in page.cells if cell.name in cells]
    beside = _beside(page, series)
    questions = Facts(facts(page, shown, trained, beside), lines=True)
    return nonempty(
        LeadText(lead(page, shown)),
        answers(page, shown),
        _picture(page, shown),
        Text(_named(beside)),
        table(page, shown),
        Text(legend([option.rival for each in shown for option in each.options])),
        rest,
        questions,
    )


def studied(page: Page, series: Sequence[ScalingSeries]) -> list[Studied]:
    """Return the series of page one, each with its options ordered by way of training and number of devices."""
    return [Studied(each, sorted(_options(page, each), key=_place)) for each in first(series)]


def _beside(page: Page, series: Sequence[ScalingSeries]) -> list[Option]:
    """Return the options that belong to a workload of a series, but to no series themselves."""
    others = outside(page, series)
    compared = {
        workload: rivals(page.workloads[workload]) for workload in dict.fromkeys(cell.workload for cell in others)
    }
    chosen = {cell.name for cell in others}
    return [option for some in compared.values() for option in options_of(page, some) if option.cell.name in chosen]


def _named(beside: Sequence[Option]) -> str:
    """Return the sentence that lists the options in no series, each with its status and the reason of its verdict."""
    if not beside:
        return ""
    named = [f"{plain(option.cell.name)} ({_ended(option)})" for option in beside[:NAMES]]
    rest = [plural(len(beside) - NAMES, "other")] if len(beside) > NAMES else []
    return f"In no series: {listed([*named, *rest])}."


def _ended(option: Option) -> str:
    why = plain(reason(option))
    return f"{option.cell.status}: {why}" if why else option.cell.status


def _options(page: Page, series: ScalingSeries) -> list[Option]:
    return options_of(page, [Rival(cell, series.solo) for cell in (series.solo, *series.cells)])


def _place(option: Option) -> tuple[str, int]:
    return way_of(option.cell), option.cell.about.world_size


def table(page: Page, shown: Sequence[Studied]) -> Verdicts:
    """Return a row for each way of training in each series, failed ones first. Each number of devices has a column with
    the speed over one device's, the efficiency and the verdict."""
    sizes = sorted({size for series, _ in shown for size in series.sizes})[-COLUMNS:]
    cores = page.cores(shown[0].series.solo)
    rows: list[tuple[dict[int, Option], bool, dict[str, str]]] = []
    for studied in shown:
        series, options = studied
        best = taken(page, studied)
        for way, group in groupby(options, key=lambda option: way_of(option.cell)):
            sized = {option.cell.about.world_size: option for option in group}
            here = best is not None and way_of(best.cell) == way
            row = {
                "scaling": plain(title(series)),
                "way of training": f"**{RECOMMENDED}{plain(way)}**" if here else plain(way),
                **{_head(size, cores): _cell(sized.get(size), bool(page.verdicts)) for size in sizes},
                LOWEST: _lowest(min(sized.values(), key=_behind)),
            }
            rows.append((sized, here, row))
    rows.sort(key=lambda row: not _failed(row[0].values()))
    every = [option for _, options in shown for option in options]
    marked = tuple(place for place, (_, here, _) in enumerate(rows) if here)
    return Verdicts(tuple(row for *_, row in rows), left=2, badges=badges(every), marked=marked)


def _failed(options: Iterable[Option]) -> list[Option]:
    return [option for option in options if standing(option) == "FAIL"]


def _lowest(option: Option) -> str:
    text = difference(option)
    return text if text == NONE else f"{text} on {option.cell.about.world_size}"


def _behind(option: Option) -> float:
    return option.quality.difference.value if option.quality is not None else math.inf


def _head(size: int, cores: int | None) -> str:
    shared = (
        f" on {plural(cores, 'core')}: {percent(cores / size)} at most" if cores is not None and size > cores else ""
    )
    return f"{plural(size, 'device')}{shared}"


def _cell(option: Option | None, judged: bool) -> str:
    """Return the entry of a way of training and a number of devices: speed, efficiency and, if `judged`, the
    verdict."""
    if option is None or option.speed is None:
        return NONE
    if option.efficiency is None:
        text = "*timed elsewhere*"
    elif option.disturbed or option.speed.wide:
        text = "*disturbed*" if option.disturbed else "*unclear*"
    else:
        efficiency = "" if option.cell.about.world_size == 1 else f" ({percent(option.efficiency.value)})"
        text = f"{option.speed.value:.2f} ×{' †' * bool(option.cell.bereft)}{efficiency}"
    return f"{text}{BADGE}{state(option)}" if judged else text


def _picture(page: Page, shown: Sequence[Studied]) -> Picture | None:
    """Draw a plot for each series: speed over one device's by number of devices, with the ideal line and the limit of
    the cores. None if no speed is reliable."""
    drawn = [each for each in shown if any(known(option) for option in each.options)]
    if not drawn:
        return None
    wide, high = WIDE if len(drawn) <= len(WIDE) else NARROW
    figure = Figure(figsize=(wide * len(drawn), high), layout="constrained")
    for axes, (each, options) in zip(figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True):
        _plot(page, axes, each, [option for option in options if known(option)])
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), [brief(label) for label in handles], loc="outside right upper")
    data = [_datum(each, option) for each, options in shown for option in options]
    alt = f"Speed over one device's. Bars: 95 % intervals. Dashed: ideal{_bound(page, drawn)}"
    return page.figure(figure, "answer-scaling", data, "", alt)


def _bound(page: Page, drawn: Sequence[Studied]) -> str:
    """Return the end of the figure's description for series with more devices than cores; empty if there are none."""
    cores = [page.cores(each.solo) for each, _ in drawn]
    if not any(count is not None and count < each.sizes[-1] for count, (each, _) in zip(cores, drawn, strict=True)):
        return ""
    return ". Grey: more devices than cores, so the ideal is out of reach. Dotted: the most that cores allow"


def _plot(page: Page, axes: Axes, series: ScalingSeries, options: Sequence[Option]) -> None:
    sizes, cores = sorted({1, *series.sizes}), page.cores(series.solo)
    axes.plot([1, sizes[-1]], [1, sizes[-1]], color="#333333", lw=1.2, ls=(0, (4, 2)), label="ideal")
    ways = {way_of(option.cell): option.cell.about.mode for option in options}
    dash = dashes(ways)
    for way, mode in ways.items():
        colour, marker = page.styles[mode]
        mine = [option for option in options if way_of(option.cell) == way]
        x, y = [option.cell.about.world_size for option in mine], [speed(option) for option in mine]
        there = dict(zip(x, y, strict=True))
        line = spanned(x, sizes)
        axes.plot(
            line,
            [there.get(size, math.nan) for size in line],
            marker=marker,
            ls=dash[way],
            color=colour,
            ms=6,
            label=way,
        )
        for size, option in zip(x, mine, strict=True):
            if option.speed is not None and option.speed.low is not None and option.speed.high is not None:
                axes.plot([size, size], [option.speed.low, option.speed.high], "_-", color=colour, lw=1.0, ms=5)
    if cores is not None and cores < sizes[-1]:
        draw_core_limit(axes, *reachable(sizes[-1], cores), label=CORE_LIMIT)
    mark_sizes(axes, sizes)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("speed / one device's")
    axes.set_title(brief(title(series), 34), fontsize=8)


def _datum(series: ScalingSeries, option: Option) -> dict[str, Any]:
    speed = option.speed
    return {
        "scaling": series.kind,
        "model": series.workload.model,
        "batch": series.workload.batch_size,
        "mode": way_of(option.cell),
        "devices": option.cell.about.world_size,
        "speedup": None if speed is None else speed.value,
        "low": None if speed is None else speed.low,
        "high": None if speed is None else speed.high,
        "disturbed": option.disturbed,
    }

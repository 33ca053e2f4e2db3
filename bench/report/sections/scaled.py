"""Strong and weak scaling on page one: for each series a sentence and a table over numbers of devices, and one figure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.base.figures import plural
from bench.base.style import brief
from bench.report.answer import GRAVEST, Option, options_of
from bench.report.blocks import Block, LeadText, Picture, SmallText, Verdicts, nonempty, plain
from bench.report.compare import Rival
from bench.report.intervals import Interval
from bench.report.page import NONE, Page, listed, more, percent
from bench.report.page_words import UNMEASURED, difference, names, remedy, state
from bench.report.scaling_series import ScalingSeries

SERIES = 6
"""As many are shown."""
WIDE, NARROW = (4.4, 2.5), (2.85, 2.0)
"""Inches of the plot of a series: of one of two, of one of more."""
COLUMNS = 3
"""Numbers of devices that have a column, the largest: with the others, eight."""
Studied = tuple[ScalingSeries, list[Option]]


def blocks(page: Page, series: Sequence[ScalingSeries]) -> list[Block]:
    """Return what page one says of scaling, model by model."""
    if not series:
        return []
    ordered = sorted(series, key=lambda each: each.workload.model)[:SERIES]
    shown = [(each, sorted(_options(page, each), key=_place)) for each in ordered]
    leads = [LeadText(sentence(page, each, options)) for each, options in shown]
    rest = more(len(series) - SERIES, "series", "not shown")
    return nonempty(leads, SmallText(_shared(page, series)), _picture(page, shown), table(page, shown), rest)


def _options(page: Page, series: ScalingSeries) -> list[Option]:
    return options_of(page, [Rival(cell, series.solo) for cell in (series.solo, *series.cells)])


def _place(option: Option) -> tuple[str, int]:
    return option.cell.about.mode, option.cell.about.world_size


def title(series: ScalingSeries, short: bool = False) -> str:
    """Return what is scaled, and how."""
    w = series.workload
    if short:
        return f"{w.model}, {series.kind}, batch {w.batch_size}"
    if series.kind == "strong":
        return f"**Strong scaling of `{plain(w.model)}`** (one batch of {w.batch_size} cut over the devices)"
    return f"**Weak scaling of `{plain(w.model)}`** (a batch of {w.batch_size} for each device)"


def sentence(page: Page, series: ScalingSeries, options: Sequence[Option]) -> str:
    """Return the best speed on most devices that have a core each, and the verdict."""
    return f"{title(series)}: {_best(page, options)}. {_verdict(options)}"


def _shared(page: Page, series: Sequence[ScalingSeries]) -> str:
    """Return what limits more devices than there are cores."""
    most = max(each.sizes[-1] for each in series)
    cores = page.cores(series[0].solo)
    if cores is None or most <= cores:
        return ""
    share = percent(cores / most)
    return (
        f"{plural(most, 'device')} share {plural(cores, 'core')}: {share} of the ideal is the most that they can reach."
    )


def _best(page: Page, options: Sequence[Option]) -> str:
    several = [option for option in options if option.cell.about.world_size > 1 and option.speed is not None]
    cores = page.cores(options[0].cell)
    roomy = [option for option in several if cores is None or option.cell.about.world_size <= cores] or several
    if not roomy:
        return "no speed was measured on several devices"
    size = max(option.cell.about.world_size for option in roomy)
    best = max(
        (each for each in roomy if each.cell.about.world_size == size),
        key=lambda each: (_known(each), each.passed, _speed(each)),
    )
    assert best.speed is not None
    assert best.efficiency is not None
    if not _known(best):
        why = "other programs used the cores" if best.disturbed else _why(best.speed)
        mend = remedy(best, best.speed, decide=False)
        return f"its speed on {size} devices is {UNMEASURED}: {why}; {mend}"
    ends = _ends(best.speed)
    way = f"{plain(best.cell.about.mode)} on {size} devices has {best.speed.value:.2f} × the speed of one{ends}"
    return f"{way}, {percent(best.efficiency.value)} of ideal"


def _why(speed: Interval) -> str:
    return "the 95 % interval spans a factor of 4 or more" if speed.wide else "one seed shows no spread"


def _known(option: Option) -> bool:
    return option.speed is not None and not option.speed.wide and not option.disturbed


def _speed(option: Option) -> float:
    return 0.0 if option.speed is None else option.speed.value


def _ends(speed: Interval) -> str:
    if speed.low is None or speed.high is None:
        return ""
    return f" (95 %: {speed.low:.2f} to {speed.high:.2f})"


def _verdict(options: Sequence[Option]) -> str:
    judged = [option for option in options if option.judged]
    if not judged:
        return "Quality is not judged: no baseline has this batch."
    wrong = [option for option in judged if not option.passed]
    if not wrong:
        return "Quality OK." if len(judged) == len(options) else "Quality OK, as far as it is judged."
    return f"Quality not OK, or not decided: {names(wrong, options)}."


def table(page: Page, shown: Sequence[Studied]) -> Verdicts:
    """Return a row for each way of training in each series: speed over one device's, and its share of the ideal, on each
    number of devices."""
    sizes = sorted({size for series, _ in shown for size in series.sizes})[-COLUMNS:]
    cores = page.cores(shown[0][0].solo)
    rows = []
    badges: dict[str, str] = {}
    for series, options in shown:
        for mode, group in groupby(options, key=lambda option: option.cell.about.mode):
            sized = {option.cell.about.world_size: option for option in group}
            words, name = _state(list(sized.values()), bool(page.verdicts))
            badges[words] = name
            rows.append(
                {
                    "scaling": plain(title(series, short=True)),
                    "way of training": plain(mode),
                    "quality": words,
                    **{_head(size, cores): _cell(sized.get(size)) for size in sizes},
                    "lowest quality": difference(min(sized.values(), key=_behind)),
                    "seeds": _seeds(list(sized.values())),
                }
            )
    return Verdicts(tuple(rows), left=3, badges=badges)


def _state(group: Sequence[Option], judged: bool) -> tuple[str, str]:
    """Return the gravest of what came of the verdicts, on which numbers of devices, and its verdict's name."""
    worst = min(group, key=_grave)
    alike = [option for option in group if state(option, judged) == state(worst, judged)]
    on = "" if len(alike) == len(group) else f" on {listed(str(option.cell.about.world_size) for option in alike)}"
    name = worst.failing.name if worst.failing is not None else "PASS" if worst.judged else "NO_BASELINE"
    return f"{state(worst, judged)}{on}", name


def _behind(option: Option) -> float:
    return option.quality.difference.value if option.quality is not None else math.inf


def _grave(option: Option) -> int:
    return GRAVEST.index(option.failing.name) if option.failing is not None else len(GRAVEST)


def _head(size: int, cores: int | None) -> str:
    shared = f" on {cores} cores" if cores is not None and size > cores else ""
    return f"{plural(size, 'device')}{shared}"


def _cell(option: Option | None) -> str:
    if option is None or option.speed is None or option.efficiency is None:
        return NONE
    if option.disturbed:
        return "*disturbed*"
    if option.speed.wide:
        return "*unclear*"
    ideal = f" ({percent(option.efficiency.value)})" if option.cell.about.world_size > 1 else ""
    return f"{option.speed.value:.2f} ×{ideal}"


def _seeds(group: Sequence[Option]) -> str:
    counts = sorted({len(option.cell.one_each) for option in group})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _picture(page: Page, shown: Sequence[Studied]) -> Picture | None:
    """Draw speed over one device's by number of devices, a plot for each series, with the ideal and the cores."""
    drawn = [(each, options) for each, options in shown if any(_known(option) for option in options)]
    if not drawn:
        return None
    wide, high = WIDE if len(drawn) <= len(WIDE) else NARROW
    figure = Figure(figsize=(wide * len(drawn), high), layout="constrained")
    for axes, (each, options) in zip(figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True):
        _plot(page, axes, each, [option for option in options if _known(option)])
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), [brief(label) for label in handles], loc="outside right upper")
    data = [_datum(each, option) for each, options in shown for option in options]
    alt = "Speed over one device's by number of devices. Bars: 95 % intervals. Dashed: ideal. Grey: more devices than cores"
    return page.figure(figure, "answer-scaling", data, "", alt)


def _plot(page: Page, axes: Axes, series: ScalingSeries, options: Sequence[Option]) -> None:
    sizes, cores = sorted({1, *series.sizes}), page.cores(series.solo)
    axes.plot([1, sizes[-1]], [1, sizes[-1]], color="#333333", lw=1.2, ls=(0, (4, 2)), label="ideal")
    for mode in dict.fromkeys(option.cell.about.mode for option in options):
        colour, marker = page.styles[mode]
        mine = [option for option in options if option.cell.about.mode == mode]
        x, y = [option.cell.about.world_size for option in mine], [_speed(option) for option in mine]
        axes.plot(x, y, f"-{marker}", color=colour, ms=6, label=mode)
        for size, option in zip(x, mine, strict=True):
            if option.speed is not None and option.speed.low is not None and option.speed.high is not None:
                axes.plot([size, size], [option.speed.low, option.speed.high], "_-", color=colour, lw=1.0, ms=5)
    if cores is not None and cores < sizes[-1]:
        axes.axvspan(cores + 0.1, sizes[-1], color="#999999", alpha=0.15, lw=0)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("speed / one device's")
    axes.set_title(brief(title(series, short=True), 34), fontsize=9)


def _datum(series: ScalingSeries, option: Option) -> dict[str, Any]:
    speed = option.speed
    return {
        "scaling": series.kind,
        "model": series.workload.model,
        "batch": series.workload.batch_size,
        "mode": option.cell.about.mode,
        "devices": option.cell.about.world_size,
        "speedup": None if speed is None else speed.value,
        "low": None if speed is None else speed.low,
        "high": None if speed is None else speed.high,
        "disturbed": option.disturbed,
    }

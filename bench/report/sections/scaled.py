"""Strong and weak scaling on page one: for each series a sentence and a table over numbers of devices, and one figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.base.figures import plural
from bench.base.style import brief
from bench.report.answer import GRAVEST, Option, options_of
from bench.report.blocks import Block, LeadText, Picture, Verdicts, nonempty, plain
from bench.report.compare import Rival
from bench.report.intervals import Interval
from bench.report.page import NONE, Page, listed, more, percent
from bench.report.page_words import QUALITY, UNMEASURED, difference, remedy, state
from bench.report.scaling_series import Series

SERIES = 4
"""As many are shown."""
BADGES = {text: name for name, text in QUALITY.items()}
INCHES = (4.6, 2.6)
"""Of the plot of one series."""
COLUMNS = 4
"""Numbers of devices that have a column: with mode, quality, metric and seeds, eight."""


def blocks(page: Page, series: Sequence[Series]) -> list[Block]:
    """Return what page one says of scaling."""
    if not series:
        return []
    shown = [(each, options_of(page, [Rival(cell, each.solo) for cell in (each.solo, *each.cells)])) for each in series]
    shown = [(each, sorted(options, key=_place)) for each, options in shown[:SERIES]]
    leads = [LeadText(sentence(page, each, options)) for each, options in shown]
    tables = [table(page, each, options) for each, options in shown]
    return nonempty(leads, _picture(page, shown), tables, more(len(series) - SERIES, "series", "not shown"))


def _place(option: Option) -> tuple[str, int]:
    return option.cell.about.mode, option.cell.about.world_size


def title(series: Series) -> str:
    """Return what is scaled, and how."""
    w = series.workload
    how = (
        f"global batch {w.batch_size}, cut over the devices"
        if series.kind == "strong"
        else f"batch {w.batch_size} for each device"
    )
    return f"{series.kind.capitalize()} scaling of {w.model} ({how})"


def sentence(page: Page, series: Series, options: Sequence[Option]) -> str:
    """Return the best speed on most devices that have a core each, what limits more of them, and the verdict."""
    texts = [f"**{plain(title(series))}**: {_best(page, options)}."]
    cores = page.cores(series.solo)
    if cores is not None and series.sizes[-1] > cores:
        most = percent(cores / series.sizes[-1])
        texts.append(
            f"{series.sizes[-1]} devices share {plural(cores, 'core')}, which allows {most} of the ideal at most."
        )
    return " ".join([*texts, _verdict(options)])


def _best(page: Page, options: Sequence[Option]) -> str:
    several = [option for option in options if option.cell.about.world_size > 1 and option.speed is not None]
    cores = page.cores(options[0].cell)
    roomy = [option for option in several if cores is None or option.cell.about.world_size <= cores] or several
    if not roomy:
        return "no speed was measured on several devices"
    size = max(option.cell.about.world_size for option in roomy)
    best = max(
        (each for each in roomy if each.cell.about.world_size == size), key=lambda each: (_known(each), _speed(each))
    )
    assert best.speed is not None
    assert best.efficiency is not None
    if not _known(best):
        why = "other programs used the cores" if best.disturbed else _why(best.speed)
        mend = remedy(best, best.speed, decide=False)
        return f"its speed on {size} devices is {UNMEASURED}: {why}; {mend}"
    ends = _ends(best.speed)
    way = f"on {size} devices {plain(best.cell.about.mode)} is {best.speed.value:.2f} times as fast as one{ends}"
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
        return "All that is judged is as good as one device."
    return f"Not shown to be as good as one device: {listed(plain(option.cell.label) for option in wrong)}."


def table(page: Page, series: Series, options: Sequence[Option]) -> Verdicts:
    """Return a row for each way of training: speed over one device's, and its share of the ideal, on each number."""
    by_mode: dict[str, list[Option]] = {}
    for option in options:
        by_mode.setdefault(option.cell.about.mode, []).append(option)
    sizes, cores = series.sizes[-COLUMNS:], page.cores(series.solo)
    rows = []
    for mode, group in by_mode.items():
        sized = {option.cell.about.world_size: option for option in group}
        worst = min(group, key=_grave)
        lowest = min(group, key=lambda each: each.quality.difference.value if each.quality else 0.0)
        rows.append(
            {
                f"{series.kind} scaling": plain(mode),
                "quality": state(worst, bool(page.verdicts)),
                **{_head(size, cores): _cell(sized.get(size)) for size in sizes},
                plain(series.solo.about.final.eval_metric): difference(lowest),
                "seeds": _seeds(group),
            }
        )
    return Verdicts(tuple(rows), left=2, badges=BADGES)


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
    return f"{option.speed.value:.2f} × ({percent(option.efficiency.value)})"


def _seeds(group: Sequence[Option]) -> str:
    counts = sorted({len(option.cell.one_each) for option in group})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _picture(page: Page, shown: Sequence[tuple[Series, list[Option]]]) -> Picture | None:
    """Draw speed over one device's by number of devices, a plot for each series, with the ideal and the cores."""
    drawn = [(each, options) for each, options in shown if any(_known(option) for option in options)]
    if not drawn:
        return None
    figure = Figure(figsize=(INCHES[0] * len(drawn), INCHES[1]), layout="constrained")
    for axes, (each, options) in zip(figure.subplots(1, len(drawn), squeeze=False).flat, drawn, strict=True):
        _plot(page, axes, each, [option for option in options if _known(option)])
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(handles.values()), [brief(label) for label in handles], loc="outside right upper")
    data = [_datum(each, option) for each, options in shown for option in options]
    alt = "Speed over one device's by number of devices. Bars: 95 % intervals. Dashed: ideal. Grey: more devices than cores"
    return page.figure(figure, "answer-scaling", data, "", alt)


def _plot(page: Page, axes: Axes, series: Series, options: Sequence[Option]) -> None:
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
        axes.axvspan(cores, sizes[-1], color="#999999", alpha=0.15, lw=0)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("devices")
    axes.set_ylabel("speed / one device's")
    axes.set_title(brief(f"{series.kind} scaling, {series.workload.model}, batch {series.workload.batch_size}", 48))


def _datum(series: Series, option: Option) -> dict[str, Any]:
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

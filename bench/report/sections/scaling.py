"""Speed over the number of ranks, against solo and against the bound of the ranks' own speeds."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.cells import Workload
from bench.report.compare import Rival, dagger, rivals
from bench.report.page import NONE, Page, fixed, percent, table


def section(page: Page) -> str:
    """A table and a figure for each workload that was run on more than one rank."""
    parts = []
    for workload, found in page.workloads.items():
        shown = [rival for rival in rivals(found) if rival.cell.speed.mean is not None]
        if any(rival.cell.about.world_size > 1 and rival.speedup is not None for rival in shown):
            parts += [
                f"### {page.title(workload)}",
                table([_row(rival) for rival in shown]),
                dagger(shown),
                _figure(page, workload, shown),
            ]
    intro = (
        "The batch of a rank is the same at every world size, so the ideal is N times the samples per second of solo "
        "(with emulated speeds: their sum). *Speed-up / ideal* needs N free cores to reach 100 %; *efficiency* is held "
        "against the speed that the ranks had in the same run, oversubscribed or not; *steady* leaves out the "
        "controller's calibration and the end."
    )
    return "\n\n".join(["## Scaling", intro, *(part for part in parts if part)]) if parts else ""


def ideal(rival: Rival) -> float:
    """Speed-up over solo if nothing were lost: the sum of the ranks' relative speeds."""
    about = rival.cell.about
    return sum(about.emulated_speeds) if about.emulated_speeds else float(about.world_size)


def _row(rival: Rival) -> dict[str, str]:
    cell, speedup = rival.cell, rival.speedup
    return {
        "mode": cell.marked,
        "ranks": str(cell.about.world_size),
        "n": str(cell.speed.n),
        "samples/s": fixed(cell.speed, 0),
        "speed-up over solo": f"{speedup:.2f}" if speedup is not None else NONE,
        "ideal": f"{ideal(rival):g}",
        "speed-up / ideal": f"{100 * speedup / ideal(rival):.0f} %" if speedup is not None else NONE,
        "efficiency": percent(rival.efficiency),
        "steady": percent(rival.steady, 1),
    }


def _figure(page: Page, workload: Workload, shown: list[Rival]) -> str:
    """Bars by world size; emulated devices, scripted faults and cohorts that shrank are in the table only."""
    drawn = [rival for rival in shown if rival.speedup is not None and not _distorted(rival)]
    if not any(rival.cell.about.world_size > 1 for rival in drawn):
        return ""
    modes = sorted({rival.cell.about.mode for rival in drawn}, key=lambda mode: (mode != "solo", mode))
    sizes = sorted({rival.cell.about.world_size for rival in drawn})
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    shares = [rival.efficiency.mean for rival in drawn]
    _bars(left, page, drawn, modes, sizes, [rival.speedup for rival in drawn])
    _bars(right, page, drawn, modes, sizes, [None if share is None else 100 * share for share in shares])
    for place, size in enumerate(sizes):
        left.hlines(size, place - 0.46, place + 0.46, color="#333333", lw=1.2, ls=(0, (4, 2)))
    left.annotate("ideal", (len(sizes) - 1.46, sizes[-1]), (0, 3), textcoords="offset points", fontsize=8)
    left.set_ylim(0, 1.1 * sizes[-1])
    right.axhline(100, color="#333333", lw=1.2, ls=(0, (4, 2)))
    left.set_title("Speed-up over solo (samples per second)")
    right.set_title("Efficiency: % of the sum of the ranks' own speeds")
    handles = [left.bar([0], [0], color=page.styles[mode][0])[0] for mode in modes]
    figure.legend(handles, modes, loc="outside right upper")
    figure.suptitle(page.title(workload), x=0.01, ha="left", fontsize=11, weight="bold")
    alt = f"Speed-up over solo and efficiency of {page.title(workload)} by mode on {', '.join(map(str, sizes))} ranks"
    return page.figure(figure, page.slug("scaling", workload), _data(drawn), alt)


def _distorted(rival: Rival) -> bool:
    about = rival.cell.about
    return bool(about.emulated_speeds or about.scripted_faults or rival.cell.bereft)


def _bars(
    axes: Axes, page: Page, drawn: list[Rival], modes: list[str], sizes: list[int], heights: list[float | None]
) -> None:
    """Groups of bars, one group for each world size; in a group only the modes that ran on it, side by side.

    What is not known is no bar: it says so, where the bar would be.
    """
    for place, size in enumerate(sizes):
        group = sorted(
            (
                (modes.index(r.cell.about.mode), h)
                for r, h in zip(drawn, heights, strict=True)
                if r.cell.about.world_size == size
            ),
            key=lambda bar: bar[0],
        )
        width = min(0.9 / len(group), 0.22)
        offsets = (np.arange(len(group)) - (len(group) - 1) / 2) * width
        for offset, (mode, height) in zip(offsets.tolist(), group, strict=True):
            colour = page.styles[modes[mode]][0]
            if height is None:
                axes.text(place + offset, 1, "unknown", rotation=90, ha="center", va="bottom", fontsize=7, color=colour)
            else:
                axes.bar(place + offset, height, 0.88 * width, color=colour)
    axes.set_xticks(range(len(sizes)), [f"{size} rank" + "s" * (size > 1) for size in sizes])
    axes.set_xlim(-0.6, len(sizes) - 0.3)
    axes.grid(False, axis="x")


def _data(drawn: list[Rival]) -> pd.DataFrame:
    return pd.DataFrame(
        [
            {
                "mode": rival.cell.about.mode,
                "world_size": rival.cell.about.world_size,
                "n": rival.cell.speed.n,
                "samples_per_s": rival.cell.speed.mean,
                "samples_per_s_sd": rival.cell.speed.sd,
                "speedup": rival.speedup,
                "ideal": ideal(rival),
                "efficiency": rival.efficiency.mean,
                "steady": rival.steady.mean,
            }
            for rival in drawn
        ]
    )

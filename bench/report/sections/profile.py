"""Which mode is best if only one may be used: performance profiles over all workloads (Dolan and Moré, 2002)."""

from __future__ import annotations

import math
from itertools import chain

import numpy as np
from matplotlib.figure import Figure

from bench.base.number_format import plural
from bench.report.blocks import Block, Heading, Picture, Text, nonempty, plain
from bench.report.measures.compare import distortions
from bench.report.measures.time_to_target import Axis, reach, targets
from bench.report.measures.timing import Timing
from bench.report.page import Page, listed, table, times
from bench.results.cells import Cell, Workload
from bench.validate.baselines.fingerprint import one_machine

LIMIT = 4.0
"""Largest factor over the best time that counts; a slower mode counts as a miss (AlgoPerf, 2023)."""
Problem = dict[str, list[Cell]]
"""Mode -> its cells that have times. A mode with several cells was run with several settings, and none of them can
represent it."""
Times = dict[str, list[float]]
"""Mode -> its time over the best time, for each problem; infinity: the target was missed."""


def section(page: Page) -> list[Block]:
    """Return a table, and of several problems a figure; [] unless at least two modes were run on the same problems."""
    problems = _problems(page.cells)
    modes = [mode for mode in page.styles if problems and all(len(problem.get(mode, ())) == 1 for problem in problems)]
    if len(modes) < 2:
        return []
    profiles: dict[Axis, Times] = {axis: _ratios(problems, modes, axis) for axis in ("seconds", "samples")}
    ranked = sorted(modes, key=lambda mode: -score(profiles["seconds"][mode]))
    others = sorted({mode for problem in problems for mode in problem} - set(modes))
    left = (
        f" Left out, for they ran not all of them to the end, or one in several ways: {plain(listed(others))}."
        if others
        else ""
    )
    intro = (
        f"Over {plural(len(problems), 'problem')} (a workload on a number of ranks; solo takes part in each): the share of "
        "problems on which a mode needs at most τ times as long as the best mode to reach the target, medians over seeds, "
        f"a miss is infinitely long. *Score*: the area under the curve from 1 to {LIMIT:g}, over {LIMIT - 1:g}; 1 is to be "
        f"the best everywhere. Simulated or emulated devices and links, shared GPUs and scripted faults do not count.{left}"
    )
    return nonempty(
        Heading("Best over all workloads"),
        Text(intro),
        _figure(page, profiles, ranked) if len(problems) > 1 else None,  # of one problem the table says as much
        table(_row(mode, profiles) for mode in ranked),
    )


def _problems(cells: tuple[Cell, ...]) -> list[Problem]:
    """Return the problems: cells of one workload on one number of ranks; solo cells take part in every problem of their
    workload. Of a cell without a time, as it was interrupted, the mode alone is kept. Leaves out cells without timing, those
    with `distortions`, and problems with several targets, machines or kinds of device."""
    timed = [cell for cell in cells if any(run.metrics.timing for run in cell.runs)]
    sound = [cell for cell in timed if not distortions(cell)]
    problems: dict[tuple[Workload, int], Problem] = {}
    for cell in sorted(
        sound, key=lambda cell: cell.is_solo
    ):  # solo last: it takes part in each problem of its workload
        key = cell.workload, cell.about.world_size
        own = [problem for other, problem in problems.items() if other[0] == cell.workload]
        for problem in own if cell.is_solo else [problems.setdefault(key, {})]:
            known = reach(cell).middle("seconds") is not None
            problem.setdefault(cell.about.mode, []).extend([cell] * known)
    return [problem for problem in problems.values() if _comparable(list(chain.from_iterable(problem.values())))]


def _comparable(cells: list[Cell]) -> bool:
    return len(targets(cells)) == 1 and one_machine(run for cell in cells for run in Timing.of(cell).runs)


def _ratios(problems: list[Problem], modes: list[str], axis: Axis) -> Times:
    ratios: Times = {mode: [] for mode in modes}
    for problem in problems:
        middles = {mode: reach(problem[mode][0]).middle(axis) for mode in modes}
        times = {mode: math.inf if middle is None else middle for mode, middle in middles.items()}
        best = min(times.values())
        for mode, time in times.items():
            ratios[mode].append(time / best if math.isfinite(time) and best > 0 else math.inf)
    return ratios


def score(ratios: list[float]) -> float:
    """Return the area under the profile from 1 to `LIMIT`, divided by its width: in [0, 1], where 1 means best on every
    problem."""
    return float(np.mean([max(0.0, LIMIT - ratio) / (LIMIT - 1) for ratio in ratios]))


def _row(mode: str, profiles: dict[Axis, Times]) -> dict[str, str]:
    seconds = profiles["seconds"][mode]
    worst = max(seconds)
    return {
        "mode": plain(mode),
        "n": str(len(seconds)),
        "score, seconds": f"{score(seconds):.3f}",
        "score, samples": f"{score(profiles['samples'][mode]):.3f}",
        "best on": str(sum(ratio == 1 for ratio in seconds)),
        "missed": str(sum(map(math.isinf, seconds))),
        "worst: × the best's seconds": times(None if math.isinf(worst) else worst),
    }


def _figure(page: Page, profiles: dict[Axis, Times], ranked: list[str]) -> Picture:
    figure = Figure(figsize=(10.5, 3.6), layout="constrained")
    for axes, (axis, ratios) in zip(figure.subplots(1, 2), profiles.items(), strict=True):
        for mode in ranked:
            steps = sorted(ratio for ratio in ratios[mode] if ratio <= LIMIT)
            share = np.arange(1, len(steps) + 1) / len(ratios[mode])
            x, y = [1.0, *steps, LIMIT], [0.0, *share, share[-1] if len(share) else 0.0]
            axes.step(x, y, where="post", color=page.styles[mode][0], lw=2.2 if mode == "solo" else 1.6, label=mode)
        axes.set_xlim(1, LIMIT)
        axes.set_ylim(0, 1.03)
        axes.set_xlabel(f"τ: times the {axis} of the best")
        axes.set_title(f"Share of problems within τ, by {axis} to target")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper")
    data = [
        {"mode": mode, "axis": axis, "problem": number, "ratio": ratio}
        for axis, ratios in profiles.items()
        for mode in ranked
        for number, ratio in enumerate(ratios[mode])
    ]
    alt = f"Performance profile of {plural(len(ranked), 'mode')}: share of problems within a factor of the best"
    return page.figure(figure, "profile", data, "", alt)

"""Key figures of page one if there is nothing to compare with: the result of a cell, its speed, and the shares of its
time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from bench.base.number_format import plural
from bench.report.blocks import Tile, plain
from bench.report.measures.compare import Rival, mean_share
from bench.report.measures.losses import NAMED, WORDS
from bench.report.measures.time_to_target import Axis, reach
from bench.report.measures.timing import Timing
from bench.report.page import NONE, levels, number, percent
from bench.results.cells import Cell, measured

LEAST = 0.01
"""Smaller shares of the time are not named."""


def spent(cell: Cell) -> str:
    """Return the largest shares of the ranks' time in words: `63 % between steps, 33 % computing`; empty if they were
    not measured."""
    known = [m for m in cell.timed if mean_share(m, "compute") is not None]
    shares = {name: fmean(mean_share(m, name) or 0.0 for m in known) for name in WORDS} if known else {}
    largest = sorted(shares.items(), key=lambda item: -item[1])[:NAMED]
    words = {**WORDS, "compute": "computing"}
    return ", ".join(f"{percent(share)} {words[name]}" for name, share in largest if share >= LEAST)


def tiles(cells: Sequence[Cell]) -> tuple[Tile, ...]:
    """Return the result, the speed, the time to the target and the share of computing of the first cell with a finished
    run; () if there is none."""
    cell = next((cell for cell in cells if cell.ok), None)
    if cell is None:
        return ()
    name, target = plain(cell.name), cell.about.target.value
    whole, efficiency = reach(cell), Rival(cell, None).efficiency.mean
    axis: Axis = "samples" if whole.middle("seconds") is None else "seconds"
    shares = [share for m in cell.timed if (share := mean_share(m, "compute")) is not None]
    goal = "" if target is None else f"{plain(cell.about.final.eval_metric)} {target:g}"
    timing = Timing.of(cell)
    seconds = measured(timing.seconds)
    all_there = axis == "seconds" and len(seconds) == len(timing.seconds) and all(seconds)
    middle = median(seconds) if all_there else whole.middle(axis)
    known = (
        "not reached" if middle is None or math.isinf(middle) else f"{number(middle)} {axis.replace('seconds', 's')}"
    )
    shown = (
        Tile(
            f"final {plain(cell.about.final.eval_metric)}", levels(cell.eval), f"{name}, {plural(cell.eval.n, 'seed')}"
        ),
        Tile(
            "samples/s",
            number(timing.speed.mean),
            "" if efficiency is None else f"{percent(efficiency)} of what its ranks could do alone",
            dim=timing.disturbed,
        ),
        Tile("time to target" if axis == "seconds" else "samples to target", known, goal, dim=timing.disturbed)
        if target is not None and whole.n
        else None,
        Tile("of its ranks' time computing", percent(fmean(shares)), "*Where the time went* has the rest")
        if shares
        else None,
    )
    return tuple(tile for tile in shown if tile is not None and tile.value != NONE)

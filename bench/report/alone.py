"""Figures of page one where nothing is compared: what came of a cell, how fast, and where its time went."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from bench.base.figures import plural
from bench.report.blocks import Tile, plain
from bench.report.compare import Rival, mean_share
from bench.report.page import NONE, levels, number, percent
from bench.report.time_to_target import reach
from bench.results.cells import Cell


def tiles(cells: Sequence[Cell]) -> tuple[Tile, ...]:
    """Return result, speed, time to the target and share of computing of the first cell with a finished run."""
    cell = next((cell for cell in cells if cell.ok), None)
    if cell is None:
        return ()
    name, target = plain(cell.name), cell.about.target.value
    middle, efficiency = reach(cell).middle("seconds"), Rival(cell, None).efficiency.mean
    shares = [share for m in cell.timed if (share := mean_share(m, "compute")) is not None]
    goal = "" if target is None else f"{plain(cell.about.final.eval_metric)} {target:g}"
    known = None if middle is None or math.isinf(middle) else f"{number(middle)} s"
    shown = (
        Tile(
            f"final {plain(cell.about.final.eval_metric)}", levels(cell.eval), f"{name}, {plural(cell.eval.n, 'seed')}"
        ),
        Tile(
            "samples/s",
            number(cell.speed.mean),
            "" if efficiency is None else f"{percent(efficiency)} of its ranks' alone",
        ),
        Tile("time to target", known or "not reached", goal) if target is not None else None,
        Tile("of its ranks' time computing", percent(fmean(shares)), "*Where the time went* has the rest")
        if shares
        else None,
    )
    return tuple(tile for tile in shown if tile is not None and tile.value != NONE)

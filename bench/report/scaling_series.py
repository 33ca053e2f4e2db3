"""Series of cells over the number of devices: strong scaling divides one global batch among them, weak scaling gives
each device its own batch.

Knows nothing of tables and figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.report.page import Page
from bench.results.cells import Cell, Workload, solo_of

SIZES = 3
"""Least numbers of devices, one included, that make a way of training a study of scaling."""
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)))
"""Dashes of the lines of one mode's ways of training."""
SHOWN = 6
"""Series on page one."""


@dataclass(frozen=True)
class ScalingSeries:
    """One task on several numbers of devices."""

    kind: Literal["strong", "weak"]
    workload: Workload
    """Its batch is the global one of strong scaling, and a device's of weak scaling."""
    solo: Cell
    cells: tuple[Cell, ...]
    """By mode, then number of devices; without solo."""

    @property
    def sizes(self) -> list[int]:
        """Numbers of devices that any way of training was run on."""
        return sorted({cell.about.world_size for cell in self.cells})

    @property
    def modes(self) -> dict[str, list[Cell]]:
        """Mode -> its cells, by number of devices."""
        groups: dict[str, list[Cell]] = defaultdict(list)
        for cell in self.cells:
            groups[cell.about.mode].append(cell)
        return dict(groups)


def reachable(most: int, cores: int) -> tuple[list[int], list[int]]:
    """Return numbers of devices, from that of the cores on, and the speed-up that is the most there: none is above the
    cores."""
    return [cores, most], [cores, cores]


def task_of(cell: Cell) -> Workload:
    """Return the task of a cell for any number of ranks: its workload, with the global batch in place of a rank's
    batch."""
    return cell.workload._replace(batch_size=cell.workload.batch_size * cell.about.world_size)


def tasks(cells: tuple[Cell, ...]) -> dict[Workload, list[Cell]]:
    """Group cells without simulated or emulated devices and scripted faults by task, the reference first: one rank,
    finished. Tasks without a reference, or with nothing else, are left out."""
    groups: dict[Workload, list[Cell]] = defaultdict(list)
    for cell in cells:
        if _plain(cell):
            groups[task_of(cell)].append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: (not cell.is_solo, cell.about.mode, cell.about.world_size))
    return {t: g for t, g in groups.items() if g[0].is_solo and any(cell.about.world_size > 1 for cell in g)}


def scaling(page: Page) -> list[ScalingSeries]:
    """Return the series of a tree that studies scaling, strong before weak: tasks whose global batch several numbers of
    devices share; and workloads where a way of training was run on `SIZES` numbers of devices, or that are trained in such a
    task as well, with another batch. A tree that compares ways of training has none."""
    strong = [ScalingSeries("strong", task, cells[0], _several(cells[1:])) for task, cells in tasks(page.cells).items()]
    studied = {_family(series.workload) for series in strong}
    weak = []
    for workload, cells in page.workloads.items():
        solo, others = solo_of(cells), _ordered([cell for cell in cells if _plain(cell) and not cell.is_solo])
        if solo is None or not others:
            continue
        series = ScalingSeries("weak", workload, solo, tuple(others))
        longest = max(len({cell.about.world_size for cell in group}) for group in series.modes.values())
        if longest >= SIZES or (_family(workload) in studied and series.sizes[-1] > 1):
            weak.append(series)
    return strong + weak


def way_of(cell: Cell) -> str:
    """Return the name of a cell's way of training on any number of devices: its mode, and the settings that
    distinguish it from others of that mode."""
    return cell.label.replace(f" ×{cell.about.world_size}", "", 1)


def dashes(ways: Mapping[str, str]) -> dict[str, Dash]:
    """Return way of training -> the dash of its line; several ways of one mode have one colour. `ways`: their modes."""
    by_mode: dict[str, list[str]] = defaultdict(list)
    for way, mode in ways.items():
        by_mode[mode].append(way)
    return {way: DASHES[by_mode[mode].index(way) % len(DASHES)] for way, mode in ways.items()}


def first(series: Sequence[ScalingSeries]) -> list[ScalingSeries]:
    """Return the series that page one shows, model by model."""
    return sorted(series, key=lambda each: each.workload.model)[:SHOWN]


def answered(page: Page, series: Sequence[ScalingSeries]) -> set[Workload]:
    """Return the workloads of some series: each has its one answer there. That of a reference too, where it has nothing
    else."""
    alone = {each.solo.workload for each in series if all(cell.is_solo for cell in page.workloads[each.solo.workload])}
    return alone | {cell.workload for each in series for cell in each.cells}


def outside(page: Page, series: Sequence[ScalingSeries]) -> list[Cell]:
    """Return the cells of workloads that series answer, but of no series: what has no speed, or says nothing of scaling."""
    names = {cell.name for each in series for cell in (each.solo, *each.cells)}
    inside = answered(page, series)
    return [cell for cell in page.cells if cell.workload in inside and cell.name not in names]


def _plain(cell: Cell) -> bool:
    about = cell.about
    return bool(cell.speed.mean and not about.emulated_speeds and not about.scripted_faults and not about.source)


def _ordered(cells: Sequence[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: (cell.about.mode, cell.about.world_size))


def _several(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Leave out ways of training that only happen to have the same global batch once, where others were meant to."""
    series = ScalingSeries("strong", cells[0].workload, cells[0], tuple(cells))
    sizes = {mode: {cell.about.world_size for cell in group} for mode, group in series.modes.items()}
    kept = [cell for mode, group in series.modes.items() if len(sizes[mode]) > 1 for cell in group]
    return tuple(kept or cells)


def _family(workload: Workload) -> Workload:
    return workload._replace(batch_size=0, lr=0.0, step="")

"""Series of cells over the number of devices: strong scaling divides one global batch among them, weak scaling gives
each device its own batch.

Knows nothing of tables and figures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from bench.base.grouping import grouped
from bench.report.measures.compare import distortions
from bench.report.page import Page
from bench.results.cells import Cell, Workload, solo_of

SIZES = 3
"""Least numbers of devices, including one, on which a way of training must have run to count as a study of scaling."""
Dash = str | tuple[int, tuple[int, ...]]
DASHES: tuple[Dash, ...] = ("-", "--", "-.", (0, (8, 2)), (0, (5, 1, 1, 1, 1, 1)))
"""Line styles that distinguish the ways of training of one mode, which share its colour."""
SHOWN = 6
"""Most series on page one."""


@dataclass(frozen=True)
class ScalingSeries:
    """One task on several numbers of devices."""

    kind: Literal["strong", "weak"]
    workload: Workload
    """The workload; its batch is the global one for strong scaling, and that of a device for weak scaling."""
    solo: Cell
    cells: tuple[Cell, ...]
    """Cells other than solo, ordered by mode, then number of devices."""

    @property
    def sizes(self) -> list[int]:
        """Numbers of devices that any way of training was run on."""
        return sorted({cell.about.world_size for cell in self.cells})

    @property
    def modes(self) -> dict[str, list[Cell]]:
        """Mode -> its cells, by number of devices."""
        groups = grouped((cell.about.mode, cell) for cell in self.cells)
        return dict(groups)


def reachable(most: int, cores: int) -> tuple[list[int], list[int]]:
    """Return the two ends of the line that shows the limit of the cores: numbers of devices from `cores` to `most`, and
    the largest possible speed-up there, which is `cores` at both."""
    return [cores, most], [cores, cores]


def spanned(ranks: Collection[int], sizes: Sequence[int]) -> list[int]:
    """Return those of `sizes` that lie within the range of `ranks`: a line through a way of training has a gap at a number
    of ranks that only other ways were trained on."""
    return [size for size in sizes if min(ranks) <= size <= max(ranks)]


def task_of(cell: Cell) -> Workload:
    """Return the task of a cell for any number of ranks: its workload, with the global batch in place of a rank's
    batch."""
    return cell.workload._replace(batch_size=cell.workload.batch_size * cell.about.world_size)


def tasks(cells: tuple[Cell, ...]) -> dict[Workload, list[Cell]]:
    """Group cells by task, the reference first: a finished run on one rank. Leaves out cells with
    `distortions`, and tasks without a reference or without any other cell."""
    groups: dict[Workload, list[Cell]] = defaultdict(list)
    for cell in cells:
        if _plain(cell):
            groups[task_of(cell)].append(cell)
    for group in groups.values():
        group.sort(key=lambda cell: (not cell.is_solo, cell.about.mode, cell.about.world_size))
    return {t: g for t, g in groups.items() if g[0].is_solo and any(cell.about.world_size > 1 for cell in g)}


def scaling(page: Page) -> list[ScalingSeries]:
    """Return the series of a tree that studies scaling, strong ones first. Strong: tasks with one global batch on
    several numbers of devices. Weak: workloads of which a way of training ran on at least `SIZES` numbers of devices,
    or that differ from a strong task in the batch only. A tree that compares ways of training has none."""
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
    """Return way of training -> line style; the ways of one mode get different ones. `ways`: way of training -> its
    mode."""
    by_mode = grouped((mode, way) for way, mode in ways.items())
    return {way: DASHES[by_mode[mode].index(way) % len(DASHES)] for way, mode in ways.items()}


def first(series: Sequence[ScalingSeries]) -> list[ScalingSeries]:
    """Return the series that page one shows, ordered by model."""
    return sorted(series, key=lambda each: each.workload.model)[:SHOWN]


def answered(page: Page, series: Sequence[ScalingSeries]) -> set[Workload]:
    """Return the workloads that some series answer, and so need no answer of their own: those of their cells, and that
    of a reference if it consists of solo cells only."""
    alone = {each.solo.workload for each in series if all(cell.is_solo for cell in page.workloads[each.solo.workload])}
    return alone | {cell.workload for each in series for cell in each.cells}


def outside(page: Page, series: Sequence[ScalingSeries]) -> list[Cell]:
    """Return the cells that belong to a workload of some series but to no series, because they have no speed or cannot
    be compared by number of devices."""
    names = {cell.name for each in series for cell in (each.solo, *each.cells)}
    inside = answered(page, series)
    return [cell for cell in page.cells if cell.workload in inside and cell.name not in names]


def _plain(cell: Cell) -> bool:
    return bool(cell.speed.mean) and not distortions(cell)


def _ordered(cells: Sequence[Cell]) -> list[Cell]:
    return sorted(cells, key=lambda cell: (cell.about.mode, cell.about.world_size))


def _several(cells: Sequence[Cell]) -> tuple[Cell, ...]:
    """Leave out modes that share the global batch on a single number of devices only, unless all do."""
    series = ScalingSeries("strong", cells[0].workload, cells[0], tuple(cells))
    sizes = {mode: {cell.about.world_size for cell in group} for mode, group in series.modes.items()}
    kept = [cell for mode, group in series.modes.items() if len(sizes[mode]) > 1 for cell in group]
    return tuple(kept or cells)


def _family(workload: Workload) -> Workload:
    return workload._replace(batch_size=0, lr=0.0, step="")

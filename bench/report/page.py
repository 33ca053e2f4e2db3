"""The input of a section: the cells, and functions to put tables and figures on the page.

Owns how many figures, rows and lines a section may have, and the style of figures. Does not know what sections say.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from matplotlib.figure import Figure

from bench.base.mode_styles import mode_styles
from bench.base.number_format import decimals, grouped, plural, rate
from bench.base.style import put_title, save
from bench.base.writing import write_text
from bench.report.blocks import Block, Bullets, Heading, Picture, TableBlock, Text, nonempty, plain
from bench.report.measures.idleness import IdleShares, idle
from bench.results.cells import Cell, Sample, Workload, by_workload
from bench.results.planned import PlannedExperiment
from bench.results.schema import Metrics
from bench.validate import Verdict
from bench.validate.baselines.folder import Library

NONE = "–"
"""Placeholder in tables for values that were not measured."""
FIGURES, FEW, MANY_RUNS = 12, 2, 150
"""Most figures of a section, and most if there are more than `MANY_RUNS` runs. A line counts the figures left out;
tables have all rows."""
SERIES = 16
"""Most cells of a figure; a line counts the others. Its data file has all."""
LINES = 40
"""Most items of a list; a line counts the others."""
HEAVIEST = 150_000
"""Most characters of an SVG; the page has larger drawings as PNG."""
LEAST = 1e-3
"""Smaller numbers are written with their power of ten."""
LONGEST = 80
"""Most characters of a model's name in a file name."""

Rows = TypeVar("Rows")
Table = Sequence[Mapping[str, Any]]
"""Data of a figure: a mapping for each row."""


@dataclass(frozen=True)
class Page:
    """The material of a report and the folder that it is written to."""

    root: Path
    out: Path
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]
    """One line for each folder that could not be read."""
    verdicts: tuple[Verdict, ...]
    library: Library = field(default_factory=Library)
    """The baselines that the verdicts compare with: their margins."""
    previous: tuple[Cell, ...] | None = None
    """The cells of an earlier tree; None: there is none to compare with."""
    planned: PlannedExperiment | None = None
    """The experiment whose output the tree is; None: unknown."""
    self_contained: bool = False
    """Whether readers may lack the run folders: then no link leads there."""

    @cached_property
    def workloads(self) -> dict[Workload, list[Cell]]:
        """Cells by workload."""
        return by_workload(self.cells)

    @property
    def runs(self) -> list[Metrics]:
        """Metrics of all runs, finished or not."""
        return [run.metrics for cell in self.cells for run in cell.runs]

    @cached_property
    def styles(self) -> dict[str, tuple[str, str]]:
        """Mode -> (colour, marker), the same in all figures."""
        return mode_styles(cell.about.mode for cell in self.cells)

    @cached_property
    def idle(self) -> dict[str, list[IdleShares]]:
        """Cell name -> idle shares of its ranks, computed when a section first needs them."""
        return idle(self.cells)

    def section(
        self,
        heading: str,
        intro: str,
        part: Callable[[CellGroup], list[Block]],
        groups: Iterable[tuple[str, Workload, list[Cell]]] | None = None,
        headed: bool = True,
    ) -> list[Block]:
        """Return a section with a part for each workload, or for each of `groups` (title, workload, cells); [] if no
        part has blocks. `headed`: begin each part with its title."""
        budget = FigureBudget(FEW if len(self.runs) > MANY_RUNS else FIGURES)
        if groups is None:
            groups = [(self.title(workload), workload, cells) for workload, cells in self.workloads.items()]
        parts: list[Block] = []
        for title, workload, cells in groups:
            if blocks := part(CellGroup(self, title, workload, cells, budget)):
                parts += nonempty(Heading(plain(title), 3) if headed else None, blocks)
        return nonempty(Heading(heading), Text(intro), parts, budget.rest) if parts else []

    def title(self, workload: Workload) -> str:
        """Return the shortest name that distinguishes a workload from the others. It is not escaped by `plain`, because
        figures need it as it is."""
        alike = [w for w in self.workloads if w.title == workload.title]
        if len(alike) == 1:
            return workload.title
        words = workload.differing(alike)
        return f"{workload.title} ({words})" if words else workload.title

    def figure(self, figure: Figure, name: str, data: Table, title: str, alt: str) -> Picture:
        """Write the figure with its title, and its data as CSV beside it; `alt` describes the figure in words."""
        if title:
            put_title(figure, title)
        both = save(figure, self.out / f"{name}.png")
        self.data(name, data)
        if len(both.svg) > HEAVIEST:
            return Picture(f"{name}.png", alt, f"{name}.csv")
        write_text(self.out / f"{name}.svg", both.svg)
        return Picture(f"{name}.png", alt, f"{name}.csv", f"{name}.svg", both.panels)

    def data(self, name: str, data: Table) -> None:
        """Write a data file. Texts that a spreadsheet would evaluate as formulas are marked as text."""
        file = io.StringIO()
        writer = csv.DictWriter(file, list(dict.fromkeys(key for row in data for key in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows({key: _entry(value) for key, value in row.items()} for row in data)
        write_text(self.out / f"{name}.csv", file.getvalue())

    def cores(self, cell: Cell) -> int | None:
        """Return the number of processor cores of a cell's ranks, if they train on the CPU; None: they have devices of
        their own, or virtual time."""
        cores, on_cpu = cell.about.env.get("cores"), set(cell.about.devices) == {"cpu"} and cell.about.source is None
        return cores if isinstance(cores, int) and on_cpu else None

    def link(self, target: Path) -> str:
        """Return the path of a file as seen from the report."""
        relative = Path(os.path.relpath(target, self.out)).as_posix()
        return quote(os.fsencode(relative), safe="/")  # a name may hold what ends a link, or a part of an address


@dataclass
class FigureBudget:
    """The number of figures that a section may draw, `most`; those drawn and those left out."""

    most: int
    drawn: int = 0
    left_out: int = 0

    @property
    def rest(self) -> Text | None:
        """A line that counts the figures left out; None if all were drawn."""
        return more(self.left_out, "figure", "not drawn; report a part of the tree to see them, or read the tables")


@dataclass(frozen=True)
class CellGroup:
    """The cells of one workload under their title, and functions to draw them."""

    page: Page
    title: str
    workload: Workload
    cells: list[Cell]
    budget: FigureBudget

    def draw(
        self,
        make: Callable[[CellGroup, Rows], Picture | None],
        rows: Rows,
        cells: int = 0,
        where: str = "in the table, not in the figure",
        most: int = SERIES,
    ) -> list[Block]:
        """Return the figure that `make` draws of `rows`, and a line that counts the `cells` beyond `most`; [] if the
        budget is spent or `make` draws nothing."""
        if self.budget.drawn == self.budget.most:
            self.budget.left_out += 1
            return []
        picture = make(self, rows)
        self.budget.drawn += picture is not None
        return nonempty(picture, more(cells - most, "cell", where)) if picture else []

    def slug(self, name: str) -> str:
        """Return a file name for a figure over the workload."""
        model = _sanitised(self.workload.model)
        alike = [w for w in self.page.workloads if _sanitised(w.model).casefold() == model.casefold()]
        number = alike.index(self.workload)
        return f"{name}-{model}" + (f"-{number + 1}" if number else "")


def _sanitised(model: str) -> str:
    """Return a model's name as part of a file name."""
    return "".join(sign if sign.isalnum() else "_" for sign in model[:LONGEST])


def _entry(value: object) -> object:
    """Return a value for a data file: empty if unknown, never a formula."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.8g}"
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


def more(count: int, noun: str, why: str = "not shown") -> Text | None:
    """Return `… and 3 more runs: not shown.`; None if there are none."""
    return Text(f"… and {plural(count, f'more {noun}')}: {why}.") if count > 0 else None


def bullets(lines: Sequence[str], noun: str) -> list[Block]:
    """Return the first `LINES` as a list, and a line that counts the others."""
    return nonempty(Bullets(tuple(lines[:LINES])), more(len(lines) - LINES, noun))


def table(rows: Iterable[Mapping[str, str]], left: int = 1) -> TableBlock:
    """Return a table; the first `left` columns are text, the others numbers. Its cells may have markup."""
    return TableBlock(tuple(rows), left)


def number(value: float | None, digits: int = 3) -> str:
    """Format with `digits` significant digits, thousands separated."""
    if value is None:
        return NONE
    text = f"{value:.{digits}g}"
    if abs(float(text)) >= 10**digits:
        return grouped(value)
    return text if abs(value) < LEAST or "e" not in text else f"{value:.{digits}f}"


def count(mean: float | None) -> str:
    """Format a mean of whole numbers, with one decimal unless it is whole; zero and None mean that it was not
    measured."""
    return grouped(mean, 1).removesuffix(".0") if mean else NONE


def size(value: float | None) -> str:
    """Format bytes with three significant digits and their unit."""
    if value is None:
        return NONE
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= 0.9995 * factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value:.0f} B"


def fixed(sample: Sample, places: int) -> str:
    """Format `mean ± sd` with so many decimals; without sd where there is only one value."""
    if sample.mean is None:
        return NONE
    spread = f" ± {grouped(sample.sd, places)}" if sample.sd is not None else ""
    return f"{grouped(sample.mean, places)}{spread}"


def speeds(sample: Sample) -> str:
    """Format `mean ± sd` of samples per second."""
    if sample.mean is None:
        return NONE
    spread = f" ± {rate(sample.sd, sample.mean)}" if sample.sd is not None else ""
    return f"{rate(sample.mean)}{spread}"


def times(ratio: float | None) -> str:
    """Format a ratio with two decimals."""
    return NONE if ratio is None else f"{ratio:.2f}"


def levels(sample: Sample) -> str:
    """Format `mean ± sd` of a final metric."""
    return fixed(sample, decimals(sample.mean or 0.0))


def percent(value: Sample | float | None, places: int = 0) -> str:
    """Format a fraction, or the mean of a sample of fractions, as a percentage."""
    mean = value.mean if isinstance(value, Sample) else value
    if mean is not None and 0.995 <= mean < 1.0:
        return f"{min(100 * mean, 99.9):.1f} %"
    return NONE if mean is None else f"{grouped(100 * mean, places)} %"


def listed(items: Iterable[str]) -> str:
    """Return `a, b and c`."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last

"""What a section of the report gets: the cells, and the means to put tables and figures on the page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import pandas as pd
from matplotlib.figure import Figure

from bench.base.figures import decimals, grouped, plural
from bench.base.style import mode_styles, save
from bench.report.blocks import Picture, TableBlock, Text
from bench.report.idleness import IdleShares, idle
from bench.report.planned import PlannedExperiment
from bench.results.cells import Cell, Sample, Workload, by_workload
from bench.validate import Verdict
from bench.validate.library import Library

NONE = "–"
"""Stands in tables for what was not measured."""
FIGURES, FEW, MANY_RUNS = 12, 2, 300
"""A section draws so many figures, few of them if there are many runs; of more it says so. Tables have all."""
SERIES = 16
"""A figure shows so many cells; of more it says so. Its data file has all."""
LINES = 40
"""A list has so many items; of more it says so."""
LONGEST = 80
"""Signs of a model's name in the name of a file."""

T = TypeVar("T")


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
    """The experiment that the tree is the output of; None: it is of none that is known."""

    @cached_property
    def workloads(self) -> dict[Workload, list[Cell]]:
        """Cells by workload."""
        return by_workload(self.cells)

    @property
    def pen(self) -> FigureBudget:
        """A new one, for a section."""
        return FigureBudget(FEW if self.many else FIGURES)

    @cached_property
    def many(self) -> bool:
        """Whether there are so many runs that not all can be drawn."""
        return sum(len(cell.runs) for cell in self.cells) > MANY_RUNS

    @cached_property
    def styles(self) -> dict[str, tuple[str, str]]:
        """Mode -> (colour, marker), the same in all figures."""
        return mode_styles(cell.about.mode for cell in self.cells)

    @cached_property
    def idle(self) -> dict[str, list[IdleShares]]:
        """As `idleness.idle`, once and only if a section asks."""
        return idle(self.cells)

    def title(self, workload: Workload) -> str:
        """The shortest name that tells this workload from the others on the page. Not `plain`: figures take it as it is."""
        alike = [w for w in self.workloads if w.title == workload.title]
        if len(alike) == 1:
            return workload.title
        metric = f", {workload.metric}" if len({w.metric for w in alike}) > 1 else ""
        return f"{workload.title} ({workload.course}{metric})"

    def slug(self, name: str, workload: Workload) -> str:
        """A file name for a figure over a workload."""
        number = [w for w in self.workloads if w.model == workload.model].index(workload)
        model = "".join(sign if sign.isalnum() else "_" for sign in workload.model[:LONGEST])
        return f"{name}-{model}" + (f"-{number + 1}" if number else "")

    def figure(self, figure: Figure, name: str, data: pd.DataFrame, alt: str) -> Picture:
        """Write the figure and its data beside it."""
        save(figure, self.out / f"{name}.png")
        self.data(name, data)
        return Picture(f"{name}.png", alt, f"{name}.csv")

    def data(self, name: str, data: pd.DataFrame) -> None:
        """Write a data file. Texts that a spreadsheet would reckon out are marked as texts."""
        data.map(_no_formula).to_csv(self.out / f"{name}.csv", index=False, float_format="%.8g", lineterminator="\n")

    def cores(self, cell: Cell) -> int | None:
        """Processor cores that its ranks had, where they are processes on them; None: devices of their own."""
        about = cell.about
        cores = about.env.get("cores")
        return cores if isinstance(cores, int) and about.devices and set(about.devices) == {"cpu"} else None

    def link(self, target: Path) -> str:
        """The path of a file as seen from the report."""
        relative = Path(os.path.relpath(target, self.out)).as_posix()
        return quote(os.fsencode(relative), safe="/")  # a name may hold what ends a link, or a part of an address


def _no_formula(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value


@dataclass
class FigureBudget:
    """Draws the figures of a section, the first `most` of them, and says what it left out."""

    most: int
    drawn: int = 0
    left_out: int = 0

    def draw(self, make: Callable[[], Picture | None]) -> Picture | None:
        """The figure that `make` makes, or None."""
        if self.drawn == self.most:
            self.left_out += 1
            return None
        picture = make()
        self.drawn += picture is not None
        return picture

    @property
    def rest(self) -> Text | None:
        """What was not drawn."""
        return more(self.left_out, "figure", "not drawn; report a part of the tree to see them, or read the tables")


def more(count: int, noun: str, why: str = "not shown") -> Text | None:
    """`… and 3 more runs: not shown.`; None if there are none."""
    return Text(f"… and {plural(count, f'more {noun}')}: {why}.") if count > 0 else None


def table(rows: Sequence[Mapping[str, str]], left: int = 1) -> TableBlock:
    """A table; the first `left` columns are text, the others numbers. Its cells may have markup."""
    return TableBlock(tuple(rows), left)


def number(value: float | None, digits: int = 3) -> str:
    """With `digits` significant digits, thousands separated."""
    if value is None:
        return NONE
    if value and abs(value) >= 10**digits:
        return grouped(value)
    text = f"{value:.{digits}g}"
    return f"{value:.{digits}f}" if "e" in text else text


def count(mean: float | None) -> str:
    """A mean of whole numbers, with one decimal if it is none itself; nothing counted is not measured."""
    return grouped(mean, 1).removesuffix(".0") if mean else NONE


def fixed(sample: Sample, places: int, factor: float = 1.0, unit: str = "") -> str:
    """`mean ± sd` with so many decimals; without sd where there is only one value."""
    if sample.mean is None:
        return NONE
    spread = f" ± {grouped(factor * sample.sd, places)}" if sample.sd is not None else ""
    return f"{grouped(factor * sample.mean, places)}{spread}{unit}"


def levels(sample: Sample) -> str:
    """`mean ± sd` of a final metric."""
    return fixed(sample, decimals(sample.mean or 0.0))


def percent(sample: Sample, places: int = 0) -> str:
    """The mean of a fraction as a percentage."""
    return fixed(Sample(sample.n, sample.mean, None), places, 100.0, " %")


def listed(items: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last

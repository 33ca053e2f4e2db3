"""What a section of the report gets: the cells, and the means to put tables and figures on the page."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from bench.cells import Cell, Sample, Workload, by_workload
from bench.style import mode_styles, save
from bench.validate import Verdict

NONE = "–"
"""Stands in tables for what was not measured."""


@dataclass(frozen=True)
class Page:
    """The material of a report and the folder that it is written to."""

    root: Path
    out: Path
    cells: tuple[Cell, ...]
    problems: tuple[str, ...]
    """One line for each folder that could not be read."""
    verdicts: tuple[Verdict, ...]

    @property
    def workloads(self) -> dict[Workload, list[Cell]]:
        """Cells by workload."""
        return by_workload(self.cells)

    @property
    def styles(self) -> dict[str, tuple[str, str]]:
        """Mode -> (colour, marker), the same in all figures."""
        return mode_styles(cell.about.mode for cell in self.cells)

    def title(self, workload: Workload) -> str:
        """The shortest name that tells this workload from the others on the page."""
        alike = [w for w in self.workloads if w.title == workload.title]
        if len(alike) == 1:
            return workload.title
        return f"{workload.title} ({workload.epochs} epochs, batch {workload.batch_size}, lr {workload.lr:g})"

    def slug(self, name: str, workload: Workload) -> str:
        """A file name for a figure over a workload."""
        number = [w for w in self.workloads if w.model == workload.model].index(workload)
        return f"{name}-{workload.model}" + (f"-{number + 1}" if number else "")

    def figure(self, figure: Figure, name: str, data: pd.DataFrame, alt: str) -> str:
        """Write the figure and its data beside it; Markdown that shows the one and links the other."""
        save(figure, self.out / f"{name}.png")
        data.to_csv(self.out / f"{name}.csv", index=False, float_format="%.8g", lineterminator="\n")
        return f"![{alt}]({name}.png)\n\n[Data of this figure]({name}.csv)"

    def link(self, target: Path) -> str:
        """The path of a file as seen from the report."""
        return Path(os.path.relpath(target, self.out)).as_posix()


def table(rows: Sequence[Mapping[str, str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are text, the others numbers."""
    columns = list(rows[0])
    align = ["left"] * left + ["right"] * (len(columns) - left)
    body = [[str(row[column]).replace("|", "\\|") for column in columns] for row in rows]
    return pd.DataFrame(body, columns=columns).to_markdown(index=False, colalign=align, disable_numparse=True)


def number(value: float | None, digits: int = 3) -> str:
    """With `digits` significant digits, thousands separated."""
    if value is None:
        return NONE
    if value and abs(value) >= 10**digits:
        return f"{value:,.0f}"
    text = f"{value:.{digits}g}"
    return f"{value:.{digits}f}" if "e" in text else text


def fixed(sample: Sample, decimals: int, factor: float = 1.0, unit: str = "") -> str:
    """`mean ± sd` with so many decimals; without sd where there is only one value."""
    if sample.mean is None:
        return NONE
    spread = f" ± {factor * sample.sd:,.{decimals}f}" if sample.sd is not None else ""
    return f"{factor * sample.mean:,.{decimals}f}{spread}{unit}"


def percent(sample: Sample, decimals: int = 0) -> str:
    """The mean of a fraction as a percentage."""
    return fixed(Sample(sample.n, sample.mean, None), decimals, 100.0, " %")


def listed(items: Iterable[str]) -> str:
    """`a, b and c`."""
    *most, last = items
    return f"{', '.join(most)} and {last}" if most else last


def plural(count: int, noun: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")

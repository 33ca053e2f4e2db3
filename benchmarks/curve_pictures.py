"""Draws the learning curves of docs/explanation/results.md from the files that lie beside their pictures, light and dark.

python -m benchmarks.curve_pictures    # trains nothing
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from matplotlib.figure import Figure

from bench.base.mode_styles import SOLO, mode_style
from bench.base.style import save_picture, styled
from bench.report.sections.curves import CurveSeries, Point, figure_of
from benchmarks.documents import DOCS, dark_twin, themed_picture

DOCUMENT = DOCS / "explanation" / "results.md"
IMAGES = DOCS / "images"
NUMBERS = ("samples", "seconds", "loss", "metric")


class Curves(NamedTuple):
    """What a file of curves is of."""

    title: str
    metric: str
    higher_is_better: bool = False


CURVES = {
    "cifar10": Curves("resnet_graph on CIFAR-10, recipe published, on 2 ranks", "accuracy", True),
    "gpt_nano": Curves("gpt_nano on shakespeare, recipe published, on 2 ranks", "cross-entropy"),
    "char_rnn": Curves("char_rnn on shakespeare, recipe published, on 2 ranks", "cross-entropy"),
}
"""Name of a picture and of its file -> what it shows."""


def picture(name: str) -> Path:
    """Return the light picture of these curves; its file of data has the same name."""
    return IMAGES / f"curves-{name}.png"


def series(name: str) -> list[CurveSeries]:
    """Return the curves of a file, solo first, then from best to worst."""
    by_cell: dict[str, list[Point]] = {}
    with picture(name).with_suffix(".csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            point = row | {key: int(row[key]) for key in ("seed", "epoch")}
            by_cell.setdefault(row["cell"], []).append(point | {key: _number(row[key]) for key in NUMBERS})
    sign = -1.0 if CURVES[name].higher_is_better else 1.0
    found = [
        CurveSeries(cell, len({point["seed"] for point in points}), points, mode_style(cell.partition(" ")[0]))
        for cell, points in by_cell.items()
    ]
    return sorted(found, key=lambda each: (each.name != SOLO, sign * final(each)))


def _number(text: str) -> float:
    return float(text) if text else math.nan


def final(curve: CurveSeries) -> float:
    """Return the mean over seeds of the last epoch's metric."""
    last = max(point["epoch"] for point in curve.points)
    return fmean(point["metric"] for point in curve.points if point["epoch"] == last)


def drawing(name: str) -> Figure:
    """Return the figure of a file."""
    solo, *others = series(name)
    return figure_of(CURVES[name].title, CURVES[name].metric, others, solo)[0]


def words(name: str) -> str:
    """Return what stands in place of a picture."""
    return f"{name}: loss by samples, test {CURVES[name].metric} by seconds"


def lines(document: str) -> Iterator[str]:
    """Yield the lines of the document, each picture of curves with its dark twin and its words."""
    shown = {f"../images/{picture(name).name}": words(name) for name in CURVES}
    for line in document.splitlines():
        found = [themed_picture(text, address) for address, text in shown.items() if address in line]
        yield found[0] if found else line


def main() -> None:
    """Draw the pictures and put them into the document."""
    for name in CURVES:
        for place in (picture(name), dark_twin(picture(name))):
            with styled():
                save_picture(drawing(name), place, dark=place != picture(name))
            print(place)
    text = "\n".join(lines(DOCUMENT.read_text(encoding="utf-8")))
    DOCUMENT.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

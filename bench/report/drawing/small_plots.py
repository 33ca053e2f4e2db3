"""Small plots on common scales in one figure. All positions are computed in advance, so matplotlib need not measure
text.

Owns the grid, the axes and the positions of words in a plot. Does not know what the plots show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from bench.base.style import put_title
from bench.report.drawing.free_places import Place, Rectangle, Track, free_place
from bench.report.drawing.labels import DIGIT, LETTER, LINE, SIZE

NARROW = ".,"
"""Signs of half a digit's width."""
NEAR = 5
"""Ratio of highest to lowest value below which a logarithmic axis is marked evenly."""
TICKS = 5
"""Most ticks of an axis."""
COLUMNS, PITCH, PLANE, CORNER = 4, (2.28, 1.72), (1.72, 1.0), (0.46, 0.38)
"""Most plots in a row; then in inches, horizontal and vertical: the size of a plot with its text, the size of its
plane, and the distance from its lower left corner to that of the plane."""


class PlotScale(NamedTuple):
    """The axes of a plot: the largest abscissa (the smallest is 0), the range of the ordinate, and the horizontal
    label."""

    most: float
    low: float
    high: float
    log: bool
    label: str

    def set(self, axes: Axes) -> None:
        """Set the limits, the ticks and the horizontal label of `axes`."""
        axes.set_yscale("log" if self.log else "linear")
        axes.set(xlim=(0, self.most), ylim=(self.low, self.high))
        x, y = marks(0, self.most, False), marks(self.low, self.high, self.log)
        thousands = "samples" in self.label
        axes.set_xticks(x, [f"{v / 1000:g}k" if thousands and v else f"{v:g}" for v in x], fontsize=SIZE)
        axes.set_yticks(y, [f"{v:g}" for v in y], fontsize=SIZE)
        axes.set_yticks([], minor=True)
        axes.tick_params(left=False, bottom=False, pad=2)
        axes.set_xlabel(self.label, fontsize=SIZE, labelpad=1)

    def onto(self, place: Place) -> Place:
        """Return the position of a place in the plane, in typographic points."""
        low, high, y = (math.log(v) if self.log else v for v in (self.low, self.high, place[1]))
        return 72 * PLANE[0] * place[0] / self.most, 72 * PLANE[1] * (y - low) / (high - low)


def marks(low: float, high: float, log: bool, most: int = TICKS) -> list[float]:
    """Return round numbers within an interval, at most `most`."""
    if log and high > NEAR * low:
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for steps in ((1, 2, 5), (1, 3), (1,)):
            ticks = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
            if len(ticks) <= most:
                return ticks
        return ticks[:: -(-len(ticks) // most)]
    ticks = list(MaxNLocator(most - 1, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
    return [value for value in map(float, ticks) if low <= value <= high]


def grid(title: str, count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with a title and `count` plots in a grid, whose positions are fixed instead of laid out by
    matplotlib."""
    columns = min(COLUMNS, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(columns * PITCH[0], 0.0))
    put_title(figure, title)
    height = (figure.get_figheight() + 0.3 + rows * PITCH[1]) / 0.98
    figure.set_figheight(height)
    width, (wide, tall), (left, low) = columns * PITCH[0], PLANE, CORNER
    places = [divmod(k, columns) for k in range(count)]
    cells = figure.add_gridspec(
        rows,
        columns,
        left=left / width,
        right=((columns - 1) * PITCH[0] + left + wide) / width,
        bottom=low / height,
        top=((rows - 1) * PITCH[1] + low + tall) / height,
        wspace=PITCH[0] / wide - 1,
        hspace=PITCH[1] / tall - 1,
    )
    return figure, [figure.add_subplot(cells[place]) for place in places]


def label(
    axes: Axes,
    text: str,
    ends: Track,
    own: Track,
    other: Track,
    pale: Sequence[Track],
    taken: list[Rectangle],
    look: dict[str, Any],
) -> None:
    """Write a word near one of the `ends` of its `own` line: inside the plane, off all lines and the words at `taken`, and
    rather at its own line than at the `other`. Without such a place it may lie on `pale` lines, else it is left out. Adds
    its rectangle to `taken`."""
    if not text or not len(ends):
        return
    narrow = sum(map(text.count, NARROW))
    size = (DIGIT if "weight" in look else LETTER) * (len(text) - narrow / 2), LINE
    plane = 72 * PLANE[0], 72 * PLANE[1]
    for obstacles in (pale, ()):
        if place := free_place(size, ends, own, other, obstacles, taken, plane):
            x, y = place
            taken.append((x - size[0] / 2, y - size[1] / 2, x + size[0] / 2, y + size[1] / 2))
            axes.annotate(text, place, xycoords="axes points", ha="center", va="center", fontsize=SIZE, **look)
            return

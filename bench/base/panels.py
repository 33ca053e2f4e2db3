"""The positions of a figure's plots and legend entries, so that a narrow page can stack them.

Reads figures after drawing. Knows nothing of what they show, or of pages.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

MARGIN = 4.0
"""Margin around a plot, in the unit of the drawing."""
_PART = re.compile(r'^  <g id="[^"]*?(axes|legend)_\d+">\n.*?^  </g>\n', re.DOTALL | re.MULTILINE)
_ENDS = re.compile(r"^ <defs>\n.*?^ </defs>\n", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Box:
    """A rectangle of a drawing, in its own unit; y points down."""

    x: float
    y: float
    width: float
    height: float

    @property
    def view(self) -> str:
        """The value for the SVG attribute `viewBox`."""
        return f"{self.x:.1f} {self.y:.1f} {self.width:.1f} {self.height:.1f}"


@dataclass(frozen=True)
class LegendKey:
    """An entry of a legend: its text, and the box of its symbol; None: it is the legend's title."""

    label: str
    box: Box | None


@dataclass(frozen=True)
class Panels:
    """The parts of a drawing, in drawing order."""

    plots: tuple[Box, ...] = ()
    keys: tuple[LegendKey, ...] = ()


def panels(figure: Figure, renderer: Any) -> Panels:
    """Return the parts of a figure; none if a plot is not in a grid."""
    shown = [axes for axes in figure.axes if axes.get_visible()]
    rows: dict[tuple[int, int], list[Any]] = defaultdict(list)
    boxes = []
    for axes in shown:
        if (place := axes.get_subplotspec()) is None:
            return Panels()
        box = axes.get_tightbbox(renderer, bbox_extra_artists=axes.texts)  # lines end at the axes
        assert box is not None, "it is shown"
        boxes.append((box, rows[place.rowspan.start, place.rowspan.stop]))
        boxes[-1][1].append(box)
    plots = [(box.x0, min(b.y0 for b in row), box.x1, max(b.y1 for b in row)) for box, row in boxes]
    keys = [key for legend in figure.legends for key in _keys(legend, renderer)]
    return Panels(tuple(_box(plot, renderer.height, MARGIN) for plot in plots), tuple(keys))


def _box(ends: tuple[float, float, float, float], height: float, margin: float = 0.0) -> Box:
    left, low, right, high = ends
    return Box(left - margin, height - high - margin, right - left + 2 * margin, high - low + 2 * margin)


def _keys(legend: Legend, renderer: Any) -> list[LegendKey]:
    size = legend.prop.get_size_in_points() * renderer.dpi / 72
    wide, pad, half = legend.handlelength * size, legend.handletextpad * size, 0.65 * size
    title = legend.get_title().get_text()
    keys = [LegendKey(title, None)] if title else []
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        assert handle is not None
        sign, words = handle.get_window_extent(renderer), text.get_window_extent(renderer)
        if not isfinite(sign.y0):  # only error bars
            sign = words
        middle, edge = (sign.y0 + sign.y1) / 2, words.x0 - pad
        box = _box((edge - wide, middle - half, edge, middle + half), renderer.height, 1.0)
        keys.append(LegendKey(", ".join(text.get_text().split("\n")), box))
    return keys


def split(svg: str) -> tuple[list[str], list[str], str]:
    """Return the plots of a drawing, its legends, and the definitions that both refer to, each as SVG text."""
    parts: dict[str, list[str]] = {"axes": [], "legend": []}
    for match in _PART.finditer(svg):
        parts[match[1]].append(match[0])
    return parts["axes"], parts["legend"], "".join(_ENDS.findall(svg))

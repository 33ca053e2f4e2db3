"""Renders a figure as pixels in the colours of a dark page: the twin of a PNG where a document can show both.

Knows nothing of what figures show. The colours are those that the style sheet of a report has for dark pages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_hex, to_rgba

from bench.base.mode_styles import PALETTE

PAPER = "#14171a"
INK, DIM, FAINT, ALARM = "#e6e8ea", "#9aa1a9", "#2f353b", "#ff7b66"
DARK_COLOURS = PALETTE | {
    "#000000": INK,
    "#333333": INK,
    "#444444": DIM,
    "#555555": DIM,
    "#666666": DIM,
    "#999999": DIM,
    "#e6e6e6": FAINT,
    "#cc3311": ALARM,
}
"""Colour in a figure -> colour on a dark page; others stay as they are."""


def darkened(colour: Any) -> Any:
    """Return the colour on a dark page, with the same opacity; None stays None."""
    if colour is None:
        return None
    name = to_hex(colour)
    return to_rgba(DARK_COLOURS[name], to_rgba(colour)[3]) if name in DARK_COLOURS else colour


class DarkPixels(RendererBase):
    """Draws pixels, each colour replaced by its twin."""

    def __init__(self, width: float, height: float, dpi: float) -> None:
        super().__init__()
        self.points: Any = RendererAgg(width, height, dpi)  # type: ignore[no-untyped-call]
        self.width, self.height, self.dpi = width, height, dpi
        for name in ("points_to_pixels", "get_text_width_height_descent", "new_gc", "get_canvas_width_height", "flipy"):
            setattr(self, name, getattr(self.points, name))

    def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        self.points.draw_path(self._pen(gc), path, transform, darkened(rgbFace))

    def draw_markers(self, gc: Any, marker: Any, turn: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        self.points.draw_markers(self._pen(gc), marker, turn, path, transform, darkened(rgbFace))

    def draw_path_collection(self, gc: Any, *paths: Any, **more: Any) -> None:
        *places, faces, edges = paths[:7]
        self.points.draw_path_collection(self._pen(gc), *places, _all(faces), _all(edges), *paths[7:], **more)

    def draw_text(self, gc: Any, *text: Any, **more: Any) -> None:
        self.points.draw_text(self._pen(gc), *text, **more)

    def _pen(self, gc: Any) -> Any:
        pen = self.points.new_gc()
        pen.copy_properties(gc)
        pen.set_foreground(darkened(gc.get_rgb()), isRGBA=True)
        return pen


def _all(colours: Any) -> Any:
    return np.array([to_rgba(darkened(colour)) for colour in colours]).reshape(-1, 4)

"""A figure as pixels (PNG) and as vectors (SVG), laid out only once.

Placing texts and ticks takes most of the time, and is the same for both. Knows nothing of what figures show.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.backend_bases import FigureCanvasBase, RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.backends.backend_svg import RendererSVG
from matplotlib.colors import to_rgba
from matplotlib.path import Path
from matplotlib.transforms import Affine2D
from PIL import Image

from bench.base.dark_pixels import PAPER, DarkPixels
from bench.base.mode_styles import PALETTE
from bench.base.panels import Panels, panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = 128
"""Colours of a PNG's palette: enough for smooth edges of all lines."""
UNDATED: Any = {"Date": None, "Creator": None, "Format": None, "Type": None}
"""SVG metadata without a date, so that equal figures are equal bytes."""
PAGE_COLOURS = {
    "#000000": "currentColor",
    "#333333": "currentColor",
    "#444444": "var(--dim, #444444)",
    "#555555": "var(--dim, #555555)",
    "#666666": "var(--dim, #666666)",
    "#999999": "var(--dim, #999999)",
    "#e6e6e6": "var(--line, #e6e6e6)",
}
"""Colour in a figure -> colour of the page that shows it."""
PAGE_COLOURS |= {colour: f"var(--c{colour[1:]}, {colour})" for colour in (*PALETTE, "#cc3311")}
"""Colours that a dark page shows lighter: it has a variable for each."""
_TAG, _FINE = re.compile(r"<[^>]*>"), re.compile(r"(\.\d\d)\d+|\n")
"""What stands between texts, and what of it nobody sees: less than a hundredth of a point."""
_UNUSED = re.compile(
    r'(?m)(?<=^   ) +|(?<=<g) id="[^"]*(?:axis|tick|line2d|text|patch|ollection)_\d+"| transform="rotate\(-0 [^"]*"'
)
"""Blanks within a plot, names of parts that nothing refers to, and turns by nothing."""
_IDENTITY = re.compile(r'(\bid="|url\(#|href="#)')


@dataclass(frozen=True)
class Drawing:
    """One figure in both formats."""

    png: bytes
    """With a palette, which makes it a quarter of the size."""
    svg: str
    """One element that takes the width and colours of its page."""
    panels: Panels
    """The positions of its parts."""


class _Both(RendererBase):
    """Draws pixels and vectors at once. Measures are those of the pixels."""

    def __init__(self, width: float, height: float, dpi: float) -> None:
        super().__init__()
        self._file = io.StringIO()
        # The vector renderer takes font sizes in its own unit, which here is a pixel of the PNG.
        self._text_scale = dpi / 72
        self.points: Any = RendererAgg(width, height, dpi)  # type: ignore[no-untyped-call]
        self.vectors: Any = RendererSVG(width, height, self._file, metadata=UNDATED)  # type: ignore[no-untyped-call]
        self.width, self.height, self.dpi = width, height, dpi
        for name in ("points_to_pixels", "get_text_width_height_descent", "new_gc", "get_canvas_width_height", "flipy"):
            setattr(self, name, getattr(self.points, name))
        for name in ("open_group", "close_group"):
            setattr(self, name, getattr(self.vectors, name))

    def draw_path(self, *path: Any, **more: Any) -> None:
        for renderer in (self.points, self.vectors):
            renderer.draw_path(*path, **more)

    def draw_markers(self, *markers: Any, **more: Any) -> None:
        for renderer in (self.points, self.vectors):
            renderer.draw_markers(*markers, **more)

    def draw_path_collection(self, *paths: Any, **more: Any) -> None:
        for renderer in (self.points, self.vectors):
            renderer.draw_path_collection(*paths, **more)

    def draw_text(self, gc: Any, x: float, y: float, s: str, prop: Any, *how: Any, **more: Any) -> None:
        self.points.draw_text(gc, x, y, s, prop, *how, **more)
        larger = prop.copy()
        larger.set_size(prop.get_size_in_points() * self._text_scale)
        self.vectors.draw_text(gc, x, y, s, larger, *how, **more)

    def draw_image(self, *image: Any, **more: Any) -> None:
        raise NotImplementedError("figures are lines, areas and texts")

    def svg(self) -> str:
        """Return the SVG; drawing is over after that."""
        self.vectors.finalize()
        return self._file.getvalue()


class _Points(RendererAgg):
    """Draws only pixels."""

    @property
    def points(self) -> _Points:
        return self


class _Canvas(FigureCanvasBase):
    """What a figure needs to measure its texts."""

    renderer: _Both | _Points | DarkPixels | None = None

    def get_renderer(self) -> _Both | _Points | DarkPixels | None:
        return self.renderer


def pixels(figure: Figure, dpi: float, dark: bool = False) -> bytes:
    """Return the figure as a PNG only, which takes two thirds of the time; `dark`: for a dark page."""
    canvas, renderer = _laid_out(figure, dpi, DarkPixels if dark else _Points)
    canvas.renderer = None
    return _png(np.asarray(renderer.points.buffer_rgba()))


def _laid_out(figure: Figure, dpi: float, kind: type[_Both | _Points | DarkPixels]) -> tuple[_Canvas, Any]:
    """Draw the figure; return its canvas and the renderer."""
    canvas = _Canvas(figure)
    figure.set_dpi(dpi)
    width, height = figure.bbox.size
    renderer = canvas.renderer = kind(float(width), float(height), dpi)
    _paper(renderer.points, width, height, PAPER if kind is DarkPixels else "#ffffff")
    for patch in (figure.patch, *(axes.patch for axes in figure.axes)):
        patch.set_visible(False)  # transparent: vectors have the page's background
    figure.draw(renderer)
    return canvas, renderer


def drawn(figure: Figure, name: str, dpi: float) -> Drawing:
    """Return the figure in both formats; `name` is unique on its page. Equal figures are equal bytes."""
    canvas, renderer = _laid_out(figure, dpi, _Both)
    parts = panels(figure, renderer)
    drawing = Drawing(_png(np.asarray(renderer.points.buffer_rgba())), _on_page(renderer.svg(), name), parts)
    canvas.renderer = None  # figures and canvases refer to each other, so they live long; drop the pixels
    return drawing


def _paper(points: Any, width: float, height: float, colour: str) -> None:
    gc = points.new_gc()
    gc.set_linewidth(0)
    points.draw_path(gc, Path.unit_rectangle(), Affine2D().scale(width, height), to_rgba(colour))


def _png(pixels: Any) -> bytes:
    picture = Image.fromarray(pixels).convert("RGB")
    file = io.BytesIO()
    picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG", compress_level=8)
    return file.getvalue()


def _on_page(text: str, name: str) -> str:
    """Return the SVG element of a file, adapted to the width and colours of a page."""
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg ") :], flags=re.DOTALL)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    rest = _IDENTITY.sub(lambda match: f"{match[1]}{name}-", rest)
    rest = _TAG.sub(lambda tag: _FINE.sub(r"\1", tag[0]), _UNUSED.sub("", rest))
    for colour, variable in PAGE_COLOURS.items():
        rest = rest.replace(colour, variable)
    return f'{head} preserveAspectRatio="xMidYMid meet">{rest}'.strip() + "\n"

"""How figures look: one palette (safe for colour-blind readers), one set of matplotlib settings, bytes that repeat.

The only module that sets up matplotlib. Knows nothing of runs.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text
from PIL import Image

from bench.base.writing import write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CATEGORIES = {
    "compute": "#4477aa",
    "data": "#66ccee",
    "comm": "#ee6677",
    "wait": "#ddaa33",
    "eval": "#228833",
    "checkpoint": "#aa3377",
    "other": "#dddddd",
}
"""Where time goes -> colour, in the order in which it is stacked. After Paul Tol's bright scheme."""

SOLO = "solo"
_MODES = (
    *("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255"),
    *("#999933", "#332288", "#44aa99", "#aa4466", "#6f6f6f"),
)
_MARKERS = "osD^vPXd<>*p"

COLOURS = 128
"""Of a picture: enough for smooth edges of all lines."""

LABEL, LINE = 44, 100
"""Signs of a label, and of any other line, in a picture: longer ones would leave no room for what is drawn."""

SETTINGS: Any = {
    "figure.dpi": 130,
    "savefig.dpi": 130,
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#666666",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.8,
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.0,
    "svg.hashsalt": "bench",
    "svg.fonttype": "none",
    "text.parse_math": False,  # labels come from runs
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw inside this context."""
    with matplotlib.rc_context(SETTINGS):
        yield


def mode_styles(modes: Iterable[str]) -> dict[str, tuple[str, str]]:
    """Return mode -> (colour, marker); solo is black. The same set of modes always gets the same styles."""
    others = [mode for mode in sorted(set(modes)) if mode != SOLO]
    styles = {SOLO: ("#000000", "o")}
    for index, mode in enumerate(others):
        styles[mode] = (_MODES[index % len(_MODES)], _MARKERS[(index + 1) % len(_MARKERS)])
    return styles


def brief(text: str, longest: int = LABEL) -> str:
    """Leave out the middle of lines that are longer than `longest`."""
    tail = longest // 3
    lines = text.split("\n")
    return "\n".join(x if len(x) <= longest else f"{x[: longest - tail - 1]}…{x[-tail:]}" for x in lines)


def _leave_room(figure: Figure) -> None:
    """Cut texts that come from runs, which may be of any length; those of ticks are made anew when they are drawn."""
    labels = {text for legend in figure.legends for text in legend.get_texts()}
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        text.set_text(brief(text.get_text(), LABEL if text in labels else LINE))


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without date or version, so that equal figures are equal bytes.

    With a palette: a quarter of the size, and figures have few colours."""
    _leave_room(figure)
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(SETTINGS["savefig.dpi"])
    canvas.draw()  # type: ignore[no-untyped-call]
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    picture = Image.fromarray(pixels).convert("RGB")
    file = io.BytesIO()
    picture.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(file, "PNG", compress_level=8)
    write_bytes(path, file.getvalue())
    canvas.renderer = None  # figures and canvases hold each other, so they may stay for long; the pixels need not


_COLOURS = {
    "#000000": "currentColor",
    "#333333": "currentColor",
    "#444444": "var(--dim, #444444)",
    "#555555": "var(--dim, #555555)",
    "#666666": "var(--dim, #666666)",
    "#999999": "var(--dim, #999999)",
    "#e6e6e6": "var(--line, #e6e6e6)",
}
"""Colour of a figure -> that of the page which shows it."""
_IDENTITY = re.compile(r'(\bid="|url\(#|href="#)')


def drawing(figure: Figure, name: str) -> str:
    """Return a figure that was saved as an SVG element, of the width and the colours of a page; `name` is unique on it."""
    figure.set_layout_engine("none")  # places are found
    file = io.StringIO()
    dates: Any = {"Date": None, "Creator": None, "Format": None, "Type": None}
    figure.savefig(file, format="svg", transparent=True, metadata=dates)
    text = file.getvalue()
    text = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", text[text.index("<svg ") :], flags=re.DOTALL)
    head, rest = text.split(">", 1)
    head = re.sub(r'\s(?:width|height)="[^"]*"', "", head)
    rest = _IDENTITY.sub(lambda match: f"{match[1]}{name}-", rest)
    for colour, variable in _COLOURS.items():
        rest = rest.replace(colour, variable)
    return f'{head} preserveAspectRatio="xMidYMid meet">{rest}'.strip() + "\n"

"""The look of figures: one palette (safe for colour-blind readers), one set of matplotlib settings, reproducible bytes.

The only module that configures matplotlib. Knows nothing of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TypeVar

import matplotlib

import bench.base.artists  # noqa: F401  # before the artists are defined
from bench.base.drawing import Drawing, drawn, pixels
from bench.base.writing import write_bytes

T = TypeVar("T")

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

CATEGORIES = {
    "compute": "#4477aa",
    "data": "#66ccee",
    "comm": "#ee6677",
    "wait": "#ddaa33",
    "eval": "#228833",
    "checkpoint": "#aa3377",
    "absent": "#777777",
    "other": "#dddddd",
}
"""Category of time -> colour, in stacking order. After Paul Tol's bright scheme."""

LABEL, LINE = 44, 100
"""Most characters of a label, and of any other line, in a picture; longer ones would leave no room for the plot."""
TITLE, TITLE_LETTER, TITLE_LINE = 11, 0.093, 0.18
"""Of a title: font size in points, width of a letter and height of a line in inches."""

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
    "axes.titley": 1.0,  # its default position, which takes time to compute
    "text.parse_math": False,  # labels come from runs
}


@contextmanager
def styled() -> Iterator[None]:
    """Apply the settings inside this context."""
    with matplotlib.rc_context(SETTINGS):
        yield


def some(items: Sequence[T], most: int, load: Callable[[T], float]) -> list[T]:
    """Return at most `most` items, in order: the first and last, those with the least and the largest `load`, and
    others evenly."""
    count = len(items)
    if count <= most:
        return list(items)
    by_load = sorted(range(count), key=lambda place: load(items[place]))
    even = {round(k * (count - 1) / (most - 3)) for k in range(most - 2)}
    return [items[place] for place in sorted({*even, by_load[0], by_load[-1]})]


def brief(text: str, longest: int = LABEL) -> str:
    """Replace the middle of lines longer than `longest` by an ellipsis."""
    tail = longest // 3
    lines = text.split("\n")
    return "\n".join(x if len(x) <= longest else f"{x[: longest - tail - 1]}…{x[-tail:]}" for x in lines)


def put_title(figure: Figure, title: str) -> None:
    """Put a title over a figure, in as many lines as its width requires, and enlarge the figure for them."""
    lines = wrap(brief(title, LINE), int(figure.get_figwidth() / TITLE_LETTER))
    figure.set_figheight(figure.get_figheight() + TITLE_LINE * (len(lines) - 1))
    figure.suptitle("\n".join(lines), x=0.01, ha="left", fontsize=TITLE, weight="bold")


def _leave_room(figure: Figure) -> None:
    """Shorten texts that come from runs and may have any length. Tick labels are shortened where they are set."""
    labels = {text for legend in figure.legends for text in legend.get_texts()}
    for text in (*figure.texts, *labels, *(text for axes in figure.axes for text in _texts(axes))):
        text.set_text(brief(text.get_text(), LABEL if text in labels else LINE))


def _texts(axes: Axes) -> list[Text]:
    legend = axes.get_legend()
    return [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts, *(legend.get_texts() if legend else ())]


def save_picture(figure: Figure, path: Path, dark: bool = False) -> None:
    """Write a PNG with the same bytes as `save`, if the vectors are not needed; `dark`: in the colours of a dark page."""
    _leave_room(figure)
    write_bytes(path, pixels(figure, SETTINGS["savefig.dpi"], dark))


def save(figure: Figure, path: Path) -> Drawing:
    """Write a PNG; equal figures give equal bytes. Returns both formats; ids in the SVG begin with the file's name."""
    _leave_room(figure)
    both = drawn(figure, path.stem, SETTINGS["savefig.dpi"])
    write_bytes(path, both.png)
    return both

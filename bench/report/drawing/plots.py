"""HTML of a drawing: its plots side by side if the page is wide enough, else below each other, with legends as text.

Does not know what figures show.
"""

from __future__ import annotations

import re
from html import escape

from bench.base.panels import Box, Panels, split

LARGEST, SMALLEST = 0.85, 0.6
"""Largest and smallest scale of a drawing; at scale 1 its text is 16 pixels high."""
SHARE = 23
"""Least width of a plot, in percent of the page: at most four stand side by side."""
KEY = 0.72
"""Scale of a legend's sign, so that it fits the text of the page."""
_NAMED = re.compile(r'<g id="([^"]+)">')


def on_page(svg: str, panels: Panels, alt: str) -> str:
    """Return a drawing as HTML; `alt` describes it in words."""
    plots, legends, both = split(svg)
    if len(plots) != len(panels.plots) or not plots:
        return f'<span class="plots">{_labelled(svg, alt)}</span>'
    shown = [
        _plot(box, part, "" if place else alt)
        for place, (box, part) in enumerate(zip(panels.plots, plots, strict=True))
    ]
    shown[0] = shown[0].replace("</svg>", f"{both}</svg>")
    return f'{_legend(panels, "".join(legends))}<span class="plots">{"".join(shown)}</span>'


def _labelled(svg: str, alt: str) -> str:
    return svg.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1)


def _plot(box: Box, part: str, alt: str) -> str:
    least, most = f"{SMALLEST * box.width:.0f}px", f"{LARGEST * box.width:.0f}px"
    size = f"flex:{box.width:.0f} 1 min({most},max({least},{SHARE}%));max-width:{most}"
    svg = f'<svg viewBox="{box.view}" style="{size}">{part}</svg>'
    return _labelled(svg, alt) if alt else svg.replace("<svg ", '<svg aria-hidden="true" ', 1)


def _legend(panels: Panels, drawing: str) -> str:
    """Return the entries of the legend. The drawing of all legends is part of the first entry; the others refer to
    it."""
    if not panels.keys:
        return ""
    named, shown, first = _NAMED.search(drawing), [], True
    for key in panels.keys:
        if key.box is None:
            shown.append(f"<span>{escape(key.label)}:</span>")
            continue
        size = f'width="{KEY * key.box.width:.0f}" height="{KEY * key.box.height:.0f}"'
        sign = drawing if first or named is None else f'<use href="#{named[1]}"/>'
        first = False
        svg = f'<svg aria-hidden="true" viewBox="{key.box.view}" {size}>{sign}</svg>'
        shown.append(f"<span>{svg} {escape(key.label)}</span>")
    return f'<span class="legend">{"".join(shown)}</span>'

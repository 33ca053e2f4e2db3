"""Draws the layers of a model as one self-contained SVG picture, as the page draws them (`graph.js`). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

Json = dict[str, Any]
WIDTH, HEIGHT, GAP, LANE = 300, 38, 18, 18
STEP = HEIGHT + GAP
STYLE = (
    "text{font:13px sans-serif;fill:#1f2328}.small{font-size:11px;fill:#59636e}.line{fill:none;stroke:#59636e}"
    "rect{fill:#f6f8fa;stroke:#afb8c1}.held{fill:#ddf4ff;stroke:#54aeff}"
)
_TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8z" fill="#59636e"/></marker></defs>'
)


def svg(graph: Json) -> str:
    """Return the picture of a graph from `bench.runner.modelgraph`: one row for each layer, arcs for skip
    connections."""
    nodes, edges = graph["nodes"], [(int(a), int(b)) for a, b in graph["edges"]]
    skips = [edge for edge in edges if edge[1] != edge[0] + 1]
    lanes = _lanes(skips)
    width, height = WIDTH + LANE * (max(lanes, default=-1) + 1) + 24, 4 + STEP * len(nodes)
    straight = [_straight(a) for a, b in edges if b == a + 1]
    arcs = [_arc(edge, lane) for edge, lane in zip(skips, lanes, strict=True)]
    rows = [_row(place, node) for place, node in enumerate(nodes)]
    title = f"{graph['type']}, {graph['parameters']:,} parameters"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}">'
    return "\n".join(
        [head, f"<title>{escape(title)}</title><style>{STYLE}</style>{_TIP}", *straight, *arcs, *rows, "</svg>\n"]
    )


def _top(place: int) -> int:
    return 4 + place * STEP


def _straight(place: int) -> str:
    start = _top(place) + HEIGHT
    return f'<path class="line" d="M{WIDTH // 2} {start}V{start + GAP - 1}" marker-end="url(#tip)"/>'


def _arc(edge: tuple[int, int], lane: int) -> str:
    x = WIDTH + 10 + lane * LANE
    start, stop = _top(edge[0]) + round(HEIGHT * 0.7), _top(edge[1]) + round(HEIGHT * 0.3)
    path = f"M{WIDTH} {start}H{x - 6}Q{x} {start} {x} {start + 6}V{stop - 6}Q{x} {stop} {x - 6} {stop}H{WIDTH + 1}"
    return f'<path class="line" d="{path}" marker-end="url(#tip)"/>'


def _row(place: int, node: Json) -> str:
    kind = node["type"] if node["type"] == node["name"] else f"{node['type']} {node['name']}"
    detail, numbers = str(node.get("detail") or ""), int(node["parameters"])
    shape = "×".join(map(str, node.get("out") or ()))
    right = f'x="{WIDTH - 12}" text-anchor="end"'
    texts = [
        f'<text x="12" y="16">{_text(kind, 30)}</text>',
        f'<text x="12" y="31" class="small">{_text(detail, 36 if numbers else 46)}</text>',
        f'<text {right} y="16" class="small">{_text(shape, 18)}</text>',
        *([f'<text {right} y="31">{numbers:,}</text>'] if numbers else []),
    ]
    look = ' class="held"' if numbers else ""
    box = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="7"{look}/>'
    return f'<g transform="translate(0 {_top(place)})">{box}{"".join(texts)}</g>'


def _text(text: str, most: int) -> str:
    return escape(text if len(text) <= most else f"{text[: most - 1]}…")


def _lanes(skips: Sequence[tuple[int, int]]) -> list[int]:
    """Return a lane for each arc, so that arcs that overlap lie side by side."""
    lanes: list[int] = []
    for number, (start, stop) in enumerate(skips):
        beside = {lane for (a, b), lane in zip(skips[:number], lanes, strict=True) if a < stop and start < b}
        lanes.append(next(lane for lane in range(len(skips)) if lane not in beside))
    return lanes

"""Charts of the dashboard: our own drawing against libraries whose script comes with a Python package.

Six charts of eight lines with 240 points, the most that a page of a run has. Wants Chromium, and bokeh and plotly, which the
project does not need otherwise.
"""

from __future__ import annotations

import json
import math
import tempfile
from importlib import import_module
from pathlib import Path
from statistics import median

from bench.dashboard.page import HERE
from benchmarks.screenshots import chromium

CHARTS, LINES, POINTS, ROUNDS = 6, 8, 240, 5
DONE = "requestAnimationFrame(() => requestAnimationFrame(() => { window.drawn = performance.now(); }));"


def charts() -> None:
    """Weight of the page, and milliseconds from opening it to the frame that shows all charts; sides take turns."""
    x = list(range(POINTS))
    lines = [[math.sin(k + 0.05 * i) for i in x] for k in range(LINES)]
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        pages = {}
        for make in (_ours, _bokeh, _plotly):
            try:
                body = make(x, lines)
            except ImportError as error:
                print(f"  {error.name} is not installed: pip install {error.name}")
                continue
            path = Path(folder) / f"{make.__name__}.html"
            path.write_text(f'<!doctype html><meta charset="utf-8"><body>{body}', encoding="utf-8")
            pages[make.__name__.strip("_")] = path
        times: dict[str, list[float]] = {name: [] for name in pages}
        for _ in range(ROUNDS):
            for name, path in pages.items():
                tab = browser.new_page()
                tab.goto(path.as_uri())
                tab.wait_for_function("window.drawn !== undefined")
                times[name].append(tab.evaluate("window.drawn"))
                tab.close()
        print(f"charts: {CHARTS} of {LINES} lines with {POINTS} points, median of {ROUNDS}")
        for name, path in pages.items():
            print(f"  {name:<8} {path.stat().st_size / 1e3:7.0f} kB {median(times[name]):7.0f} ms")


def _ours(x: list[int], lines: list[list[float]]) -> str:
    series = json.dumps([{"name": f"rank {k}", "color": "#000", "x": x, "y": y} for k, y in enumerate(lines)])
    script = (HERE / "charts.js").read_text(encoding="utf-8")
    return f"""<script>{script}
    for (let k = 0; k < {CHARTS}; k++) {{
      const chart = new Chart(); document.body.append(chart.element); chart.draw({{ series: {series} }});
    }}
    {DONE}</script>"""


def _bokeh(x: list[int], lines: list[list[float]]) -> str:
    embed, plotting, layouts = (import_module(f"bokeh.{name}") for name in ("embed", "plotting", "layouts"))
    figures = []
    for _ in range(CHARTS):
        figure = plotting.figure(height=210, sizing_mode="stretch_width")
        for k, y in enumerate(lines):
            figure.line(x, y, legend_label=f"rank {k}")
        figures.append(figure)
    resources = import_module("bokeh.resources").INLINE
    script, division = embed.components(layouts.column(figures, sizing_mode="stretch_width"))
    code = "".join(f"<script>{text}</script>" for text in resources.js_raw[:1])
    ready = "Bokeh.documents[0]?.is_idle ? (() => { " + DONE + " })() : setTimeout(wait, 1)"
    return f"{code}{division}{script}<script>const wait = () => {{ {ready} }}; wait();</script>"


def _plotly(x: list[int], lines: list[list[float]]) -> str:
    code = import_module("plotly.offline").get_plotlyjs()
    traces = json.dumps([{"x": x, "y": y, "mode": "lines", "name": f"rank {k}"} for k, y in enumerate(lines)])
    return f"""<script>{code}</script><script>
    Promise.all([...Array({CHARTS})].map(() => {{
      const place = document.createElement("div"); document.body.append(place);
      return Plotly.newPlot(place, {traces}, {{ height: 210 }});
    }})).then(() => {{ {DONE} }});</script>"""

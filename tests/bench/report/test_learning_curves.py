"""Learning curves: two small plots for each mode, all on the same scales, and every word where it can be read."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from bench.base.mode_styles import mode_style
from bench.base.style import styled
from bench.report.drawing import small_plots
from bench.report.page import CellGroup, FigureBudget, Page
from bench.report.sections import curves
from bench.results.cells import cells
from tests.bench.report.test_figure_texts import drawn as measured
from tests.bench.report.test_page_settings import drawn, made

MODES = ("nccl_sync", "nccl_cadence", "cpu_async", "cpu_sync")
COLOURS = {mode_style(mode)[0]: mode for mode in MODES}


@pytest.fixture
def figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Figure:
    runs = [run for mode in ("solo", *MODES) for run in made(mode, 1 + (mode != "solo"))]
    page, figures = Page(tmp_path, tmp_path, tuple(cells(runs)), (), ()), drawn(monkeypatch)
    group = CellGroup(page, "title", page.cells[0].workload, list(page.cells), FigureBudget(9))
    with styled():
        curves._figure(2, group, list(page.cells))
    return figures[0]


def test_each_mode_has_two_plots_of_its_own_with_solo_in_grey(figure: Figure) -> None:
    assert len(figure.axes) == 2 * len(MODES)
    for axes in figure.axes:
        colours = [to_hex(line.get_color()) for line in axes.get_lines()]
        name = axes.texts[0].get_text()
        assert {COLOURS[colour] for colour in colours if colour in COLOURS} == {name.split(" ")[0]}
        assert colours.count(curves.REFERENCE) == colours.count(curves.GREY) == 1, "solo, and the others in one path"
        assert "solo" in [text.get_text() for text in axes.texts]
        assert axes.get_xlabel() in ("samples trained", "training seconds")
    for column in (0, 1):
        plots = figure.axes[column::2]
        assert len({(*axes.get_xlim(), *axes.get_ylim()) for axes in plots}) == 1, "scales are the same"


def away(word: Any, line: Any, renderer: Any) -> float:
    """How far a word is from a line, pixels."""
    box, path = word.get_window_extent(renderer), line.get_transform().transform(line.get_xydata())
    places = [a + (b - a) * k / 20 for a, b in pairwise(path) for k in range(21)]
    return min(math.hypot(max(box.x0 - x, x - box.x1, 0), (box.y0 + box.y1) / 2 - y) for x, y in places)


def test_words_of_a_plot_lie_in_its_plane_and_on_no_other(figure: Figure) -> None:
    with styled():
        renderer = measured(figure)
    for axes in figure.axes:
        boxes = [text.get_window_extent(renderer) for text in axes.texts]
        assert not any(a.overlaps(b) for a in boxes[2:] for b in boxes[2:] if a is not b)
        plane = axes.get_window_extent(renderer)
        lines = {to_hex(line.get_color()): line for line in axes.get_lines() if line.get_linestyle() == "-"}
        (own,) = (line for colour, line in lines.items() if colour in COLOURS)
        for word, line, other in zip(axes.texts[2:], (own, solo := lines[curves.REFERENCE]), (solo, own), strict=True):
            assert away(word, line, renderer) <= away(word, other, renderer) + 6, "it is not at the other line"
        assert all(plane.x0 - 3 < box.x0 and box.x1 < plane.x1 + 3 for box in boxes[2:])


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0, 86_240, False), (0.0117, 0.5, True), (0.03, 0.08, True), (1e-9, 10, True), (5, 5.1, True)],
)
def test_an_axis_has_a_few_round_ticks(low: float, high: float, log: bool) -> None:
    ticks = small_plots.marks(low, high, log)
    assert 2 <= len(ticks) <= small_plots.TICKS
    assert all(low <= tick <= high and math.isclose(tick, float(f"{tick:.4g}"), rel_tol=1e-9) for tick in ticks)

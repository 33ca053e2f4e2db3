"""Texts of figures: within them, and none on another."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench import report
from bench.base.drawing import Drawing
from bench.base.panels import Panels
from bench.base.style import put_title, styled
from bench.report import write_report
from bench.report.page_one.scaling_series import spanned
from tests.bench.streams import make_metrics, make_spec, write_run

LONG = "Quality: resnet_graph on noisy_digits (samples 10780), recipe quick (batch 64, epochs 4)"


def drawn(figure: Figure) -> Any:
    """Return what measures the texts of a figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return canvas.get_renderer()


def test_a_title_ends_within_its_figure() -> None:
    with styled():
        figure = Figure(figsize=(4.5, 2.0), layout="constrained")
        figure.subplots()
        put_title(figure, LONG)
        title: Any = figure._suptitle  # type: ignore[attr-defined]
        box = title.get_window_extent(drawn(figure))
    assert " ".join(title.get_text().split("\n")) == LONG
    assert box.x1 <= figure.bbox.width
    assert figure.get_figheight() > 2.0


def test_ticks_of_samples_lie_beside_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures: dict[str, Figure] = {}

    def keep(figure: Figure, path: Path) -> Drawing:
        figures[path.stem] = figure
        return Drawing(b"", "<svg/>", Panels())

    monkeypatch.setattr(report.page, "save", keep)
    for mode in ("solo", "nccl_sync"):
        spec = make_spec(mode)
        made = make_metrics(spec)
        reached = {"reached": True, "seconds": 15.0, "samples": 64700}
        write_run(tmp_path / "runs", spec, made.model_copy(update={"target": made.target.model_copy(update=reached)}))
    write_report(tmp_path / "runs", tmp_path / "out")
    with styled():
        renderer = drawn(figures["target-mlp"])
        labels = figures["target-mlp"].axes[0].get_xticklabels()
        boxes = [label.get_window_extent(renderer) for label in labels if label.get_text()]
    assert "60k" in [label.get_text() for label in labels]
    assert all(a.x1 < b.x0 for a, b in pairwise(boxes))


def test_a_line_of_speed_breaks_where_a_number_of_ranks_was_not_trained() -> None:
    assert spanned([1, 4], [1, 2, 4, 8]) == [1, 2, 4]
    assert spanned([4, 2], [1, 2, 4, 8]) == [2, 4]

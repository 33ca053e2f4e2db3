"""The dashboard's page of chosen runs: its width, and what it says of sweeps. In a browser, without a process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page

from bench.dashboard import page as pages
from bench.dashboard.board import whole
from bench.results.runfolder import METRICS
from tests.bench.streams import make_metrics, make_spec, write_run
from tests.browser import browser  # noqa: F401
from tests.browser import page as tab  # noqa: F401
from tests.slow import slow


@pytest.mark.parametrize("width", [*slow(1280), 390])
def test_long_words_and_huge_numbers_make_the_page_no_wider(tab: Page, tmp_path: Path, width: int) -> None:  # noqa: F811
    spec = make_spec()
    metrics = json.loads(make_metrics(spec).model_dump_json())
    metrics |= {"warnings": ["x" * 5000], "model": "m" * 300, "run_id": "r" * 300, "error": "e" * 3000}
    metrics["final"] |= {"train_loss": 1e308, "eval": -1e308}
    metrics["throughput"]["samples_per_s"] = 1e300
    metrics["time_s"]["total"] = 1e300
    (write_run(tmp_path / "runs", spec) / METRICS).write_text(json.dumps(metrics))
    (tmp_path / "it.html").write_text(pages.exported(whole(tmp_path / "runs"), tmp_path / ("root" * 90)))
    tab.set_viewport_size({"width": width, "height": 800})
    tab.goto((tmp_path / "it.html").as_uri())
    assert "x" * 5000 in tab.inner_text("#detail .notes")
    for element in ("document.documentElement", "document.getElementById('runs')"):
        assert tab.evaluate(f"{element}.scrollWidth - {element}.clientWidth") <= 0


@pytest.mark.parametrize(
    ("left", "seconds", "words"),
    [
        ([180.0, 30.0], 60.0, "2 running · about 5 min left"),
        ([None, None], 60.0, "2 running · about 4 min left"),
        ([60.0], 60.0, "1 running · about 4 min left"),
        ([], 60.0, "about 4 min left"),
        ([180.0, 30.0], None, "2 running"),
    ],
)
def test_runs_of_a_sweep_side_by_side_are_all_counted(
    tab: Page,  # noqa: F811
    tmp_path: Path,
    left: list[float | None],
    seconds: float | None,
    words: str,
) -> None:
    """One was, and the others were counted as not begun."""
    (tmp_path / "it.html").write_text(pages.exported(whole(tmp_path), tmp_path))
    tab.goto((tmp_path / "it.html").as_uri())
    rows = [{"status": "running", "left_s": each, "progress": 0.5} for each in left]
    plan = {"planned": 6, "over": 2, "seconds": seconds}
    said = tab.evaluate("([rows, plan]) => planned(rows, plan)[1].textContent", [rows, plan])
    assert said == f"sweep: 2 of 6 planned runs are over · {words}"

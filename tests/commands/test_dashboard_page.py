"""The dashboard in a browser, beside a job of two ranks of which one is killed."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from bench.dashboard import page as pages
from bench.dashboard.board import whole
from bench.results.runfolder import CONFIG, EVENTS
from tests.bench.dashboard.dashboards import HOSTILE, begin, serving, until
from tests.bench.streams import lines, make_metrics, make_records, make_spec, write_run
from tests.browser import browser  # noqa: F401
from tests.browser import page as tab  # noqa: F401
from tests.warm import PICTURES, Warm

JOB = (
    *("-m", "bench", "model=mlp", "mode=nccl_cadence", "cluster.speeds=[1.0,0.5]", "cluster.faults=[1@150:crash]"),
    *("train.epochs=400", "report=false", "validate=false"),
)
PATHS = "[...document.querySelectorAll('#detail .chart path')].map((path) => path.getAttribute('d').length)"


def watch(tab: Page) -> tuple[list[str], list[str]]:  # noqa: F811
    """What goes wrong on the page, and where its requests go."""
    wrong: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    tab.on("pageerror", lambda error: wrong.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    return wrong, asked


def lost_at(runs: Path) -> float:
    """When the record of a lost rank was written, on the monotonic clock."""
    (path,) = runs.rglob(EVENTS)
    return next(json.loads(line)["at"] for line in path.read_text().splitlines() if '"type":"Lost"' in line)


def test_a_job_is_watched_a_killed_rank_shows_and_a_server_may_come_back(
    tab: Page,  # noqa: F811
    warm: Warm,
    tmp_path: Path,
) -> None:
    runs = tmp_path / "runs"
    wrong, asked = watch(tab)
    with ExitStack() as stack:
        with serving(runs) as port:
            tab.goto(f"http://127.0.0.1:{port}/")
            assert "no runs here yet" in tab.inner_text("#detail")
            job = warm.start(tmp_path, *JOB, env={PICTURES: "none"})
            stack.callback(job.kill_all)
            tab.wait_for_selector("#runs .chip.running", timeout=60_000)
            until(lambda: max(tab.evaluate(PATHS), default=0) > 100, 60)  # the page lets nobody evaluate in it
            before = tab.evaluate(PATHS)
            until(lambda: tab.evaluate(PATHS) != before)
            tab.wait_for_selector(".faults li", timeout=60_000)
            assert time.monotonic() - lost_at(runs) < 15.0  # not at its end; how soon is a benchmark's to say
            assert "rank 1" in tab.inner_text(".faults li")
            assert "lost" in tab.inner_text("tr[data-rank='1']")
            for name in ("Batch share", "Step time", "Memory", "Processor", "epochs"):
                tab.get_by_role("tab", name=name).click()
            assert tab.locator(".graph rect").count() == 4
            assert "cluster.speeds" in tab.inner_text(".config")
            assert wrong == []
        # Without its server the page stays, and says so; another server on the same port sends it everything anew.
        tab.wait_for_selector("#link.off")
        assert "rank 1" in tab.inner_text(".faults li")
    with serving(runs, port):
        tab.wait_for_selector("#link.live")
        tab.wait_for_selector("#runs .chip.left")
        assert "process gone" in tab.inner_text("#detail")
        until(lambda: tab.locator("#runs li").count() == 1)  # drawn with the next frame
    assert until(lambda: asked)
    assert all(url.startswith(f"http://127.0.0.1:{port}/") for url in asked)


def test_an_exported_page_compares_runs_without_a_server(tab: Page, tmp_path: Path) -> None:  # noqa: F811
    for seed in (0, 1):
        write_run(tmp_path / "runs", make_spec(seed=seed))
    writer = begin(tmp_path / "runs", "w2-s9-bad")
    (writer.path / CONFIG).write_text(json.dumps({"model": HOSTILE, "run_id": HOSTILE, HOSTILE: HOSTILE}))
    many = tmp_path / "runs" / "mlp" / "nccl_cadence" / "w2-s8-many"
    many.mkdir()
    (many / CONFIG).write_text(json.dumps({"model": "mlp", "world_size": 2_000_000_000}))
    out = tmp_path / "it.html"
    out.write_text(pages.exported(whole(tmp_path / "runs"), tmp_path / "runs"), encoding="utf-8")
    wrong, asked = watch(tab)
    dialogs: list[Any] = []
    tab.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    tab.goto(out.as_uri())
    tab.locator("#runs li input").nth(0).check()
    tab.locator("#runs li input").nth(1).check()
    tab.wait_for_selector("h2:text('Comparison')")
    assert tab.locator("#detail .chart svg[role=img]").count() == 3
    assert tab.locator("#detail table >> nth=0").locator("tbody tr").count() in (2, 3)
    tab.get_by_role("button", name=HOSTILE).click()
    assert HOSTILE in tab.inner_text("#detail")
    assert tab.inner_text("#runs .problem") == "world_size=2e+09: no run has more than 4096 ranks"
    tab.fill("#filter", "w2-s1")
    until(lambda: tab.locator("#runs li").count() == 1)  # drawn with the next frame
    for width in (1280, 390):
        tab.set_viewport_size({"width": width, "height": 800})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (wrong, dialogs) == ([], [])
    assert asked == [out.as_uri()]


@pytest.mark.slow
def test_an_axis_of_time_begins_at_the_launch(tab: Page, tmp_path: Path) -> None:  # noqa: F811
    """A run that is over at once has one point in each chart."""
    spec = make_spec(epochs=1)
    write_run(tmp_path / "runs", spec, make_metrics(spec, records := make_records(spec, windows=1, steps=1)))
    (path,) = (tmp_path / "runs").rglob(EVENTS)
    path.write_bytes(b"".join(line + b"\n" for line in lines(records)))
    out = tmp_path / "it.html"
    out.write_text(pages.exported(whole(tmp_path / "runs"), tmp_path / "runs"), encoding="utf-8")
    tab.goto(out.as_uri())
    tab.wait_for_selector("#detail .chart svg", timeout=5000)
    marks = tab.evaluate("[...document.querySelectorAll('#detail .chart svg text')].map((text) => text.textContent)")
    assert marks
    assert not [mark for mark in marks if mark.startswith(("-", "−"))]

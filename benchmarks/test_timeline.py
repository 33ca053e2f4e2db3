"""The timeline of 80,000 spans: the time to write each of its files, and the size of the page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.results.analysis.idle import gaps
from bench.results.analysis.stream import sort
from bench.results.analysis.timeline import timeline
from bench.timeline import draw
from bench.timeline.html import page
from bench.timeline.lanes import make_trace
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec

SPEC = make_spec("nccl_sync", 8, epochs=7)


@pytest.fixture(scope="module")
def run() -> tuple[Any, ...]:
    records = make_records(SPEC, windows=32, steps=6)
    stream = sort(records, LAUNCHED)
    idle = gaps(stream)
    trace = make_trace(stream, SPEC, LAUNCHED, idle)
    spans = sum(map(len, trace.lanes().values()))
    assert 78_000 < spans < 82_000
    return records, stream, idle, trace


def test_json(benchmark: Any, run: tuple[Any, ...], tmp_path: Path) -> None:
    """From the sorted records to the file."""
    _, stream, idle, _ = run

    def write() -> None:
        (tmp_path / "timeline.json").write_bytes(make_trace(stream, SPEC, LAUNCHED, idle).to_json())

    benchmark.pedantic(write, rounds=7, warmup_rounds=1)


def test_html(benchmark: Any, run: tuple[Any, ...]) -> None:
    _, _, idle, trace = run
    text = benchmark.pedantic(page, (trace, SPEC, idle), rounds=7, warmup_rounds=1)
    benchmark.extra_info["bytes"] = len(text.encode())


def test_png(benchmark: Any, run: tuple[Any, ...], tmp_path: Path) -> None:
    _, stream, _, _ = run
    benchmark.pedantic(draw, (stream, SPEC, tmp_path / "timeline.png"), rounds=5, warmup_rounds=1)


def test_analysis(benchmark: Any, run: tuple[Any, ...]) -> None:
    """What `metrics.json` says under `timeline`."""
    records, stream, _, _ = run
    metrics = make_metrics(SPEC, records)
    benchmark.pedantic(timeline, (stream, metrics, {}), rounds=5, warmup_rounds=1)

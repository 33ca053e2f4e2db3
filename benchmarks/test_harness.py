"""The harness's own cost: analysing a long run, drawing its timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.timeline import write_timeline
from ddp.core.messages import events
from tests.bench.streams import LAUNCHED, make_metrics, make_records, make_spec


def test_analysis_of_100k_slices(benchmark: Any) -> None:
    spec = make_spec("nccl_sync", 4, epochs=10)
    records = make_records(spec, windows=100)
    assert sum(isinstance(record, events.Slice) for record in records) > 90_000
    benchmark(make_metrics, spec, records)


def test_timeline_of_100k_slices(benchmark: Any, tmp_path: Path) -> None:
    spec = make_spec("nccl_sync", 4, epochs=10)
    records = make_records(spec, windows=100)
    benchmark.pedantic(write_timeline, (tmp_path, records, spec, LAUNCHED), rounds=2)

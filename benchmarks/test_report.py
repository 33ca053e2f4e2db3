"""A report over a thousand generated run folders: seconds, and peak memory. `make bench ARGS=benchmarks/test_report.py`."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from tests.bench.generated import plant

RUNS = 1000
MOST_S = 20.0
MOST_BYTES = 1e9
CODE = "import sys; from bench.cli import dispatch; sys.exit(dispatch(sys.argv[1:]))"


@pytest.mark.timeout(600)
def test_a_thousand_runs(benchmark: BenchmarkFixture, tmp_path: Path) -> None:
    """The whole command in a process of its own, start included."""
    plant(tmp_path / "runs", RUNS)
    command = [sys.executable, "-c", CODE, "report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    benchmark.pedantic(lambda: subprocess.run(command, check=True, capture_output=True), rounds=3, iterations=1)
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    html = (tmp_path / "out" / "report.html").stat().st_size
    benchmark.extra_info.update(runs=RUNS, peak_bytes=peak, html_bytes=html)
    print(f"\n{RUNS} runs: {benchmark.stats.stats.median:.1f} s, peak {peak / 1e6:.0f} MB, page {html / 1e6:.1f} MB")
    assert peak < MOST_BYTES
    assert benchmark.stats.stats.min < MOST_S

"""The cost of a report over one to a thousand generated run folders: core seconds and peak memory."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.bench.report.generated import plant

ROUNDS = 2
MOST_S = {1: 1.5, 200: 8.0, 1000: 20.0}
"""Runs -> seconds of a core of a free machine."""
MOST_BYTES = 1e9
CODE = """
import re, sys
from pathlib import Path
from bench.command.cli import dispatch
code = dispatch(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1], file=sys.stderr)
sys.exit(code)
"""
"""Its last word is its own peak, in kB: what `getrusage` says of a child begins with the memory of whoever started it."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("runs", MOST_S)
def test_seconds_of_a_core(benchmark: Any, tmp_path: Path, runs: int) -> None:
    """The whole command in a process of its own, start included."""
    plant(tmp_path / "runs", runs)
    command = [sys.executable, "-c", CODE, "report", str(tmp_path / "runs"), "--out", str(tmp_path / "out")]
    before = _spent()
    done = benchmark.pedantic(
        lambda: subprocess.run(command, check=True, capture_output=True, text=True), rounds=ROUNDS, iterations=1
    )
    cpu_s = (_spent() - before) / ROUNDS
    peak = int(done.stderr.split()[-1]) * 1024
    html = (tmp_path / "out" / "report.html").stat().st_size
    benchmark.extra_info.update(runs=runs, cpu_s=cpu_s, peak_bytes=peak, html_bytes=html)
    print(f"\n{runs} runs: {cpu_s:.1f} s of a core, peak {peak / 1e6:.0f} MB, page {html / 1e6:.1f} MB")
    assert peak < MOST_BYTES
    assert cpu_s < MOST_S[runs], "it has one thread, so on a free core this is how long it takes"


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

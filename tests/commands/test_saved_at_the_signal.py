"""SIGTERM for a scheduler's command: a checkpoint that was not due, then the end, and the run goes on from it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.base.interrupts import SAVE
from bench.results.runfolder import find_runs
from tests.warm import PICTURES, Warm, wait_for

WORDS = ("model=mlp", "checkpoint.spacing_s=1000", "report=false", "validate=false", "audit=false")


@pytest.mark.parametrize("mode", ["solo", "nccl_cadence"])
def test_a_checkpoint_is_made_at_the_signal(warm: Warm, tmp_path: Path, mode: str) -> None:
    words = ("-m", "bench", *WORDS, f"mode={mode}", "train.epochs=60")
    process = warm.start(tmp_path, *words, env={PICTURES: "none", SAVE: "60", "BENCH_VERBOSITY": "3"})
    try:
        logs = tmp_path.glob("runs/*/*/.tmp-*/training.log")
        wait_for(lambda: [log for log in [*logs] if "epoch" in log.read_text()], process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill_all()
    (run,), _ = find_runs(tmp_path)
    assert run.metrics.status == "killed"
    (saved,) = (run.path / "checkpoints").glob("0*")
    assert saved.is_dir()
    code, out, err = warm.start(tmp_path, "-m", "bench", f"resume={run.path}", env={PICTURES: "none"}).result(100)
    assert (code, err) == (0, "")
    (run,), _ = find_runs(tmp_path)
    assert (run.metrics.status, len(run.metrics.epochs)) == ("ok", 60)
    assert run.metrics.resumed is not None
    assert run.metrics.resumed.samples > 0

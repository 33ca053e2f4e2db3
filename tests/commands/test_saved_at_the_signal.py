"""SIGTERM for a scheduler's command: a checkpoint that was not due, then the end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bench.base.interrupts import SAVE
from bench.results.runfolder import find_runs, read_records
from bench.runner.resume import ResumeSource, locate
from ddp.core.messages.events import Ending
from tests.warm import PICTURES, Warm, wait_for

WORDS = ("model=mlp", "data.name=digits", "checkpoint.spacing_s=1000", "report=false", "validate=false", "audit=false")


def logs(folder: Path) -> list[Path]:
    return [*folder.glob("runs/*/*/.tmp-*/training.log")]


@pytest.mark.parametrize("mode", ["solo", "nccl_cadence", "nccl_sync", "graph_sync"])
def test_a_checkpoint_is_made_at_the_signal(warm: Warm, tmp_path: Path, mode: str) -> None:
    words = ("-m", "bench", *WORDS, f"mode={mode}", "train.epochs=900")
    process = warm.start(tmp_path, *words, env={PICTURES: "none", SAVE: "60"})
    try:
        wait_for(lambda: [each for each in logs(tmp_path) if "loss" in each.read_text()], process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait(60) == 130
    finally:
        process.kill_all()
    (run,), _ = find_runs(tmp_path)
    assert run.metrics.status == "killed"
    (saved,) = (run.path / "checkpoints").glob("0*")
    source = locate(run.path)
    assert isinstance(source, ResumeSource)
    assert source.checkpoint.path == saved
    assert source.checkpoint.coordinator.samples > 0
    assert sum(isinstance(record, Ending) for record in read_records(run.path)) == 1

"""Some cells on real processes: as documented, and what did not happen is found out. `make faults` plays all."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from bench.faults import processes
from bench.faults.meaning import FaultCell, FaultOutcome
from ddp.core.settings.faults import PhaseFault
from ddp.replica.task import Job
from tests.runtime.conftest import ranks_alive
from tests.slow import slow

PLAYED = [
    FaultCell("crash", "collective", "two", "nccl_sync"),
    FaultCell("raise", "evaluation", "two", "nccl_cadence"),
    FaultCell("pause", "step", "all", "nccl_async"),
    FaultCell("slow", "first window", "first", "cpu_cadence"),
    FaultCell("lost message", "end", "first", "nccl_cadence"),
    FaultCell("disk full", "checkpoint", "two", "nccl_cadence"),
    FaultCell("corrupt checkpoint", "checkpoint", "last", "zero1"),
    FaultCell("stop", "step", "last", "zero2"),
    FaultCell("crash", "collective", "first", "torch_ddp"),
    FaultCell("pause", "end", "all", "graph_cadence"),
    FaultCell("raise", "step", "all", "solo"),
    *slow(
        FaultCell("coordinator killed", "checkpoint", "all", "cpu_sync"),
        FaultCell("crash", "start", "last", "nccl_sync"),
        FaultCell("crash", "snapshot", "first", "cpu_async"),
        FaultCell("slow", "step", "two", "torch_zero1"),
        FaultCell("crash", "evaluation", "all", "graph_sync"),
    ),
]


@pytest.mark.parametrize("cell", PLAYED, ids=str)
def test_cells_are_as_documented(cell: FaultCell) -> None:
    result = processes.play(cell, 3)
    assert result.verdict == "as documented", result
    assert ranks_alive() == []
    if result.outcome is FaultOutcome.RESUMED:
        assert result.missing == 0
        known = cell.kind == "corrupt checkpoint"  # a killed coordinator takes its records with it
        assert result.repeated if known else result.repeated is None, "the last checkpoint was lost"


def test_a_checkpoint_is_corrupted_that_lacks_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the chosen rank failed before the others, they saved without it. That ended the campaign: "No such file"."""
    real = processes.job_of

    def earlier(cell: FaultCell, size: int, folder: Path) -> Job:
        job = real(cell, size, folder)
        faults = (replace(fault, after=1) if fault.rank == 2 else fault for fault in job.phase_faults)
        return replace(job, phase_faults=tuple(faults))

    monkeypatch.setattr(processes, "job_of", earlier)
    result = processes.play(FaultCell("corrupt checkpoint", "checkpoint", "last", "nccl_cadence"), 3)
    assert result.verdict == "as documented", result
    assert (result.outcome, result.missing) == (FaultOutcome.RESUMED, 0)


def test_a_fault_that_did_not_happen_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = processes.job_of

    def spared(cell: FaultCell, size: int, folder: Path) -> Job:
        return replace(real(cell, size, folder), phase_faults=())

    monkeypatch.setattr(processes, "job_of", spared)
    result = processes.play(FaultCell("pause", "step", "first", "nccl_cadence"), 2)
    assert (result.outcome, result.verdict) == (FaultOutcome.UNHURT, "the fault did not happen")


def test_no_phase_or_kind_of_that_name() -> None:
    with pytest.raises(ValueError, match="no such kind or phase"):
        PhaseFault(0, "lunch", "crash")


def test_a_process_that_outlives_its_coordinator_is_no_documented_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written down as what happened, and a rank that ended between two looks ended the campaign."""
    monkeypatch.setattr(processes, "DEADLINE_S", 0.1)
    gone = psutil.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert processes._outlived_s({psutil.Process(), gone})[1] == [os.getpid()]
    assert processes._outlived_s({gone}) == (pytest.approx(0.0, abs=0.1), [])


def test_all_processes_of_a_killed_coordinator_are_looked_for() -> None:
    """Only rank 0 was, which had killed it."""
    below: set[psutil.Process] = set()
    coordinator = multiprocessing.get_context("spawn").Process(target=_start_and_be_killed)
    coordinator.start()
    processes._followed(coordinator, below)
    assert coordinator.exitcode == -signal.SIGKILL
    (left,) = below
    assert left.is_running()
    left.kill()
    assert processes._outlived_s(below)[1] == []


def _start_and_be_killed() -> None:
    subprocess.Popen(["sleep", "60"])
    time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGKILL)

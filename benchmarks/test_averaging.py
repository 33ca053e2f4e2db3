"""Compares the averaging of snapshots with copies of memory, interleaved in one run: ratios with their spread.

Memory is mapped from files, as in a run. Averaging W snapshots counts as W reads and a write of the model, a copy as one of
each. A whole round also writes W differences, which ranks would otherwise have to compute.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.backends.snapshot import _open
from ddp.replica.memory.weighted_mean import average

ELEMENTS = 10_000_000
TRIALS = 21


def _seconds(work: Callable[[], object]) -> float:
    """Of this thread's own time on a core: both sides run on one thread, and other programs do not count."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


def _ratios(work: Callable[[], object], copies: float, copy: Callable[[], object]) -> list[float]:
    """Bandwidth of `work`, which moves as much as so many copies, over that of the copies before and after it."""
    ratios, before = [], _seconds(copy)
    for _ in range(TRIALS):
        spent, after = _seconds(work), _seconds(copy)
        ratios.append(copies * (before + after) / 2 / spent)
        before = after
    return sorted(ratios)


@pytest.fixture
def memory(tmp_path: Path) -> Callable[[str], Tensor]:
    torch.set_num_threads(1)
    return lambda name: _open(tmp_path, name, torch.float32, ELEMENTS).normal_()


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("stage", ["average", "round"])
def test_averaging_against_copying(
    benchmark: Any, memory: Callable[[str], Tensor], stage: str, world: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """At least 0.8 of the copy's bandwidth for the average alone."""
    replicas, mean = [memory(f"snapshot-{rank}") for rank in range(world)], memory("average")
    source, target = memory("source"), memory("target")
    weights = tuple(float(3 + 2 * rank) for rank in range(world))
    blend = 1.0 if stage == "round" else None

    def work() -> object:
        return average(mean, replicas, weights, blend=blend)

    work()
    moved = world + 1 if stage == "average" else 2 * world + 1
    ratios = _ratios(work, moved / 2, lambda: target.copy_(source))
    low, middle, high = ratios[len(ratios) // 4], statistics.median(ratios), ratios[-1 - len(ratios) // 4]
    benchmark.extra_info |= {"ratio_p25": low, "ratio_p50": middle, "ratio_p75": high}
    benchmark.pedantic(work, rounds=5)
    with capsys.disabled():
        print(f"\n{stage} of {world} snapshots: {middle:.2f} of a copy's bandwidth ({low:.2f} to {high:.2f})")
    if stage == "average":
        assert middle >= 0.8

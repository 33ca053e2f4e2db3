"""The shared-memory all-reduce against gloo's and against a copy: ratios from pairs in the same ranks, several launches.

A copy of S bytes reads and writes S bytes. In an all-reduce of S bytes, each of two ranks reads 2 x S/2 and writes 2 x
S/2 bytes, as much as one copy. So a ratio of one means that a rank reduces as fast as it copies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.ranks import gather
from benchmarks.reducing import SIZES, measure
from ddp.process.scratch import scratch

LAUNCHES, TURNS, WORLD = 3, 5, 2


def launch(folder: Path) -> torch.Tensor:
    """Of each turn the slower rank's seconds."""
    return torch.stack(gather(folder, measure, [(rank, WORLD, TURNS) for rank in range(WORLD)])).amax(0)


def test_all_reduce_against_gloo_and_copying(benchmark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """At least 8 times as fast as gloo up to 64 kB, twice from 1 to 40 MB, in the median of all pairs."""
    launches = []

    def once() -> None:
        with scratch() as folder:
            launches.append(launch(folder))

    benchmark.pedantic(once, rounds=LAUNCHES)
    found = torch.stack(launches)  # [launches, turns, sizes, 3]
    pairs = (found[..., 1] / found[..., 0]).flatten(0, 1).sort(0).values
    worst = (found[..., 1] / found[..., 0]).median(1).values.amin(0)
    share = (found[..., 2] / found[..., 0]).flatten(0, 1).median(0).values
    middle = found.flatten(0, 1).median(0).values * 1e6
    quarter = len(pairs) // 4
    with capsys.disabled():
        print("\n    bytes   memory us     gloo us   gloo/memory (quartiles; worst launch)   of a copy's bandwidth")
        for at, size in enumerate(SIZES):
            low, half, high = (float(pairs[each, at]) for each in (quarter, len(pairs) // 2, -1 - quarter))
            ratio = f"{half:6.1f} ({low:.1f} to {high:.1f}; {worst[at]:.1f})"
            print(f"{size:9d}   {middle[at, 0]:9.1f}   {middle[at, 1]:9.1f}   {ratio:38s}   {share[at]:.2f}")
    for at, size in enumerate(SIZES):
        assert pairs[len(pairs) // 2, at] >= (8 if size <= 1 << 16 else 2), size

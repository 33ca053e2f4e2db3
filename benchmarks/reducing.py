"""Times the all-reduces of two transports and a copy in the same ranks, in turns, for `test_transports`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.ranks import lay_down
from ddp.comm.transports.base import MEAN, Transport, TransportConfig
from ddp.comm.transports.choice import choose

SIZES = (4, 1 << 10, 1 << 14, 1 << 16, 1 << 20, 4 << 20, 16 << 20, 40 << 20)
"""Bytes."""
NAMES = ("memory", "gloo")


def times(size: int) -> int:
    """Reductions in a turn: some milliseconds' worth."""
    return max(2, min(60, (8 << 20) // size))


def seconds(work: Callable[[], object], count: int) -> float:
    """The median of single calls: a rank that is not on a core for a while spoils few of them."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return sorted(found)[count // 2]


def measure(folder: Path, rank: int, world: int, turns: int) -> None:
    """[turns, sizes, (memory, gloo, copy)] seconds, in `folder/reduce-<rank>.pt`."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    transports: list[Transport] = []
    for name in NAMES:
        transports.append(choose(name, TransportConfig(folder, rank, world, torch.device("cpu"), 60.0)))
    while not all((folder / f"alive-{each}").exists() for each in range(world)):
        time.sleep(0.001)
    for transport in transports:
        transport.join(range(world), 0)
    tensors = [[t.empty(f"size{size}", size // 4, torch.float32).fill_(1.0) for size in SIZES] for t in transports]
    copies = [torch.ones(size // 4) for size in SIZES]
    found = torch.zeros(turns, len(SIZES), len(NAMES) + 1)
    for turn in range(turns):
        for at, size in enumerate(SIZES):
            for which, transport in enumerate(transports):
                tensor = tensors[which][at]
                transport.all_reduce(tensor, MEAN)  # ranks are there
                found[turn, at, which] = seconds(lambda: transport.all_reduce(tensor), times(size))  # noqa: B023
                tensor.fill_(1.0)
            found[turn, at, -1] = seconds(lambda: copies[at].copy_(tensors[0][at]), times(size))  # noqa: B023
    lay_down(folder, rank, found)
    transports[1].all_reduce(torch.zeros(1))
    for transport in transports:
        transport.close()

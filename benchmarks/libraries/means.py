"""Loops that Numba compiles against operations of torch, in blocks that stay in the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.libraries.compare import Work, compare
from ddp.backends.snapshot import _open
from ddp.replica.memory.weighted_mean import _shares, average


def averaging() -> None:
    """Average and sum of squares of W snapshots of 10 million float32 values: compiled, and by torch in blocks."""
    elements = 10_000_000
    with tempfile.TemporaryDirectory() as folder:
        memory = [_open(Path(folder), f"{number}", torch.float32, elements).normal_() for number in range(11)]
        mean, source, target, *snapshots = memory
        for world in (2, 4, 8):
            chosen, weights = snapshots[:world], [3.0 + 2 * rank for rank in range(world)]
            works: dict[str, Work] = {
                "compiled by Numba": lambda chosen=chosen, weights=weights: average(mean, chosen, weights),
                "one copy": lambda: target.copy_(source),
            }
            for bits in (14, 16, 17, 18):
                for kind in (_exact, _lerp):
                    works[f"torch, {kind.__doc__}, 2^{bits}"] = (
                        lambda kind=kind, bits=bits, chosen=chosen, weights=weights: _blocks(
                            kind, mean, chosen, weights, 1 << bits
                        )
                    )
            compare(f"averaging {world} snapshots; bandwidth of a copy: ({world} + 1) / 2 copies", works, trials=7)


def _exact(mean: Tensor, value: Tensor, share: float, out: Tensor, apart: Tensor) -> None:
    """same bits"""
    torch.sub(value, mean, out=apart)
    torch.add(mean, apart.mul_(share), out=out)


def _lerp(mean: Tensor, value: Tensor, share: float, out: Tensor, apart: Tensor) -> None:
    """lerp, other bits"""
    torch.lerp(mean, value, share, out=out)


def _blocks(
    kind: Callable[..., None], mean: Tensor, snapshots: Sequence[Tensor], weights: list[float], size: int
) -> float:
    shares, apart, squares = _shares(weights), torch.empty(size), 0.0
    for into, *values in zip(mean.split(size), *(flat.split(size) for flat in snapshots), strict=True):
        running = values[0]
        for value, share in zip(values[1:], shares[1:], strict=True):
            kind(running, value, share, into, apart[: len(into)])
            running = into
        squares += float(torch.dot(into, into))
    return squares

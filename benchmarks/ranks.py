"""Starts ranks that measure something, and collects their results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ddp.process import forkserver


def gather(folder: Path, measure: Callable[..., None], ranks: list[tuple[Any, ...]], limit_s: float = 400) -> list[Any]:
    """Run `measure(folder, *arguments)` in a process for each entry of `ranks`; what each laid down, in this order.

    A process lays down its result with `lay_down`. AssertionError if one fails, or is not done after `limit_s`.
    """
    processes = [
        forkserver.warm().Process(target=measure, args=(folder, *arguments), daemon=True) for arguments in ranks
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(limit_s)
        assert process.exitcode == 0, f"a rank ended with {process.exitcode}"
    return [torch.load(folder / f"found-{rank}.pt") for rank in range(len(ranks))]


def lay_down(folder: Path, rank: int, found: Any) -> None:
    """The result of `rank`: tensors, numbers, dictionaries of them."""
    torch.save(found, folder / f"found-{rank}.pt")

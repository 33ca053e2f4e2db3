"""What tests of the trainer compare."""

from __future__ import annotations

from typing import Any

import torch

from ddp import EpochMetrics, RunHandle

WORLDS = [1, 2]


def all_metrics(handle: RunHandle) -> list[EpochMetrics]:
    return list(iter(handle.next_metrics, None))


def equal(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)

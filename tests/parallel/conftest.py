"""Ranks as threads of one process, each with a group of its own in shared memory: real collectives in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from ddp.parallel.group import Group, make
from tests.threads import in_threads, sound

Act = Callable[[Group], Any]
Together = Callable[..., list[Any]]


def run_together(world: int, act: Act, timeout_s: float = 20.0) -> list[Any]:
    """What `act` returned on every rank, or the exception that it raised."""
    store = HashStore()

    def rank(number: int) -> Any:
        with closing(make(number, world, torch.device("cpu"), store, "memory", timeout_s)) as group:
            return act(group)

    return in_threads(world, rank)


@pytest.fixture
def together() -> Together:
    return lambda world, act, **more: sound(run_together(world, act, **more))

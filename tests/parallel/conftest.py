"""Ranks as threads of one process, each with a group of its own in shared memory: real collectives in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed import HashStore

from ddp.parallel.group import Group, make

Act = Callable[[Group], Any]
Together = Callable[..., list[Any]]


def run_together(world: int, act: Act, timeout_s: float = 20.0) -> list[Any]:
    """What `act` returned on every rank, or the exception that it raised."""
    store, results = HashStore(), [None] * world

    def rank(number: int) -> None:
        group = None
        torch.set_num_threads(1)  # it is a thread's own
        try:
            group = make(number, world, torch.device("cpu"), store, "memory", timeout_s)
            results[number] = act(group)
        except Exception as error:
            results[number] = error
        finally:
            if group is not None:
                group.close()

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def sound(results: list[Any]) -> list[Any]:
    for result in results:
        if isinstance(result, Exception):
            raise result
    return results


@pytest.fixture
def together() -> Together:
    return lambda world, act, **more: sound(run_together(world, act, **more))

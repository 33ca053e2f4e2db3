"""The engine `graph` with an epoch callback: what it draws is its own, the same on all replicas, and not the model's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from ddp.graph.serialized_rng import SerializedRng
from ddp.replica.handle import WorkerHandle
from tests.graph.test_engine import even, play, with_dropout
from tests.runtime import toy
from tests.runtime.conftest import Played
from tests.slow import few

__all__ = ["even", "play"]  # fixtures

WINDOWS = {"anchor": 2, "max_anchor": 2, "partition_ratios": (0.6, 0.4)}


def quiet(epoch: int, worker: WorkerHandle) -> None:
    """Does nothing, least of all with random numbers."""


def anew(epoch: int, worker: WorkerHandle) -> None:
    """Draws in two parts, with time for another replica between them."""
    model = worker.model
    assert isinstance(model, nn.Sequential)
    for layer in model:
        if isinstance(layer, nn.Linear):
            layer.reset_parameters()
            time.sleep(0.01)


@pytest.mark.parametrize(("policy", "callback"), few(["sync", "cadence"], [quiet, anew]))
def test_a_callback_makes_no_model_draw(
    play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch, policy: str, callback: Any
) -> None:
    """Warnings are errors here: that the model had begun to draw is one."""
    made: list[SerializedRng] = []
    monkeypatch.setattr(
        "ddp.graph.engine.SerializedRng", lambda devices: made.append(SerializedRng(devices)) or made[0]
    )
    play(policy, lambda: replace(toy.task(), epoch_callback=callback), epochs=3)
    assert [turns.taken for turns in made] == [False]


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_what_a_callback_draws_is_the_same_on_all_replicas(
    play: Callable[..., Played], even: None, policy: str
) -> None:
    options = {} if policy == "sync" else WINDOWS
    runs = [
        play(policy, lambda: replace(toy.task(), epoch_callback=anew), epochs=3, options=options, parallel=parallel)
        for parallel in (True, False)
    ]
    assert len(set.union(*(run.digests for run in runs))) == 1
    assert all(len(run.digests) == 1 for run in runs)


def test_a_model_that_draws_draws_the_same_beside_a_callback(play: Callable[..., Played], even: None) -> None:
    plain, called = (play("sync", lambda c=c: replace(with_dropout(), epoch_callback=c)) for c in (None, quiet))
    assert plain.digests == called.digests


def told(epoch: int, worker: WorkerHandle) -> None:
    calls = worker.model.calls
    assert isinstance(calls, torch.Tensor)
    assert int(calls[0]) == epoch
    calls[0] += 1


class Called(nn.Linear):
    def __init__(self) -> None:
        super().__init__(6, 2)
        self.register_buffer("calls", torch.zeros(1, dtype=torch.int64))


def test_it_is_called_once_an_epoch(play: Callable[..., Played]) -> None:
    played = play("sync", lambda: replace(toy.task(), model=Called, epoch_callback=told), epochs=3)
    assert int(played.state()["calls"][0]) == 3

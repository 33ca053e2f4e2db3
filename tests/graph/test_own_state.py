"""The engine `graph`, and a user's objects with state: each replica has its own, as ranks in processes have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from ddp.data.source import TensorSource
from ddp.engine import elche
from ddp.engine.own_tasks import LARGE
from ddp.graph import engine
from ddp.replica.handle import WorkerHandle
from ddp.replica.task import Task
from tests.graph.test_engine import even, play
from tests.runtime import toy
from tests.runtime.conftest import Played
from tests.virtual.test_own_state import Annealed, annealed, enclosed

__all__ = ["even", "play"]  # fixtures


def even_task(make: Callable[[], Task]) -> Task:
    """Of as many samples as whole steps have: the engines cut a smaller one differently."""
    return replace(make(), train_data=toy.task(samples=208).train_data)


@pytest.mark.parametrize("task", [annealed, enclosed])
def test_a_loss_with_state_has_the_bits_of_processes(
    play: Callable[..., Played], even: None, task: Callable[[], Task]
) -> None:
    """All replicas shared the loss, so it counted the steps of all of them."""
    mine, theirs = (play("sync", partial(even_task, task), engine=each).digests for each in (engine, elche))
    assert mine == theirs
    assert len(mine) == 1


def test_the_user_s_own_objects_see_what_the_first_replica_does(play: Callable[..., Played], even: None) -> None:
    loss, epochs = Annealed(), list[int]()

    def note(epoch: int, worker: WorkerHandle) -> None:
        epochs.append(epoch)

    play("sync", lambda: replace(toy.task(samples=200), loss=loss, epoch_callback=note))
    assert epochs == [0, 1]
    assert loss.calls == 2 * 13


def test_replicas_have_large_tensors_of_data_once(play: Callable[..., Played], monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.rand(LARGE // 24 + 1, 6)
    held, seen = TensorSource(inputs, torch.zeros(len(inputs), dtype=torch.int64)), []
    to = TensorSource.to

    def noted(self: TensorSource, place: torch.device) -> TensorSource:
        seen.append(self)
        return to(self, place)

    monkeypatch.setattr(TensorSource, "to", noted)
    play("sync", lambda: replace(toy.task(), train_data=lambda: held), epochs=1, batch_size=1000)
    mine = [each for each in seen if len(each) == len(held)]
    assert len(mine) == 2
    assert mine[0] is not mine[1]
    assert {each.tensors[0].data_ptr() for each in mine} == {inputs.data_ptr()}

"""What a rank that comes back has of the others: extra state, what epoch callbacks changed, and no random numbers again."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp import WorkerHandle, record_scalar
from ddp.core.messages.events import Progress, Shared
from ddp.core.messages.join_events import Joined
from ddp.engine import handover
from ddp.engine.loop import TrainingLoop
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.losses.test_rejoin import Told, returns


class Several(Told):
    """Keeps what no checkpoint can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.extra: dict[str, Any] = {"passes": deque((3, 4))}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_a_rank_that_comes_back_has_extra_state_of_any_class(play: Play, policy: str) -> None:
    """It began anew where no checkpoint could have held it."""
    played = returns(play, policy, "nccl", "1@5:raise", epochs=12, task=lambda: replace(toy.task(), model=Several))
    kept = [torch.load(played.job.scratch / f"state-{rank}.pt", weights_only=False) for rank in range(3)]
    first = {"passes": deque((3, 4))}
    assert [state["_extra_state"] for state in kept] == [first, {"loaded": True, "from": first}, first]


class Flagged(nn.Linear):
    """Is told the epoch by a callback."""

    flag: Tensor

    def __init__(self) -> None:
        super().__init__(6, 2)
        self.register_buffer("flag", torch.zeros(()))


def _flag(epoch: int, worker: WorkerHandle) -> None:
    model: Any = worker.model
    model.flag.fill_(epoch)


def _flagged(model: Any, batch: Any) -> Tensor:
    record_scalar("flag", model.flag)
    return toy.loss(model, batch)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("step", [8, 9, 10])
def test_what_callbacks_changed_before_a_broken_step_is_in_all_ranks(play: Play, step: int) -> None:
    """The rank that came back measured changes of buffers from other values than the others."""
    task = replace(toy.task(), model=Flagged, epoch_callback=_flag, loss=_flagged)
    played = returns(play, "sync", "nccl", f"1@{step}:raise", epochs=4, task=lambda: task)
    seen = {(event.epoch, total / calls) for event in played.of(Progress) for _, total, calls in event.scalars}
    assert seen == {(epoch, epoch) for epoch in range(4)}


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize(
    ("policy", "backend"), [("sync", "nccl"), ("sync", "cpu"), ("cadence", "nccl"), ("cadence", "cpu")]
)
def test_a_rank_that_comes_back_has_what_callbacks_changed_since_the_average(
    play: Play, policy: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It loaded the last average after it had called them."""
    found: list[tuple[int, float]] = []

    def send(scratch: Path, order: Any, loop: TrainingLoop, *more: Any) -> Shared:
        loop.begin(loop.begun + 1, 0.0)  # it has trained on since the average
        return handover.send(scratch, order, loop, *more)

    def load(scratch: Path, round: int, loop: TrainingLoop, backend: Any) -> Joined:
        joined = handover.load_sent(scratch, round, loop, backend)
        found.append((loop.begun, float(loop.replica.model.state_dict()["flag"])))
        return joined

    monkeypatch.setattr("ddp.engine.rank.send", send)
    monkeypatch.setattr("ddp.engine.rank.load_sent", load)
    task = replace(toy.task(), model=Flagged, epoch_callback=_flag, loss=_flagged)
    returns(play, policy, backend, "1@20:raise", epochs=8, task=lambda: task)
    ((begun, flag),) = found
    assert begun == flag > 1


@pytest.mark.usefixtures("in_process")
def test_a_rank_that_comes_back_draws_other_numbers_than_before(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy's and Python's: it drew those of the beginning of the run once more."""
    seeds: list[int] = []
    monkeypatch.setattr("ddp.engine.loop.seed_others", seeds.append)
    returns(play, "sync", "nccl", "1@5:raise", epochs=12)
    assert len(seeds) == len(set(seeds)) == 4

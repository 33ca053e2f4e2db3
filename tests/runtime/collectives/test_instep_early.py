"""Buckets that are exchanged during the backward pass, with ranks as threads of this process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.comm.transports.base import ExchangeBroken
from tests.runtime.collectives.stepping_ranks import Act, Net, Rank
from tests.runtime.collectives.stepping_ranks import ranks as ranks
from tests.threads import sound


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buckets of 1 kB, which go during the backward pass."""
    monkeypatch.setattr("ddp.gradients.average.caps", lambda total, spare: (1024,))


def test_buckets_that_go_early_have_the_same_bits(ranks: Any, early: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One is on its way during the backward pass from the second step on: the first shows what may go."""

    def act(rank: Rank) -> tuple[str, list[int]]:
        counts = []
        for number in range(4):
            rank.step(number)
            hidden = rank.meter._hidden
            counts.append(len(hidden))
            assert all(each.bytes and each.seconds > 0 for each in hidden)
            assert {each.seq for each in rank.meter._slices if each.kind == "wait"} <= {each.seq for each in hidden}
            rank.meter._slices.clear()
            hidden.clear()
        return rank.digest(), counts

    overlapped = sound(ranks("nccl_sync", act, world=3))
    monkeypatch.undo()
    together = sound(ranks("nccl_sync", act, world=3))
    assert {digest for digest, _ in overlapped} == {digest for digest, _ in together}
    assert {tuple(counts) for _, counts in overlapped} == {(0, 1, 1, 1)}
    assert {tuple(counts) for _, counts in together} == {(0, 0, 0, 0)}


def test_a_rank_without_samples_meets_buckets_that_others_send_early(ranks: Any, early: None) -> None:
    def act(rank: Rank) -> list[int]:
        rank.step(0)
        rank.step(1, samples=1)  # of which all but the last rank have nothing
        return sorted(each.seq for each in (*rank.meter._slices, *rank.meter._hidden) if each.seq)

    first, *others = sound(ranks("nccl_sync", act, world=3))
    assert len(first) > 3
    assert all(other == first for other in others)


def test_a_gradient_that_comes_twice_goes_once_it_is_whole(ranks: Any, early: None) -> None:
    """Where the first step shows it, all go at the end; where a later one does it anew, it is an error that names it."""

    def act(twice: set[int]) -> Act:
        def train(rank: Rank) -> str:
            for number in range(4):
                rank.step(number, backwards=1 + (number in twice))
            return rank.digest()

        return train

    assert len(set(sound(ranks("nccl_sync", act({0, 1, 2, 3}))))) == 1
    for error in ranks("nccl_sync", act({2})):
        assert isinstance(error, ValueError)
        assert "came again after it was sent: call backward once" in str(error)


class Aside(Net):
    """With a layer that the engine's backward pass does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.aside = nn.Linear(400, 1, bias=False)


def test_what_the_users_loss_does_to_gradients_is_done_before_they_go(
    ranks: Any, early: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs a backward pass of its own, and looks at what came of it: that is neither weighted nor on its way."""
    monkeypatch.setattr("tests.runtime.collectives.stepping_ranks.Net", Aside)

    def act(rank: Rank) -> list[float]:
        seen = []

        def inside(loss: Tensor) -> None:
            rank.model.aside.weight.sum().backward()
            seen.append(float(rank.model.aside.weight.grad.sum()))

        for number in range(4):
            rank.step(number, inside=inside)
        return seen

    assert sound(ranks("nccl_sync", act)) == [[400.0] * 4] * 2


def test_a_collective_that_breaks_behind_the_backward_pass_leaves_the_step_undone(ranks: Any, early: None) -> None:
    def act(rank: Rank) -> bool:
        rank.step(0)
        before = [buffer.clone() for buffer in rank.model.buffers()]
        if rank.rank:
            rank.collectives.transport.leave()
            return True
        with pytest.raises(ExchangeBroken):
            rank.step(1)
        rank.team.undo()
        return all(torch.equal(a, b) for a, b in zip(before, rank.model.buffers(), strict=True))

    assert sound(ranks("nccl_sync", act)) == [True, True]

"""What ranks do together inside a step, with ranks as threads of this process: real collectives in milliseconds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import ExchangeBroken
from ddp.core.samples.spans import Batch
from ddp.gradients.comparison import ReplicaComparison
from ddp.sharding.zero1 import ShardedStep
from tests.runtime.collectives.stepping_ranks import Act, Net, Rank
from tests.runtime.collectives.stepping_ranks import ranks as ranks
from tests.runtime.sharding.sharded_ranks import KINDS, slices
from tests.threads import sound

ALL = ("nccl_sync", *KINDS)


@pytest.mark.parametrize("kind", ALL)
def test_a_step_that_clears_gradients_itself_is_averaged_as_any_other(ranks: Any, kind: str) -> None:
    def act(clear: Callable[[Rank], None]) -> Act:
        def train(rank: Rank) -> str:
            for number in range(3):
                rank.step(number, lambda: clear(rank))
            return rank.digest()

        return train

    ways: list[Callable[[Rank], None]] = [
        lambda rank: None,
        lambda rank: rank.model.zero_grad(),
        lambda rank: rank.model.zero_grad(set_to_none=False),
    ]
    digests = {digest for clear in ways for digest in sound(ranks(kind, act(clear)))}
    assert len(digests) == 1


@pytest.mark.parametrize("kind", ALL)
def test_what_is_unfrozen_during_training_is_an_error_that_names_it(ranks: Any, kind: str) -> None:
    """Each rank would train it alone. What is frozen during training just stays what it is."""

    def act(rank: Rank) -> None:
        rank.step(0)
        rank.model.head.requires_grad_(False)
        rank.step(1)
        rank.model.fixed.requires_grad_(True)
        rank.step(2)

    for error in ranks(kind, act):
        assert isinstance(error, ValueError)
        assert "parameter fixed.weight was unfrozen after training began" in str(error)


@pytest.mark.parametrize("kind", ALL)
def test_counters_take_the_maximum_after_every_step(ranks: Any, kind: str) -> None:
    def act(rank: Rank) -> list[tuple[int, list[bool], str]]:
        found = []
        for number in range(4):
            rank.step(number)
            found.append((int(rank.model.positive), rank.model.seen.tolist(), rank.digest()))
        return found

    expected, most = [], 0
    for number in range(4):
        inputs = torch.randn(12, 6, generator=torch.Generator().manual_seed(number))
        counts = [int((inputs[own, 0] > 0).sum()) for own in slices(2, 12)]
        assert len(set(counts)) == 2 or number == 3
        most += max(counts)
        expected.append(most)
    one, other = sound(ranks(kind, act))
    assert one == other
    assert [positive for positive, _, _ in one] == expected


def test_counters_that_count_alike_cost_no_collective(ranks: Any) -> None:
    """Once it is known how: `seen` changes in the first step alone, and the batches that are counted in all. A rank that has
    taken over another's state does not know."""

    def act(quiet: bool) -> Act:
        def train(rank: Rank) -> int:
            if quiet:
                alike = torch.tensor([0])
                rank.model.forward = lambda inputs: Net.forward(rank.model, inputs.index_fill(1, alike, -1.0))
            rank.step(0)
            rank.step(1)
            before = rank.reduced
            for number in range(2, 5):
                rank.step(number)
            count = rank.reduced - before
            if rank.rank:
                rank.team.rebase()
            rank.step(5)
            rank.step(6)
            assert not quiet or rank.reduced == before + count + 3
            return count

        return train

    assert sound(ranks("nccl_sync", act(quiet=True))) == [3, 3]
    assert sound(ranks("nccl_sync", act(quiet=False)))[0] > 3


@pytest.mark.parametrize("kind", KINDS)
def test_an_unwrapped_model_is_an_ordinary_one_and_may_be_sharded_again(ranks: Any, kind: str) -> None:
    def act(rank: Rank) -> tuple[list[Tensor], str]:
        rank.step(0)
        rank.team.unwrap()
        rank.team.unwrap()  # once more is nothing
        model, optimizer = rank.model, rank.optimizer
        assert [id(p) for p in optimizer.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
        assert not optimizer.state
        inputs = torch.randn(4, 6, generator=torch.Generator().manual_seed(9))
        for _ in range(2):  # two backward passes, as anywhere
            model(inputs).square().sum().backward()
        before = model.body.weight.detach().clone()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad)
        optimizer.step()
        assert not torch.equal(before, model.body.weight)
        optimizer.zero_grad()
        rank.team = KINDS[kind](rank.site)
        rank.step(1)
        rank.step(2)
        rank.team.unwrap()
        return [value.clone() for value in model.state_dict().values()], rank.digest()

    (values, digest), (_, other) = sound(ranks(kind, act))
    assert digest == other
    assert all(bool(value.isfinite().all()) for value in values)


def test_a_collective_after_a_long_time_begins_with_a_sign_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((0.0, 1.0, 2.0, 20.0, 21.0))
    monkeypatch.setattr("ddp.comm.heartbeat.now", lambda: next(times))
    beats: list[int] = []
    heart = Heartbeat(10.0, lambda: beats.append(1))
    for known in (0, 1):
        with heart:
            assert len(beats) == known


@pytest.mark.parametrize("kind", ALL)
def test_a_step_that_breaks_before_its_first_exchange_is_undone_as_any_other(ranks: Any, kind: str) -> None:
    """Counters went back to what they were before the step before."""

    def refused(*_: Any) -> None:
        raise ExchangeBroken("a rank is gone")

    def act(rank: Rank) -> list[str]:
        digests = []
        for number in range(2):
            own = rank.digest()
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(*(ReplicaComparison, "begin") if kind == "nccl_sync" else (ShardedStep, "meet"), refused)
                with pytest.raises(ExchangeBroken):
                    rank.team.begin(Batch(0, 0, 12, 12))
                rank.team.undo()
            digests += [own, rank.digest()]
            rank.step(number)
        return digests

    (digests,) = sound(ranks(kind, act, world=1))
    assert digests[0] == digests[1] != digests[2] == digests[3]


@pytest.mark.parametrize("kind", ALL)
def test_an_undone_step_leaves_what_was_written_between_steps(ranks: Any, kind: str) -> None:
    """Floating-point buffers went back to the last exchange, and lost what the epoch's callback had written to them."""

    def refused(*_: Any) -> None:
        raise ExchangeBroken("a rank is gone")

    def act(rank: Rank) -> list[float]:
        rank.step(0)
        rank.model.norm.running_mean.fill_(7.0)
        found = []
        first: tuple[Any, str] = (ReplicaComparison, "begin") if kind == "nccl_sync" else (ShardedStep, "meet")
        for place, name in (first, (rank.collectives, "all_reduce")):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(place, name, refused)
                with pytest.raises(ExchangeBroken):
                    rank.step(1)
                rank.team.undo()
            found.append(float(rank.model.norm.running_mean[0]))
        return found

    assert sound(ranks(kind, act, world=1)) == [[7.0, 7.0]]


def test_a_rank_with_the_state_of_another_measures_changes_from_where_that_does(ranks: Any) -> None:
    """A callback had changed the other's buffers since its last exchange: the two ended with different ones."""
    state: dict[str, list[Tensor]] = {}
    known = threading.Event()

    def act(rank: Rank) -> str:
        rank.step(0)
        if not rank.rank:
            rank.model.norm.running_mean.fill_(7.0)
            state["tensors"] = [flat.clone() for flat in rank.state.tensors]
            state["bases"] = [base.clone() for base in rank.team.bases]
            known.set()
        else:
            assert known.wait(10.0)
            for flat, other in zip(rank.state.tensors, state["tensors"], strict=True):
                flat.copy_(other)
            rank.team.rebase(state["bases"])
        rank.step(1)
        return rank.digest()

    assert len(set(sound(ranks("nccl_sync", act)))) == 1


def test_what_has_collectives_in_it_has_signs_of_life_all_the_time() -> None:
    came = threading.Event()
    heart = Heartbeat(0.01, came.set)
    with heart:
        with heart:
            pass
        came.clear()
        assert came.wait(10.0)
    with heart:
        pass
    assert heart._entered == 4


def test_no_thread_beats_for_a_rank_that_is_gone() -> None:
    """The thread kept the rank, with its model: a process that trains one after another grew by all of them."""
    others = set(threading.enumerate())
    heart = Heartbeat(0.01, lambda: None)
    with heart:
        pass
    (beating,) = set(threading.enumerate()) - others
    del heart
    beating.join(10.0)
    assert not beating.is_alive()

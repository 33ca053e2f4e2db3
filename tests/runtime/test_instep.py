"""What ranks do together inside a step, with ranks as threads of this process: real collectives in milliseconds."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.comm.collectives import Collectives
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import ExchangeBroken, choose
from ddp.comm.transports.base import TransportConfig as Place
from ddp.core.commands import Join
from ddp.core.spans import Batch
from ddp.gradients.average import GradientAverage
from ddp.process.meter import Meter
from ddp.replica.flat import FlatState
from ddp.sharding.zero1 import ShardContext
from tests.runtime.sharded_ranks import KINDS, slices
from tests.threads import in_threads, sound

ALL = ("nccl_sync", *KINDS)
building = threading.Lock()


class Net(nn.Module):
    """A frozen layer, a norm, and a buffer that counts what only the data say."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fixed, self.norm = nn.Linear(6, 80), nn.Linear(80, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 2)
        self.fixed.requires_grad_(False)
        self.register_buffer("positive", torch.zeros((), dtype=torch.int64))
        self.register_buffer("seen", torch.zeros(2, dtype=torch.bool))
        self.register_buffer("table", torch.arange(5))

    def forward(self, inputs: Tensor) -> Tensor:
        self.positive += (inputs[:, 0] > 0).sum()
        self.seen[int(inputs[0, 0] > 0)] = True
        hidden: Tensor = self.head(self.norm(self.fixed(self.body(inputs).tanh())))
        return hidden


class Rank:
    """One rank."""

    def __init__(self, folder: Path, rank: int, world: int, kind: str) -> None:
        self.rank, self.world = rank, world
        meter = self.meter = Meter(rank, folder, torch.device("cpu"))
        place = Place(folder, rank, world, torch.device("cpu"), 20.0)
        self.collectives = Collectives(choose("memory", place), meter, Heartbeat(math.inf, lambda: None))
        self.collectives.join(Join(rank, 0, tuple(range(world)), False, "test"))
        with building:
            torch.manual_seed(7)
            self.model: Any = Net()
        self.state = FlatState(self.model)
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.reduced = 0
        inner = self.collectives.all_reduce

        def counted(*args: Any) -> tuple[float, int]:
            self.reduced += 1
            return inner(*args)

        self.collectives.all_reduce = counted  # type: ignore[method-assign]
        if kind == "nccl_sync":
            self.team: Any = GradientAverage(self.model, self.state, self.collectives, meter, self.optimizer)
        else:
            self.site = ShardContext(self.model, self.state, self.optimizer, self.collectives, meter, world, rank)
            self.team = KINDS[kind](self.site)

    def step(
        self,
        number: int,
        before: Callable[[], None] = lambda: None,
        samples: int = 12,
        backwards: int = 1,
        inside: Callable[[Tensor], None] = lambda loss: None,
    ) -> None:
        """One step; `before` is what the user's function does before its forward pass, `inside` with its loss."""
        inputs = torch.randn(samples, 6, generator=torch.Generator().manual_seed(number))
        own = slices(self.world, samples)[self.rank]
        batch = Batch(0, own.start, own.stop, samples, samples < self.world)
        self.team.begin(batch)
        before()
        if batch.samples:
            if samples < self.world:
                self.model.norm.eval()  # a single sample has no statistics
            loss = self.team.module(inputs[own]).square().mean()
            inside(loss)
            self.team.backward()
            for further in reversed(range(backwards)):
                loss.backward(retain_graph=bool(further))
        self.team.exchange(batch)
        self.optimizer.step()
        self.team.end()

    def digest(self) -> str:
        with self.team.whole() if hasattr(self.team, "whole") else threading.Lock():
            return self.state.digest()


Act = Callable[[Rank], Any]


@pytest.fixture
def ranks(tmp_path: Path) -> Callable[..., list[Any]]:
    """What `act` returns on every rank, or the exception that it raises."""

    def run(kind: str, act: Act, world: int = 2) -> list[Any]:
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()

        def main(number: int) -> Any:
            rank = Rank(folder, number, world, kind)
            with closing(rank.collectives):
                return act(rank)

        return in_threads(world, main)

    return run


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
            slices = rank.meter._slices
            counts.append(sum(each.kind == "hidden" for each in slices))
            assert all(each.bytes and each.seconds > 0 for each in slices if each.kind == "hidden")
            slices.clear()
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
        return [each.seq for each in rank.meter._slices if each.kind in ("hidden", "exchange")]

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
    monkeypatch.setattr("tests.runtime.test_instep.Net", Aside)

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


@pytest.mark.parametrize("kind", KINDS)
def test_a_settled_model_is_an_ordinary_one_and_may_be_sharded_again(ranks: Any, kind: str) -> None:
    def act(rank: Rank) -> tuple[list[Tensor], str]:
        rank.step(0)
        rank.team.settle()
        rank.team.settle()  # once more is nothing
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
        rank.team.settle()
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

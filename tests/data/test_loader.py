"""The loader by itself."""

from __future__ import annotations

import pickle
import random
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, TensorDataset

from ddp import DataLoader, RoundRobinSampler
from ddp.data import TensorSource
from ddp.data.epoch_order import order


def data(size: int) -> tuple[Tensor, Tensor]:
    return torch.arange(float(size * 3)).view(size, 3), torch.arange(size)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 40), st.integers(1, 6), st.integers(1, 4), st.booleans(), st.sampled_from(["resident", "streaming"])
)
def test_ranks_share_one_order_in_consecutive_slices(size: int, batch: int, ranks: int, drop: bool, kind: str) -> None:
    if drop and size < batch * ranks:
        return
    loaders = [
        DataLoader(data(size), batch_size=batch, seed=7, drop_last=drop, rank=rank, world_size=ranks, loader=kind)
        for rank in range(ranks)
    ]
    for epoch in (0, 1):
        steps = list(zip(*(loader.epoch(epoch) for loader in loaders), strict=True))
        flat = [int(i) for step in steps for part in step if part is not None for i in part[1]]
        length = size - size % (batch * ranks) if drop else size
        assert flat == order(7, epoch, size)[:length].tolist()
        for step in steps[:-1] if not drop else steps:
            assert [len(part[1]) for part in step] == [batch] * ranks
        assert len(steps) == loaders[0].steps
    assert len(loaders[0]) == length
    for loader in loaders:
        loader.close()


def test_a_slice_has_the_least_samples_that_were_asked_for() -> None:
    """14 samples, batches of 4 on three ranks: of the last two a rank has both."""
    sizes = []
    for rank in range(3):
        with DataLoader(data(14), batch_size=4, rank=rank, world_size=3, least=2) as loader:
            sizes.append([None if batch is None else len(batch[1]) for batch in loader.epoch(0)])
    assert sizes == [[4, 2], [4, None], [4, None]]


def test_batches_have_names_and_epochs_count_on() -> None:
    with DataLoader(TensorDataset(*data(10)), batch_size=4, names=["point", "number"]) as loader:
        assert loader.kind == "resident"
        first, second = list(loader), list(loader)
        assert [sorted(batch) for batch in first] == [["number", "point"]] * 3
        assert torch.equal(torch.cat([batch["number"] for batch in first]), loader.order(0))
        assert torch.equal(torch.cat([batch["number"] for batch in second]), loader.order(1))
        loader.set_epoch(0)
        assert torch.equal(next(iter(loader))["number"], first[0]["number"])
    with pytest.raises(ValueError, match="for batches of 2 members"):
        next(iter(DataLoader(data(10), batch_size=4, names=["one"])))
    assert next(iter(DataLoader(torch.arange(3), batch_size=3, names=["x"], shuffle=False)))["x"].tolist() == [0, 1, 2]
    with DataLoader("ab", batch_size=2, names=["letter"], shuffle=False) as texts:
        assert list(texts) == [{"letter": ("a", "b")}]


def test_an_epoch_that_is_left_early_reads_nothing_more() -> None:
    loader = DataLoader(data(100), batch_size=2, loader="streaming", prefetch=2)
    for _ in range(3):
        for number, _batch in enumerate(loader.epoch(0)):
            if number == 3:
                break
    assert torch.equal(torch.cat([batch[1] for batch in loader.epoch(1)]), loader.order(1))
    loader.close()


def test_orders_of_ones_own() -> None:
    def chosen(sampler: Any, **more: Any) -> list[int]:
        loader = DataLoader(data(9), batch_size=4, sampler=sampler, **more)
        return [int(i) for batch in loader.epoch(1) for i in batch[1]]

    assert chosen(lambda epoch: [epoch, 8, 8]) == [1, 8, 8]
    assert chosen(torch.tensor([3, 2, 1, 0, 5]), drop_last=True) == [3, 2, 1, 0]
    before = torch.get_rng_state()
    drawn = chosen(RandomSampler(range(9)))
    assert sorted(drawn) == list(range(9))
    assert drawn == chosen(RandomSampler(range(9)))
    assert torch.equal(torch.get_rng_state(), before)
    for bad in ([], [9], [-1], [0.5], [True], [1j], ["a"], [[0, 1], [2]], 5, lambda epoch: None):
        with pytest.raises(ValueError, match="the sampler must give indices of 9 samples"):
            chosen(bad)
    whys = {"it gives none": [], "9 is outside 0 to 8": [3, 9], "-1 is outside": [0, -1], "no whole numbers": [0.5]}
    for why, wrong in whys.items():
        with pytest.raises(ValueError, match=why):
            chosen(wrong)


def test_samplers_on_which_ranks_would_not_agree_are_refused() -> None:
    for sampler in (lambda epoch: random.sample(range(9), 9), lambda epoch: np.random.permutation(9)):
        with pytest.raises(ValueError, match="the sampler gives another order when it is asked for epoch 0 again"):
            DataLoader(data(9), batch_size=4, sampler=sampler)
    of_the_epoch = DataLoader(data(9), batch_size=4, sampler=lambda epoch: np.random.default_rng(epoch).permutation(9))
    assert sorted(of_the_epoch.order(1).tolist()) == list(range(9))


def test_a_samplers_own_generator_is_a_function_of_its_seed_and_the_epoch() -> None:
    """The usual way to give a sampler of PyTorch a seed. Every rank has a copy of the generator, at its own place."""

    def loader(seed: int) -> DataLoader:
        generator = torch.Generator().manual_seed(seed)
        return DataLoader(data(50), batch_size=4, sampler=RandomSampler(range(50), generator=generator))

    one, other = loader(5), loader(5)
    second, first = one.order(1), one.order(0)
    assert torch.equal(other.order(0), first)
    assert torch.equal(other.order(1), second)
    assert sorted(first.tolist()) == list(range(50))
    assert not torch.equal(first, second)
    assert not torch.equal(loader(6).order(0), first)


def test_a_sampler_of_one_ranks_part_is_refused_where_samples_are_divided() -> None:
    for part in (DistributedSampler(range(9), 2, 1), RoundRobinSampler(9, 2, 1)):
        with pytest.raises(ValueError, match=r"Sampler gives the samples of one of 2 ranks, and they are divided"):
            DataLoader(data(9), batch_size=4, sampler=part, rank=1, world_size=2)
        cut = BatchSampler(part, 1, drop_last=False)
        with pytest.raises(ValueError, match=r"Sampler gives the samples of one of 2 ranks, and they are divided"):
            DataLoader(data(9), batch_size=4, sampler=cut, rank=1, world_size=2)
        assert len(DataLoader(data(9), batch_size=4, sampler=part)) in (4, 5)


def test_batches_that_torch_cuts_from_a_sampler_come_in_its_order() -> None:
    for inner in (
        RandomSampler(range(8), generator=torch.Generator().manual_seed(5)),
        DistributedSampler(range(8), 1, 0),
    ):
        alone, cut = (
            DataLoader(data(8), batch_size=4, sampler=one) for one in (inner, BatchSampler(inner, 4, drop_last=True))
        )
        orders = [cut.order(epoch) for epoch in (0, 1)]
        assert not torch.equal(*orders)
        assert all(torch.equal(alone.order(epoch), found) for epoch, found in enumerate(orders))


def test_what_cannot_be_loaded_is_refused() -> None:
    for options, match in (
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": "2"}, "batch_size='2' must be a whole number"),
        ({"batch_size": 1, "rank": 1}, "rank=1 is not one of"),
        ({"batch_size": 1, "names": ["a", "a"]}, "must all be different"),
        ({"batch_size": 2, "world_size": 2, "drop_last": True}, "3 samples make no batch of 4"),
        ({"batch_size": 2, "least": 3}, "least=3 must be 1 or more and at most batch_size=2"),
        ({"batch_size": 1, "loader": "fast"}, "kind='fast' is not one of auto, resident, streaming"),
        ({"batch_size": 1, "prefetch": 0}, "prefetch=0"),
        ({"batch_size": 1, "vram_max_usage": 0}, "vram_max_usage=0 must be above 0"),
        ({"batch_size": 1, "memory_max_usage": 1.5}, "memory_max_usage=1.5"),
    ):
        with pytest.raises(ValueError, match=match):
            DataLoader(torch.arange(3), **options)  # type: ignore[arg-type]


def test_data_that_finds_no_memory_is_told_of() -> None:
    class Big(TensorSource):
        calls = 0

        def to(self, device: torch.device) -> TensorSource:
            type(self).calls += 1
            if self.calls == 1:
                raise torch.OutOfMemoryError("out of memory")
            return self

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with DataLoader(Big(torch.arange(5)), batch_size=2) as loader:
            assert len(list(loader)) == 3
            assert loader.kind == "streaming"
    assert [str(one.message) for one in told] == ["no memory on cpu for 0 MB of data: it is streamed"]


@given(st.integers(1, 50), st.integers(1, 5), st.integers(1, 7), st.booleans())
def test_round_robin_gives_every_sample_once_in_as_many_steps(size: int, ranks: int, batch: int, shuffle: bool) -> None:
    samplers = [RoundRobinSampler(size, ranks, rank, seed=3, shuffle=shuffle) for rank in range(ranks)]
    given_to = []
    for sampler in samplers:
        sampler.set_epoch(2)
        assert len(list(sampler)) == len(sampler)
        given_to.append(list(sampler))
    assert sorted(index for mine in given_to for index in mine) == list(range(size))
    assert max(map(len, given_to)) - min(map(len, given_to)) <= 1
    assert given_to[0][0] == (int(order(3, 2, size)[0]) if shuffle else 0)

    class Cut:
        """As torch's loader cuts."""

        batch_size = batch

        def __init__(self, sampler: RoundRobinSampler) -> None:
            self.sampler = sampler

        def __iter__(self) -> Iterator[list[int]]:
            mine = list(self.sampler)
            return iter([mine[at : at + batch] for at in range(0, len(mine), batch)])

    evened = [list(sampler.even(Cut(sampler))) for sampler in samplers]
    assert {len(steps) for steps in evened} == {samplers[0].steps(batch)}
    assert all(None not in steps[:-1] for steps in evened)


def test_round_robin_with_torchs_loader() -> None:
    inputs = torch.arange(65)
    seen: list[int] = []
    for rank in range(2):
        sampler = RoundRobinSampler(inputs, 2, rank)
        loader = torch.utils.data.DataLoader(TensorDataset(inputs), batch_size=32, sampler=sampler)
        steps = list(sampler.even(loader))
        assert [None if step is None else len(step[0]) for step in steps] == [32, 1 if rank == 0 else None]
        seen += [int(i) for step in steps if step is not None for i in step[0]]
    assert sorted(seen) == list(range(65))
    assert [len(list(RoundRobinSampler(65, 2, rank, drop_last=True))) for rank in range(2)] == [32, 32]
    assert list(RoundRobinSampler(4, 1, 0, shuffle=False)) == [0, 1, 2, 3]
    for arguments in ((4, 2, 2), (0, 1, 0)):
        with pytest.raises(ValueError, match=r"is not one of|nothing is left"):
            RoundRobinSampler(*arguments)
    with pytest.raises(ValueError, match="without drop_last"):
        list(sampler.even(torch.utils.data.DataLoader(inputs, batch_size=2, drop_last=True)))
    others: list[dict[str, Any]] = [{"shuffle": True}, {"sampler": RoundRobinSampler(8, 2, 1)}]
    for other in others:
        with pytest.raises(ValueError, match="sampler=this sampler"):
            list(sampler.even(torch.utils.data.DataLoader(inputs, batch_size=2, **other)))


class Gated:
    """Samples that do not come before the gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = threading.Event(), threading.Event()

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        self.asked.set()
        self.gate.wait(10.0)
        return index


def test_threads_take_turns() -> None:
    """An epoch that another thread began dropped what was waited for: it was called late after the whole deadline."""
    gated, found = Gated(), {}
    loader = DataLoader(gated, batch_size=4, loader="streaming", deadline_s=5.0)

    def take(epoch: int) -> None:
        found[epoch] = torch.cat(list(loader.epoch(epoch))).tolist()

    threads = [threading.Thread(target=take, args=(epoch,)) for epoch in (0, 1)]
    threads[0].start()
    assert gated.asked.wait(5.0)
    threads[1].start()
    threads[1].join(0.2)  # it would have begun by now
    gated.gate.set()
    for thread in threads:
        thread.join(10.0)
    loader.close()
    assert found == {epoch: loader.order(epoch).tolist() for epoch in (0, 1)}


def test_a_loader_that_was_used_can_be_sent_to_another_process() -> None:
    loader = DataLoader(data(12), batch_size=4)
    batches = [part[1].tolist() for part in loader.epoch(3)]
    assert [part[1].tolist() for part in pickle.loads(pickle.dumps(loader)).epoch(3)] == batches

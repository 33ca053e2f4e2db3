"""Reading ahead: what is granted and no more, errors that come to their step, and a thread that ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Beta, Gamma
from torch.utils.data import Subset

from ddp.core.samples.spans import Batch
from ddp.data import Draws, MapSource
from ddp.data.batch_loader import BatchLoader, Resident
from ddp.data.epoch_order import EpochOrder
from ddp.data.errors import BadSample, LateBatch
from ddp.data.streaming import END_S, Streaming, _Shelf, _Slot
from tests.data.fed import Samples, batches, images, make, same
from tests.held_up import in_time

Threads = Callable[[], list[threading.Thread]]


class Played:
    """A shelf with a thread that does one thing at a time, when it is told to."""

    def __init__(self, depth: int) -> None:
        self.shelf = _Shelf(depth)
        self.depth = depth
        self.working: _Slot | None = None
        self.read: list[tuple[int, int, int]] = []
        self.allowed: set[tuple[int, int, int]] = set()

    def grant(self, granted: list[Batch]) -> None:
        self.shelf.expect(granted)
        self.allowed = {key(batch) for batch in granted}

    def work(self) -> bool:
        if self.working is None:
            slot = self.working = self.shelf.next()
            if slot is None:
                return False
            slot.begun = True
            assert key(slot.batch) in self.allowed
            self.read.append(key(slot.batch))
        else:
            self.working.value, self.working.done, self.working = key(self.working.batch), True, None
        assert sum(slot.begun for slot in self.shelf.slots) <= self.depth + 1
        return True

    def get(self, batch: Batch) -> None:
        self.allowed.add(key(batch))
        slot = self.shelf.find(batch)
        while not slot.done:
            assert self.work(), "the thread has nothing to do and the owner waits"
        assert self.shelf.slots.popleft().value == key(batch)


def key(batch: Batch) -> tuple[int, int, int]:
    return batch.epoch, batch.start, batch.stop


@settings(deadline=None)
@given(st.data(), st.integers(1, 4))
def test_what_is_granted_is_read_once_and_what_was_taken_back_is_not(data: st.DataObject, depth: int) -> None:
    """Grants grow, are replaced, and steps are undone and asked for again, at any point of the thread's work."""
    played, at = Played(depth), 0
    granted: list[Batch] = []
    calm: set[tuple[int, int, int]] = set()
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.sampled_from(["grow", "replace", "work", "work", "get", "undo"])):
            case "grow":
                size = data.draw(st.integers(1, 3))
                granted += [Batch(0, at + i, at + i + 1, 1) for i in range(size)]
                calm.update(map(key, granted[-size:]))
                at += size
                played.grant(list(granted))
            case "replace":
                calm -= set(map(key, granted))
                granted = [batch for batch in granted if data.draw(st.booleans())]
                played.grant(list(granted))
            case "work":
                played.work()
            case "get" if granted:
                played.get(granted.pop(0))
            case "undo" if at:
                first = Batch(0, 0, 1, 1)
                calm.discard(key(first))
                if first not in granted:
                    if data.draw(st.booleans()):  # the grants are told again: what was ahead is read again
                        calm.clear()
                        played.grant([first, *granted])
                    played.get(first)
    for batch in granted:
        played.get(batch)
    for one in calm:
        assert played.read.count(one) == 1


def test_a_samples_own_randomness_is_of_seed_epoch_and_sample() -> None:
    """Whoever reads ahead of it, and whatever the training step draws meanwhile."""
    size = 9
    source, visits = MapSource(Samples(size)), EpochOrder(5, size)
    found: dict[tuple[int, int], list[Tensor]] = {}
    for batch in (2, 3, 9):
        streaming = make(source, "streaming", prefetch=batch)
        streaming.expect(batches(size, batch) + batches(size, batch, 1))
        torch.manual_seed(batch)
        before = torch.rand(1)
        for one in batches(size, batch) + batches(size, batch, 1):
            torch.rand(1)
            got = streaming.get(one)
            for index, label, row in zip(
                visits(one.epoch)[one.start : one.stop], got["label"], got["input"], strict=True
            ):
                assert index == label
                found.setdefault((one.epoch, int(index)), []).append(row)
        streaming.close()
        torch.manual_seed(batch)
        assert torch.equal(torch.rand(1), before), "the training step's numbers are its own"
    assert len(found) == 2 * size
    assert all(len(rows) == 3 and same(rows[:1] * 2, rows[1:]) for rows in found.values())
    assert not any(torch.equal(found[0, i][0], found[1, i][0]) for i in range(size))


@pytest.mark.parametrize("collated", [torch.arange(6.0).view(3, 2).numpy(), [1, 2, 3]])
def test_a_batch_that_is_one_tensor_streams(collated: Any) -> None:
    """A tensor has a `take` of its own."""
    streaming = make(MapSource(collated), "streaming")
    assert torch.equal(streaming.get(batches(3, 3)[0]), torch.as_tensor(collated)[EpochOrder(5, 3)(0)])
    streaming.close()


class Drawn(Samples):
    """Draws what distributions are made of, which take a generator under names of their own."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input": Beta(2.0, 2.0).sample((2,)) + Gamma(1.0, 1.0).sample()}


def test_randomness_of_distributions_and_of_parts_of_parts_is_a_samples_own() -> None:
    draws = Draws(5, 0, torch.arange(4))
    parts = Subset(Subset(Drawn(9), range(6)), range(4))
    together, again = (MapSource(data).batch(torch.arange(4), draws)["input"] for data in (Drawn(9), parts))
    assert torch.equal(together, again)
    assert torch.equal(MapSource(parts).batch(torch.tensor([2]), Draws(5, 0, torch.tensor([2])))["input"][0], again[2])


def test_only_what_was_granted_is_read() -> None:
    samples = Samples(40)
    streaming = make(MapSource(samples), "streaming", prefetch=4)
    visits = EpochOrder(5, 40)
    wanted = batches(40, 4)
    streaming.expect(wanted[:2])
    streaming.get(wanted[0])
    streaming.get(wanted[1])
    assert samples.read == visits(0)[:8].tolist()
    samples.free.clear()
    streaming.expect(wanted[2:6])
    streaming.expect(wanted[7:8])
    samples.free.set()
    streaming.get(wanted[7])
    streaming.close()
    beyond = set(samples.read) - set(visits(0)[:8].tolist()) - set(visits(0)[28:32].tolist())
    assert beyond <= set(visits(0)[8:12].tolist()), "of what was taken back, at most the batch that was in work"


def test_an_error_of_the_data_set_comes_with_its_sample_to_the_step() -> None:
    size = 12
    order = EpochOrder(5, size)(0)
    samples = Samples(size, bad=int(order[7]))
    streaming = make(MapSource(samples), "streaming")
    wanted = batches(size, 3)
    streaming.expect(wanted)
    streaming.get(wanted[0])
    streaming.get(wanted[1])
    with pytest.raises(BadSample, match=f"^sample {samples.bad}: OSError: the file is truncated"):
        streaming.get(wanted[2])
    streaming.close()


def test_samples_that_make_no_batch_are_named() -> None:
    source = MapSource([torch.zeros(2), torch.zeros(3)])
    with pytest.raises(
        BadSample, match=r"samples \[0, 1\] make no batch: .*; pad samples .* give Trainer a collate_fn"
    ):
        source.batch(torch.tensor([0, 1]))


def test_a_data_set_that_hangs_is_not_waited_for_beyond_the_deadline(reading_threads: Threads) -> None:
    samples = Samples(4)
    samples.free.clear()
    streaming = make(MapSource(samples), "streaming", deadline_s=0.05)
    with pytest.raises(LateBatch, match=r"samples \[\d, \d\] were not there within 0.05 s"):
        streaming.get(Batch(0, 0, 2, 2))
    (thread,) = reading_threads()
    before = time.monotonic()
    streaming.close()
    assert in_time(before, END_S / 2), "the rank is to say what is late before it is taken for lost"
    samples.free.set()
    thread.join(END_S)


def test_the_thread_ends_with_its_owner(reading_threads: Threads) -> None:
    streaming = make(images(8), "streaming")
    streaming.get(Batch(0, 0, 2, 2))
    assert reading_threads()
    del streaming
    assert not reading_threads()


def test_a_closed_feed_that_is_asked_again_begins_anew() -> None:
    streaming = make(images(8), "streaming")
    first = streaming.get(Batch(0, 0, 2, 2))
    streaming.close()
    streaming.close()
    assert same(streaming.get(Batch(0, 0, 2, 2)), first)
    streaming.close()


def test_an_epoch_let_go_after_the_end_starts_no_thread(reading_threads: Threads) -> None:
    """At the end of a script it did, and the script never ended."""
    streaming = make(images(8), "streaming")
    streaming.get(Batch(0, 0, 2, 2))
    streaming.close()
    streaming.expect(())  # as an iterator does when it goes
    assert not reading_threads()


def test_after_a_fork_the_feed_goes_on() -> None:
    samples = Samples(8)
    streaming = make(MapSource(samples), "streaming", prefetch=1)
    wanted = batches(8, 2)
    first = streaming.get(wanted[0])
    samples.free.clear()
    streaming.expect(wanted[1:])  # the thread is in the middle of a sample, and holds what it may hold
    while not streaming._shelf.slots:  # type: ignore[attr-defined]
        time.sleep(0.001)
    child = os.fork()
    if not child:
        os._exit(_in_a_child(streaming, samples, first, wanted))
    samples.free.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    streaming.get(wanted[1])
    streaming.close()


def _in_a_child(streaming: BatchLoader, samples: Samples, first: Any, wanted: list[Batch]) -> int:
    try:
        samples.free = threading.Event()
        samples.free.set()
        again = streaming.get(wanted[0])
        return 0 if torch.equal(again["input"], first["input"]) else 1
    except BaseException:
        return 2


def test_the_depth_is_measured_anew_in_every_epoch() -> None:
    asked: list[int] = []

    def depth(size: int) -> int:
        asked.append(size)
        return 4 + len(asked)

    resident = make(images(8), "resident")
    assert isinstance(resident, Resident)
    streaming = Streaming(resident.get, depth, 20.0)
    for epoch in range(3):
        for batch in batches(8, 4, epoch):
            streaming.get(batch)
    streaming.close()
    assert asked == [0, 0, 4 * 2 * 16 * 4 + 4 * 8, 4 * 2 * 16 * 4 + 4 * 8]
    assert streaming.depth == 8

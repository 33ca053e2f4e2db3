"""Reading ahead: the same bits as data that is resident, what is granted and no more, and a thread that ends."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

from ddp.core.loading import Loading
from ddp.core.spans import Batch, Chunk
from ddp.data import Draws, MapSource, TensorSource, crop_and_flip
from ddp.data.errors import BadSample, LateBatch
from ddp.data.feed import Feed, Resident, feed
from ddp.data.gather import AT_ONCE
from ddp.data.source import move
from ddp.data.streaming import NAME, Streaming, _Shelf, _Slot
from ddp.data.visits import Visits
from ddp.tally import tally

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    yield
    assert not [thread for thread in threading.enumerate() if thread.name == NAME]


def make(source: Any, kind: str, augment: Any = None, seed: int = 5, deadline_s: float = 20.0, **more: Any) -> Feed:
    found, note = feed(source, Visits(seed, len(source)), CPU, Loading(kind, **more), augment, deadline_s)
    assert note == ""
    assert found.kind == kind
    return found


def images(size: int) -> TensorSource:
    generator = torch.Generator().manual_seed(size)
    return TensorSource(torch.rand(size, 2, 4, 4, generator=generator), torch.arange(size))


def batches(size: int, batch: int, epoch: int = 0) -> list[Batch]:
    chunk = Chunk(epoch, 0, size, batch)
    return [chunk.at(step) for step in range(chunk.steps)]


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.sampled_from([1, 3, 8]), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_batches_are_the_same_bits_from_either_kind(size: int, batch: int, depth: int, told: bool, late: int) -> None:
    """And whether it is known beforehand what is asked for, or not, or not rightly."""
    augment, source, visits = crop_and_flip(1), images(size), Visits(5, size)
    resident = make(source, "resident", augment)
    streaming = make(source, "streaming", augment, prefetch=depth)
    wanted = batches(size, batch) + batches(size, batch, 1)
    for one in (resident, streaming) if told else ():
        one.expect(iter(wanted[late:]))
    for number, asked in enumerate(wanted):
        indices = visits(asked.epoch)[asked.start : asked.stop]
        plain = augment(source.batch(indices), Draws(5, asked.epoch, indices))
        assert same(streaming.get(asked), plain)
        found = resident.get(asked)
        assert same(found, plain)
        if number == 3:
            resident.expect(wanted[4 + late :])
            streaming.expect(wanted[4 + late :])
    streaming.close()


def test_small_resident_batches_are_gathered_several_at_once() -> None:
    """As aligned as tensors of their own, for kernels go by that."""
    read: list[int] = []

    class Counting(TensorSource):
        separable = True

        def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
            read.append(len(indices))
            return super().batch(indices)

        def to(self, device: torch.device) -> TensorSource:
            return self

    source = Counting(torch.rand(600, 8), torch.arange(600))
    for size, expected in ((8, [512, 88]), (7, [7] * 85 + [5])):
        read.clear()
        resident = make(source, "resident")
        wanted = batches(600, size)
        resident.expect(wanted)
        got = [resident.get(one) for one in wanted]
        assert read == expected
        assert torch.equal(torch.cat([one[1] for one in got]), Visits(5, 600)(0))
        assert all(tensor.data_ptr() % 64 == 0 and tensor.is_contiguous() for one in got for tensor in one)


@settings(deadline=None)
@given(st.integers(1, 200), st.lists(st.tuples(st.integers(1, 12), st.integers(1, 3), st.integers(1, 60)), max_size=4))
def test_blocks_are_what_is_asked_for_however_it_was_granted(size: int, granted: list[tuple[int, int, int]]) -> None:
    """Chunks of a rank's own, and its slices of global batches, one behind another."""
    source = TensorSource(torch.rand(size, 8), torch.arange(size))
    resident, start, wanted = make(source, "resident"), 0, []
    for batch, parts, samples in granted:
        stop = min(start + samples, size)
        if start < stop:
            chunk = Chunk(0, start, stop, batch * parts, parts - 1, parts)
            wanted += [one for one in map(chunk.at, range(chunk.steps)) if one.samples]
        start = stop
    resident.expect(wanted)
    for one in wanted:
        assert torch.equal(resident.get(one)[1], Visits(5, size)(0)[one.start : one.stop])


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


class Samples(Dataset[Any]):
    """Samples with randomness of their own, as torchvision's transforms have it."""

    def __init__(self, size: int, bad: int = -1) -> None:
        self.size, self.bad = size, bad
        self.read: list[int] = []
        self.free = threading.Event()
        self.free.set()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert self.free.wait(20)
        self.read.append(index)
        if index == self.bad:
            raise OSError("the file is truncated")
        noise = torch.rand(2) + torch.randn(2) + torch.randint(3, ()) + torch.randperm(4)[0] + torch.empty(2).uniform_()
        return {"input": index + noise, "label": index}


def test_a_samples_own_randomness_is_of_seed_epoch_and_sample() -> None:
    """Whoever reads ahead of it, and whatever the training step draws meanwhile."""
    size = 9
    source, visits = MapSource(Samples(size)), Visits(5, size)
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


def test_only_what_was_granted_is_read() -> None:
    samples = Samples(40)
    streaming = make(MapSource(samples), "streaming", prefetch=4)
    visits = Visits(5, 40)
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
    order = Visits(5, size)(0)
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
    with pytest.raises(BadSample, match=r"samples \[0, 1\] make no batch"):
        source.batch(torch.tensor([0, 1]))


def test_a_data_set_that_hangs_is_not_waited_for_beyond_the_deadline() -> None:
    samples = Samples(4)
    samples.free.clear()
    streaming = make(MapSource(samples), "streaming", deadline_s=0.05)
    with pytest.raises(LateBatch, match=r"samples \[\d, \d\] were not there within 0.05 s"):
        streaming.get(Batch(0, 0, 2, 2))
    samples.free.set()
    streaming.close()


def test_the_thread_ends_with_its_owner() -> None:
    streaming = make(images(8), "streaming")
    streaming.get(Batch(0, 0, 2, 2))
    assert [thread for thread in threading.enumerate() if thread.name == NAME]
    del streaming
    assert not [thread for thread in threading.enumerate() if thread.name == NAME]


def test_a_closed_feed_that_is_asked_again_begins_anew() -> None:
    streaming = make(images(8), "streaming")
    first = streaming.get(Batch(0, 0, 2, 2))
    streaming.close()
    streaming.close()
    assert same(streaming.get(Batch(0, 0, 2, 2)), first)
    streaming.close()


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


def _in_a_child(streaming: Feed, samples: Samples, first: Any, wanted: list[Batch]) -> int:
    try:
        samples.free = threading.Event()
        samples.free.set()
        again = streaming.get(wanted[0])
        return 0 if torch.equal(again["input"], first["input"]) else 1
    except BaseException:
        return 2


def test_data_is_resident_where_it_fits_and_streamed_where_not() -> None:
    source = images(64)
    visits = Visits(0, 64)

    def kind(loading: Loading, of: Any = source) -> str:
        return feed(of, visits, CPU, loading)[0].kind

    assert kind(Loading()) == "resident"
    assert kind(Loading(memory_max_usage=1e-12)) == "streaming"
    assert kind(Loading("resident", memory_max_usage=1e-12)) == "resident"
    assert kind(Loading("streaming")) == "streaming"
    assert kind(Loading(), MapSource(Samples(64))) == "streaming"
    with pytest.raises(ValueError, match="MapSource gives samples one by one"):
        kind(Loading("resident"), MapSource(Samples(64)))


class TooMuch(TensorSource):
    def to(self, device: torch.device) -> TensorSource:
        if self.refuses:
            self.refuses -= 1
            raise self.error
        return self

    refuses = 1
    error: Exception = torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError(), RuntimeError("you can't allocate memory")]
)
def test_data_that_finds_no_memory_is_streamed_with_a_warning(error: Exception) -> None:
    source = TooMuch(torch.zeros(8))
    source.error = error
    found, note = feed(source, Visits(0, 8), CPU, Loading())
    assert isinstance(found, Streaming)
    assert note == "no memory on cpu for 0 MB of data: it is streamed"
    other = TooMuch(torch.zeros(8))
    other.error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        feed(other, Visits(0, 8), CPU, Loading())


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


def test_batches_of_any_shape_move() -> None:
    batch = {"a": torch.zeros(1), "b": [torch.ones(1), "text"]}
    moved = move(batch, torch.device("meta"))
    assert moved["a"].device.type == moved["b"][0].device.type == "meta"
    assert moved["b"][1] == "text"


@pytest.mark.parametrize("kind", ["resident", "streaming"])
@pytest.mark.parametrize("size", [7, 2 * AT_ONCE + 3])
def test_an_epoch_is_tallied_as_every_sample_once(kind: str, size: int) -> None:
    """However often one asks, and whether the number of batches fits what is tallied at once or not."""
    made = make(images(size), kind)
    told = [made.visited()]
    for number, batch in enumerate(batches(size, 1)):
        made.get(batch)
        if number % 5 == 0:
            told.append(made.visited())
    assert made.visited() == tally(range(size))
    assert told[0] == 0
    made.get(batches(size, 1)[0])
    made.close()
    assert made.visited() != tally(range(size)), "a sample that is there twice changes it"

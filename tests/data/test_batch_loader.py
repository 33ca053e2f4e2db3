"""Feeds of both kinds: the same bits, whichever suits the data, and every sample tallied once."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ddp.core.samples.spans import Chunk
from ddp.core.settings.loader import Loading
from ddp.data import Draws, MapSource, TensorSource, crop_and_flip
from ddp.data.batch_loader import feed
from ddp.data.epoch_order import EpochOrder
from ddp.data.gather import AT_ONCE
from ddp.data.source import move
from ddp.data.streaming import Streaming
from ddp.tally import tally
from tests.data.fed import CPU, Samples, batches, images, make, same


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.sampled_from([1, 3, 8]), st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_batches_are_the_same_bits_from_either_kind(size: int, batch: int, depth: int, told: bool, late: int) -> None:
    """And whether it is known beforehand what is asked for, or not, or not rightly."""
    augment, source, visits = crop_and_flip(1), images(size), EpochOrder(5, size)
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
        assert torch.equal(torch.cat([one[1] for one in got]), EpochOrder(5, 600)(0))
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
        assert torch.equal(resident.get(one)[1], EpochOrder(5, size)(0)[one.start : one.stop])


def test_data_is_resident_where_it_fits_and_streamed_where_not() -> None:
    source = images(64)
    visits = EpochOrder(0, 64)

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
    found, note = feed(source, EpochOrder(0, 8), CPU, Loading())
    assert isinstance(found, Streaming)
    assert note == "no memory on cpu for 0 MB of data: it is streamed"
    other = TooMuch(torch.zeros(8))
    other.error = RuntimeError("something else")
    with pytest.raises(RuntimeError, match="something else"):
        feed(other, EpochOrder(0, 8), CPU, Loading())


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


@pytest.mark.parametrize("kind", ["resident", "streaming"])
def test_samples_that_nobody_visits_are_as_the_model_is_to_see_them(kind: str) -> None:
    def flat(batch: Any, draws: Draws) -> Any:
        return batch[0].flatten(1).double() + draws.uniform(1), batch[1]

    with closing(make(images(9), kind, flat)) as loader:
        state = torch.get_rng_state()
        (inputs, labels), all_of_them = loader.gather.some(2), loader.gather.some(100)
        assert torch.equal(state, torch.get_rng_state())
        assert (inputs.shape, inputs.dtype, labels.tolist()) == ((2, 32), torch.float64, [0, 1])
        assert len(all_of_them[0]) == 9
        assert loader.visited() == 0

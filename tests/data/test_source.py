"""Sources: tensors in memory, and data sets of samples."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils.data import random_split

from ddp.data import BadSample, DataLoader, Draws, MapSource, TensorSource, as_source
from ddp.data.dataset import collated
from ddp.data.source import every, move


def test_batches_come_in_the_order_asked_for_and_are_copies() -> None:
    images, labels = torch.arange(12.0).view(4, 3), torch.tensor([0, 1, 2, 3])
    source = TensorSource(images, labels)
    got = source.batch(torch.tensor([2, 0, 2]))
    assert len(source) == 4
    assert got[0].tolist() == [[6, 7, 8], [0, 1, 2], [6, 7, 8]]
    assert got[1].tolist() == [2, 0, 2]
    got[0].zero_()
    assert images[2].tolist() == [6, 7, 8]
    assert [len(t) for t in source.batch(torch.tensor([], dtype=torch.int64))] == [0, 0]


def test_moving_keeps_the_data() -> None:
    moved = TensorSource(torch.arange(3)).to(torch.device("meta"))
    assert moved.tensors[0].device.type == "meta"
    assert len(moved) == 3


def test_an_index_outside_is_an_error() -> None:
    with pytest.raises(IndexError):
        TensorSource(torch.arange(3)).batch(torch.tensor([3]))


def test_what_is_no_data_set_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one tensor"):
        TensorSource()
    with pytest.raises(ValueError, match=r"equal lengths, got \[3, 4\]"):
        TensorSource(torch.zeros(3), torch.zeros(4))
    for empty in (torch.zeros(0, 2), torch.tensor(1.0)):
        with pytest.raises(ValueError, match="empty"):
            TensorSource(empty)
    with pytest.raises(ValueError, match="must not be sparse"):
        TensorSource(torch.eye(3).to_sparse())
    with pytest.raises(ValueError, match="a mapping as data set must have samples 0, 1"):
        as_source({"image": torch.zeros(3), "label": torch.zeros(3)})
    assert len(as_source({0: torch.zeros(3), 1: torch.zeros(3)})) == 2


class Pair(NamedTuple):
    image: torch.Tensor
    label: torch.Tensor


class Row(dict[str, Any]):
    """A mapping with ways of its own."""

    note = ""


def test_batches_keep_the_types_that_collating_keeps() -> None:
    image, label = torch.ones(2), torch.zeros(2)
    counts = defaultdict(list, image=image)
    row = Row(image=image, inner=(Pair(image, label), [label]))
    row.note = "kept"
    fixed = MappingProxyType({"image": image})
    found = every(torch.neg, (Pair(image, label), counts, row, OrderedDict(label=label), fixed, "word"))
    pair, there, moved, ordered, proxy, word = found
    assert type(pair) is Pair
    assert torch.equal(pair.image, -image)
    assert type(there) is defaultdict
    assert there["nothing"] == []
    assert (type(moved), moved.note) == (Row, "kept")
    assert type(moved["inner"][0]) is Pair
    assert (type(ordered), type(proxy), word) == (OrderedDict, MappingProxyType, "word")
    assert torch.equal(row["image"], image), "what was given is as it was"


def test_what_draws_the_training_steps_numbers_whatever_it_is_given_is_no_sample() -> None:
    """Dropout and the like take no generator: they would race with the step for its numbers."""
    functional, ones = torch.nn.functional, torch.ones(2, 4)

    class Drawing(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index)()

    def read(draw: Any) -> torch.Tensor:
        given: torch.Tensor = MapSource(Drawing([draw])).batch(torch.tensor([0]), Draws(0, 0, torch.tensor([0])))
        return given

    for draw in (
        torch.nn.Dropout(),
        torch.nn.Dropout2d(),
        functional.gumbel_softmax,
        torch.nn.RReLU(),
        lambda x: torch.dropout(x, 0.5, True),
        lambda x: functional.gumbel_softmax(x, 1.0, False),
        lambda x: functional.rrelu(x, 0, 0.3, True),
        lambda x: functional.alpha_dropout(x, training=True),
    ):
        with pytest.raises(BadSample, match=r"sample 0: ValueError: \w+ draws from torch's global generator"):
            read(partial(draw, ones))
    for draw in (
        torch.nn.Dropout().eval(),
        torch.nn.Dropout(0.0),
        torch.nn.RReLU().eval(),
        lambda x: torch.dropout(x, 0.5, False),
        lambda x: torch.dropout(x, 0, True),
        functional.alpha_dropout,
        functional.rrelu,
    ):
        assert torch.equal(read(partial(draw, ones))[0], ones)
    before = torch.get_rng_state()
    split = partial(random_split, range(9), [4, 5])
    assert torch.equal(*(read(lambda: torch.tensor(split()[0].indices)) for _ in range(2)))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("collated", [True, False])
def test_samples_read_together_must_be_as_many_as_were_asked_for(collated: bool) -> None:
    """Of a batch that is put together already, members of one shape would make a batch of two samples."""
    values = torch.rand(6, 2)

    class Together(list[int]):
        def __getitems__(self, indices: list[int]) -> Any:
            return (values[indices], values[indices]) if collated else [values[i] for i in indices if i != 1]

    with pytest.raises(BadSample, match=r"samples \[0, 1, 2\]: __getitems__ gave 2 for 3 of them; it must give a list"):
        MapSource(Together(range(6))).batch(torch.arange(3))


def test_a_list_of_samples_is_a_data_set() -> None:
    """As PyTorch's DataLoader takes it; two tensors in a list are inputs and targets."""
    pairs = [(torch.full((2,), float(place)), place) for place in range(5)]
    inputs, labels = as_source(pairs).batch(torch.tensor([4, 1]))
    assert inputs.tolist() == [[4.0, 4.0], [1.0, 1.0]]
    assert labels.tolist() == [4, 1]
    named = as_source([{"x": pair[0], "y": pair[1]} for pair in pairs]).batch(torch.tensor([3]))
    assert named["y"].tolist() == [3]
    assert len(as_source([torch.ones(4, 2), torch.zeros(4)])) == 4


class Graphs:
    """A batch that is no tensor and moves by itself, as those of graph libraries."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def to(self, device: torch.device) -> Graphs:
        return Graphs(self.values.to(device))


def test_batches_that_move_by_themselves_are_moved() -> None:
    packed = torch.nn.utils.rnn.pack_sequence([torch.ones(3), torch.ones(1)])
    graphs, sequence, text = move((Graphs(torch.ones(2)), packed, "text"), torch.device("meta"))
    assert graphs.values.device.type == sequence.data.device.type == "meta"
    assert sequence.batch_sizes.device.type == "cpu"
    assert text == "text"


class Doubled(TensorSource):
    """One that makes batches in a way of its own."""

    def batch(self, indices: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (2 * super().batch(indices)[0],)


def test_a_class_of_its_own_stays_so_on_its_device() -> None:
    """Its batches were those of plain tensors, without a word."""
    moved = Doubled(torch.ones(3)).to(torch.device("cpu"))
    assert moved.batch(torch.tensor([0]))[0].item() == 2.0
    with DataLoader(Doubled(torch.ones(4)), batch_size=4) as loader:
        assert next(iter(loader))[0].tolist() == [2.0] * 4


def test_what_is_put_together_is_on_the_device_of_the_tensors() -> None:
    """New members of a batch stayed on the CPU."""
    source = collated(as_source(torch.ones(4, 2)), lambda rows: (torch.stack(rows), torch.zeros(len(rows))))
    batch = source.to(torch.device("meta")).batch(torch.tensor([0, 1]))
    assert {part.device.type for part in batch} == {"meta"}

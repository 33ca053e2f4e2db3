"""The resident source."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch

from ddp.data import TensorSource, as_source
from ddp.data.source import every


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

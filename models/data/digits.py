"""`digits`: 1797 real handwritten digits, 8x8 pixels (UCI Optdigits), bundled with scikit-learn; 359 are test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.images import held_out, images_source
from bench.models.data.options import DataOptions
from ddp.data import TensorSource

MEAN, STD = (0.3053,), (0.3760,)
TOP = 16


class Labelled(NamedTuple):
    """Images [n, 8, 8] of values 0 to `TOP`, and labels [n]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def read(fifths: int = 1) -> tuple[Labelled, Labelled]:
    """Return the digits to train with, and those of the test: so many fifths of each class."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    chosen = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        chosen[members[held_out(0, digit, len(members), fifths)]] = True
    train, test = (Labelled(images[part], labels[part]) for part in (~chosen, chosen))
    return train, test


def source(part: Labelled) -> TensorSource:
    """Return the part as samples, normalised."""
    return images_source(part.images, part.labels, TOP, MEAN, STD)


def _load() -> tuple[TensorSource, TensorSource]:
    train, test = read()
    return source(train), source(test)


def origin(load: Callable[[], tuple[TensorSource, TensorSource]]) -> Origin:
    """Say how the digits that `load` reads are opened. Nothing is to be made ready: scikit-learn brings the file."""

    def describe(data_dir: str, options: DataOptions) -> DataSet:
        return DataSet((1, 8, 8), 10, cache(load), STD)

    return Origin(describe, lambda data_dir, options: None)


ORIGIN = origin(_load)

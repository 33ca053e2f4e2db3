"""`digits`: 1797 real handwritten digits, 8x8 pixels (UCI Optdigits), bundled with scikit-learn; 359 are test."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.images import held_out, images_source
from bench.models.data.options import DataOptions
from ddp.data import TensorSource

MEAN, STD = (0.3053,), (0.3760,)
TOP = 16
FILE = "datasets/data/digits.csv.gz"
"""File in scikit-learn: a row for each digit, 64 pixels and the label. Read directly, because importing `load_digits` takes
a second."""


class Labelled(NamedTuple):
    """Images [n, 8, 8] of values 0 to `TOP`, and labels [n]."""

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def read(fifths: int = 1) -> tuple[Labelled, Labelled]:
    """Return the digits for training and those for the test, which are `fifths` fifths of each class."""
    rows = np.loadtxt(_package() / FILE, delimiter=",").astype(np.uint8)
    images, labels = rows[:, :-1].reshape(-1, 8, 8), rows[:, -1]
    chosen = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        members = np.flatnonzero(labels == digit)
        chosen[members[held_out(0, digit, len(members), fifths)]] = True
    train, test = (Labelled(images[part], labels[part]) for part in (~chosen, chosen))
    return train, test


def _package() -> Path:
    """Return scikit-learn's folder, without importing it. Raises ValueError if it is not installed."""
    if (spec := find_spec("sklearn")) is None or not spec.submodule_search_locations:
        raise ValueError("the digits come with scikit-learn, which is not installed: pip install scikit-learn")
    return Path(spec.submodule_search_locations[0])


def source(part: Labelled) -> TensorSource:
    """Return a part as normalised samples."""
    return images_source(part.images, part.labels, TOP, MEAN, STD)


def _load() -> tuple[TensorSource, TensorSource]:
    train, test = read()
    return source(train), source(test)


def origin(load: Callable[[], tuple[TensorSource, TensorSource]]) -> Origin:
    """Return how digits read by `load` are opened. Nothing needs to be prepared: the file comes with scikit-learn."""

    def describe(data_dir: str, options: DataOptions) -> DataSet:
        return DataSet((1, 8, 8), 10, cache(load), STD)

    return Origin(describe, lambda data_dir, options: None)


ORIGIN = origin(_load)

"""`digits`: 1797 real handwritten digits, 8x8 pixels (UCI Optdigits), bundled with scikit-learn; 359 are test."""

from __future__ import annotations

from functools import cache

import numpy as np

from ddp.data import order
from models.data.dataset import DataSet, Origin
from models.data.images import Pixels, pixels
from models.data.options import DataOptions

STD = (0.3760,)


def _prepare(data_dir: str, options: DataOptions) -> None:
    """Nothing to do: scikit-learn brings the file."""


def _load() -> tuple[Pixels, Pixels]:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images, labels = bunch.images.astype(np.uint8), bunch.target.astype(np.uint8)
    held_out = np.zeros(len(labels), dtype=bool)
    for digit in range(10):
        # A fifth of each digit, drawn with fixed seeds: the split is part of the data, not of a run.
        members = np.flatnonzero(labels == digit)
        held_out[members[order(0, digit, len(members))[: round(len(members) / 5)].numpy()]] = True
    train, test = (pixels(images[chosen], labels[chosen], 16, [0.3053], STD) for chosen in (~held_out, held_out))
    return train, test


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    return DataSet((1, 8, 8), 10, cache(_load), STD)


ORIGIN = Origin(_describe, _prepare)

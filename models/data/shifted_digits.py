"""`shifted_digits`: the training part of `digits`, and each of its digits moved by a pixel up, down, left and right: 7190.

The test is the 359 test digits of `digits`, not moved. An epoch is long enough for windows whose cost is small relative to
their work.
"""

from __future__ import annotations

import numpy as np

from bench.models.data.digits import Labelled, origin, read, source
from ddp.data import TensorSource

MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
"""Shifts in (rows, columns); free pixels are background."""


def _load() -> tuple[TensorSource, TensorSource]:
    train, test = read()
    padded = np.pad(train.images, ((0, 0), (1, 1), (1, 1)))
    height, width = train.images.shape[1:]
    moved = [padded[:, 1 - down : 1 - down + height, 1 - right : 1 - right + width] for down, right in MOVES]
    return source(Labelled(np.concatenate(moved), np.tile(train.labels, len(MOVES)))), source(test)


ORIGIN = origin(_load)

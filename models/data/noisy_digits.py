"""`noisy_digits`: the digits of `digits`, each in several copies that are moved at random and have noise.

Two fifths of the 1797 digits are test. All copies of a digit are in the same part. The test is large and hard enough to show
a difference of one percentage point in accuracy. All random numbers are integers, drawn by `Draws` from the part and the
index of the copy, so the content is the same on every machine.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.digits import TOP, Labelled, read
from bench.models.data.images import images_source
from bench.models.data.options import DataOptions
from ddp.data import Draws, TensorSource

FIFTHS = 2
"""Fifths of each class that are test."""
COPIES = (20, 8)
"""Copies of each digit for training and for the test: 21560 and 5752 images."""
MOVE = 1
"""Maximum shift of a copy in pixels, in each direction; the free pixels are background."""
NOISE = 2
"""Noise of a pixel: the sum of two uniform integers from -2 to 2, with a standard deviation of 2, where ink is 16."""
SEED = 20
AT_ONCE = 512
"""Number of images made at once, so that their random numbers fit a core's cache. Every rank and every audit makes all
images."""
MEAN, STD = (0.3025,), (0.3515,)


def copies(part: Labelled, count: int, side: int) -> Labelled:
    """Return `count` copies of each digit: the first copy of every digit, then the second copy of every digit, and so
    on."""
    images = torch.from_numpy(part.images.astype(np.int64)).repeat(count, 1, 1)
    noisy = [_copied(images[first : first + AT_ONCE], first, side) for first in range(0, len(images), AT_ONCE)]
    return Labelled(np.concatenate(noisy), np.tile(part.labels, count))


def _copied(images: Tensor, first: int, side: int) -> NDArray[np.uint8]:
    """Return images shifted and with noise. `first`: index of the first of them in its part."""
    height, width = images.shape[1:]
    draws = Draws(SEED, side, torch.arange(first, first + len(images)))
    down, right = draws.integers(0, 2 * MOVE + 1, 2).unbind(1)
    windows = functional.pad(images, (MOVE,) * 4).unfold(1, height, 1).unfold(2, width, 1)
    moved = windows[torch.arange(len(images)), down, right]
    noise = draws.integers(-NOISE, NOISE + 1, 2, height, width).sum(1)
    noisy: NDArray[np.uint8] = (moved + noise).clamp(0, TOP).to(torch.uint8).numpy()
    return noisy


@cache
def _parts() -> tuple[Labelled, ...]:
    return tuple(copies(part, count, side) for side, (part, count) in enumerate(zip(read(FIFTHS), COPIES, strict=True)))


def _load() -> tuple[TensorSource, TensorSource]:
    train, test = _parts()
    return _source(train), _source(test)


def _source(part: Labelled) -> TensorSource:
    return images_source(part.images, part.labels, TOP, MEAN, STD)


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    return DataSet((1, 8, 8), 10, _load, STD)


ORIGIN = Origin(_describe)

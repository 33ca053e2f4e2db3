"""`synthetic`: images drawn by a seed, a faint pattern for each class in noise; sizes free, for trying things."""

from __future__ import annotations

import math

import numpy as np
from numpy.random import PCG64
from numpy.typing import NDArray

from bench.models.data.dataset import DataSet, Origin, afford
from bench.models.data.images import images_source
from bench.models.data.options import DataOptions
from ddp.data import TensorSource, derive

SHAPE, CLASSES, SAMPLES = (3, 32, 32), 10, 10_000
"""Defaults."""
SPREAD = math.sqrt(10) / 4 / math.sqrt(12)
"""Standard deviation of a value in [0, 1]: three quarters of one draw plus a quarter of another."""


def _sizes(options: DataOptions) -> tuple[tuple[int, ...], int, int]:
    return options.shape or SHAPE, options.classes or CLASSES, options.samples or SAMPLES


def _bytes(seed: int, shape: tuple[int, ...]) -> NDArray[np.uint8]:
    """Draw uniform bytes from the raw output of PCG64 (NEP 19), the same on every machine."""
    count = math.prod(shape)
    words = PCG64(seed).random_raw(-(-count // 8)).astype("<u8", copy=False)
    return words.view(np.uint8)[:count].reshape(shape)


def _load(options: DataOptions) -> tuple[TensorSource, TensorSource]:
    shape, classes, samples = _sizes(options)
    seed = options.seed or 0
    patterns = _bytes(derive(seed, "patterns"), (classes, *shape))

    def part(name: str, count: int) -> TensorSource:
        labels = np.arange(count) % classes
        images = _bytes(derive(seed, name), (count, *shape))
        images -= images // 4
        images += patterns[labels] // 4
        return images_source(images, labels, 255, [0.5] * shape[0], [SPREAD] * shape[0])

    return part("train", samples), part("eval", math.ceil(samples / 5))


def _prepare(data_dir: str, options: DataOptions) -> None:
    """Raise ValueError if the data does not fit in the memory of a rank. There are no files to prepare."""
    shape, classes, samples = _sizes(options)
    size = math.prod(shape)
    afford(8 * samples * size + classes * size + 16 * samples, "data set synthetic of these samples, classes and shape")


def _describe(data_dir: str, options: DataOptions) -> DataSet:
    shape, classes, _ = _sizes(options)
    return DataSet(shape, classes, lambda: _load(options), (SPREAD,))


ORIGIN = Origin(_describe, _prepare)

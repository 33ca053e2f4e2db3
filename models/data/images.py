"""Images as samples: bytes that are normalised batch by batch, or float32 normalised at once if they are few. Knows no
file."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp.data import TensorSource, order

AT_ONCE = 192 << 20
"""Up to this many bytes of float32, images are normalised when they are loaded (MNIST: 179 MiB). Larger data sets stay
bytes: a quarter of the memory, for a few operations in each batch, whose time only matters for a small model."""


class Pixels(TensorSource):
    """Images [n, c, h, w], uint8 values from 0 to `top`, and labels [n], int64. Batches are normalised to float32.

    `mean` and `std` are by channel, in units of pixels in [0, 1]."""

    repeatable = True

    def __init__(self, images: Tensor, labels: Tensor, top: float, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(images, labels)
        # Tensors, not floats: a GPU divides by a float by multiplying with its inverse, which rounds differently.
        self._top, self._mean, self._std = (
            torch.tensor(values, dtype=torch.float32, device=images.device).view(-1, 1, 1)
            for values in ([top], mean, std)
        )

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Return the samples at `indices` (int64, shape [n]): (images, float32 [n, c, h, w]; labels, int64 [n])."""
        images, labels = super().batch(indices)
        return self._normalised(images), labels

    def to(self, device: torch.device) -> Pixels:
        moved = copy(self)
        moved.tensors = tuple(tensor.to(device) for tensor in self.tensors)
        moved._top, moved._mean, moved._std = (tensor.to(device) for tensor in (self._top, self._mean, self._std))
        return moved

    def at_once(self) -> TensorSource:
        """Return the same samples, normalised now."""
        images, labels = self.tensors
        return TensorSource(self._normalised(images), labels)

    def _normalised(self, images: Tensor) -> Tensor:
        return images.to(torch.float32).div_(self._top).sub_(self._mean).div_(self._std)


def held_out(seed: int, label: int, count: int, fifths: int = 1) -> list[int]:
    """Draw the samples of class `label` that are held out for evaluation: `fifths` fifths of `count`, in random order.

    `seed`: seed of the data set, not of a run."""
    places: list[int] = order(seed, label, count)[: round(count * fifths / 5)].tolist()
    return places


def images_source(
    images: NDArray[np.uint8], labels: NDArray[np.integer], top: float, mean: Sequence[float], std: Sequence[float]
) -> TensorSource:
    """Return a source of images [n, h, w] or [n, c, h, w] with labels [n]; parameters as in `Pixels`. Batches have the same
    bits whether images are normalised at once or batch by batch."""
    shaped = torch.from_numpy(images if images.ndim == 4 else images[:, None])
    source = Pixels(shaped, torch.from_numpy(labels.astype(np.int64, copy=False)), top, mean, std)
    return source.at_once() if 4 * shaped.numel() <= AT_ONCE else source

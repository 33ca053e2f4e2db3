"""Images as samples: kept as the bytes that they are, made into normalised numbers when a batch is. Knows no file."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ddp.data import TensorSource


class Pixels(TensorSource):
    """Images [n, c, h, w] of values 0 to `top`, uint8, and labels [n], int64; batches are normalised, float32.

    A quarter of the memory of float32, on the device too. `mean` and `std` are of each channel, on a scale of 0 to 1.
    """

    def __init__(self, images: Tensor, labels: Tensor, top: float, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__(images, labels)
        # Tensors, not numbers: a GPU divides by a number by multiplying with its inverse, which rounds differently.
        self._top, self._mean, self._std = (
            torch.tensor(values, dtype=torch.float32, device=images.device).view(-1, 1, 1)
            for values in ([top], mean, std)
        )

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The samples at `indices` (int64, shape [n]): (images, float32 [n, c, h, w]; labels, int64 [n])."""
        images, labels = super().batch(indices)
        return images.to(torch.float32).div_(self._top).sub_(self._mean).div_(self._std), labels

    def to(self, device: torch.device) -> Pixels:
        """The same data on `device`; memory is shared where it is there already."""
        moved = copy(self)
        moved.tensors = tuple(tensor.to(device) for tensor in self.tensors)
        moved._top, moved._mean, moved._std = (tensor.to(device) for tensor in (self._top, self._mean, self._std))
        return moved


def pixels(
    images: NDArray[np.uint8], labels: NDArray[np.uint8], top: float, mean: Sequence[float], std: Sequence[float]
) -> Pixels:
    """Images [n, h, w] or [n, c, h, w] and labels [n] as a source."""
    shaped = torch.from_numpy(images)
    return Pixels(
        shaped.unsqueeze(1) if shaped.dim() == 3 else shaped, torch.from_numpy(labels).to(torch.int64), top, mean, std
    )

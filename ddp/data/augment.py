"""Augmentation: functions of a batch and the random streams of its samples. The result for a sample is the same in every
mode, on every rank, in every batch and with either loader.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ddp.data.draws import Draws
from ddp.data.seeded import Undrawn

Augment = Callable[[Any, Draws], Any]
"""(batch, streams of its samples) -> batch. Called before the step with the batch of the data set, on the rank's device. It
must treat each sample independently, and make the same sequence of draws for every batch."""
DRAWN = (
    "augment draws from torch ({}), whose numbers belong to the training step: draw from its second argument, or from a "
    "generator that is made from that, or put what draws into the data set's __getitem__"
)


def crop_and_flip(padding: int) -> Augment:
    """Shift images by up to `padding` pixels, filling with zeros, and mirror half of them.

    The images [n, c, h, w], of any type, are the first member of the batch. Source: He et al., Deep residual learning for
    image recognition, CVPR 2016, 4.2 (padding 4). Raise ValueError for a negative padding."""
    if not isinstance(padding, int) or padding < 0:
        raise ValueError(f"padding={padding!r} must be a whole number of 0 or more")
    return partial(_crop_and_flip, padding)


def _crop_and_flip(padding: int, batch: Any, draws: Draws) -> Any:
    if isinstance(batch, Tensor):
        return shift_and_flip(batch, padding, draws)
    return (shift_and_flip(batch[0], padding, draws), *batch[1:])


def shift_and_flip(images: Tensor, padding: int, draws: Draws) -> Tensor:
    """Apply `crop_and_flip` to images [n, c, h, w] themselves, for batches with another structure. Raise ValueError for
    tensors of another shape."""
    if images.dim() != 4:
        raise ValueError(f"crop_and_flip is for images [n, c, h, w], not for a tensor of shape {list(images.shape)}")
    count, _, height, width = images.shape
    down, right = draws.integers(0, 2 * padding + 1, 2).unbind(1)
    mirrored = draws.integers(0, 2, 1, 1, 1).bool()
    padded = functional.pad(images, (padding, padding, padding, padding))
    # A view of all possible crops; one crop of each image is copied.
    crops = padded.unfold(2, height, 1).unfold(3, width, 1)
    cropped = crops[torch.arange(count, device=images.device), :, down, right]
    return torch.where(mirrored, cropped.flip(3), cropped)


def augmented(augment: Augment | None, batch: Any, draws: Callable[[], Draws]) -> Any:
    """Return `batch` after augmentation; `draws` makes the random streams of its samples.

    Raise ValueError if the function returns None, or draws from torch's generator: in a thread that reads ahead it would
    race with the training step for random numbers.
    """
    if augment is None:
        return batch
    streams = draws()
    with Undrawn(DRAWN):
        changed = augment(batch, streams)
    if changed is None:
        raise ValueError("augment returned nothing; it must return the batch that the model is to see")
    return changed

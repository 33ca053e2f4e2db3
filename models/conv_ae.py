"""`conv_ae`: a convolutional autoencoder of handwritten digits, judged by its squared error: lower is better.

The published set-up gives the loss, the optimizer and an error. The network is ours: two convolutions with stride 2, then
two transposed ones. Deviations from Masci et al.: strides instead of max pooling, ReLU instead of tanh, and all layers are
trained together, not one after the other. The error is that of pixels in [0, 1], however images are normalised.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bench.models.data import DataSet
from bench.models.parts import Evaluate, Loss, images_of, recorded, task_on
from bench.models.setup import Recipe, Setup
from ddp.replica.task import Task, Tensors

WIDTHS = (16, 32)
SMALL, SMALL_WIDTHS = 16, (32, 8)
"""Images below this height have a bottleneck of 8 maps without ReLU. With 32 maps, the code of an 8x8 image would have more
numbers than the image; with ReLU, the number of dead maps among so few would depend on the seed."""


class ConvAE(nn.Module):
    """[n, c, h, w] -> [n, c, h, w], through 32 maps (8 for small images) of a quarter of the height and width, rounded up.
    13,265 parameters for one channel, 7,273 for small images."""

    def __init__(self, data: DataSet) -> None:
        super().__init__()
        small = data.shape[1] < SMALL
        channels, (outer, inner) = data.shape[0], SMALL_WIDTHS if small else WIDTHS
        code = nn.Identity() if small else nn.ReLU()
        self.encode = nn.Sequential(
            nn.Conv2d(channels, outer, 3, 2, 1), nn.ReLU(), nn.Conv2d(outer, inner, 3, 2, 1), code
        )
        self.decode = nn.Sequential(
            nn.ConvTranspose2d(inner, outer, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(outer, channels, 4, 2, 1)
        )

    def forward(self, images: Tensor) -> Tensor:
        out: Tensor = self.decode(self.encode(images))
        return out[:, :, : images.shape[2], : images.shape[3]]


def judged(data: DataSet) -> tuple[Loss, Evaluate]:
    """Return (loss, evaluate): the mean squared error of a pixel, and its sum over samples, which is both loss and
    metric."""

    def loss(model: nn.Module, batch: Tensors) -> Tensor:
        images = batch[0]
        unit = torch.tensor(data.std, dtype=images.dtype, device=images.device).view(-1, 1, 1)
        error: Tensor = (model(images) - images) * unit
        return recorded("mse", error.square().mean(), len(images))

    def evaluate(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
        total = loss(model, batch) * len(batch[0])
        return total, total

    return loss, evaluate


def task(recipe: Recipe, data_dir: str) -> Task:
    """Return the task, trained with Adam in both recipes, as published."""
    data = images_of(recipe, data_dir)
    return task_on(data, ConvAE, torch.optim.Adam, recipe, *judged(data))


SETUP = Setup(
    summary="a convolutional autoencoder of handwritten digits",
    citation="Masci et al., Stacked Convolutional Auto-Encoders for Hierarchical Feature Extraction, ICANN 2011",
    published="test MSE .0006 on MNIST after 5 epochs (Adam 1e-3, batch 64), measured beside the set-up, which names none",
    metric="mse",
    higher_is_better=False,
    recipes={
        "quick": Recipe("noisy_digits", 3, 16, 3e-3, 0.0085, "cosine"),
        "published": Recipe(data="mnist", epochs=5, batch_size=64, lr=1e-3, target=0.001),
    },
    task=task,
)

"""`resnet`: ResNet-20 of He et al. for small images, of plain modules; `model.depth` makes it any 6n + 2.

`resnet_graph` is the same network, made by the flow builder. From the same seed both have the same bits, because they draw
values in the same order.

Deviations from the paper: the last layer starts near zero, so that training starts from equal probabilities (the paper does
not say); the published set-up trains 200 epochs, the paper 64,000 steps of 128 samples, which are 182 epochs of its 45,000
samples. The batch of 128 is the paper's; the published set-up has 64.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import DataOptions, DataSet
from bench.models.parts import classification, classifier
from bench.models.setup import Recipe, Setup
from ddp.replica.task import Task

WIDTHS = (16, 32, 64)
DEPTH = 20
"""Default number of layers with weights."""


def blocks(depth: int) -> int:
    """Return n, the number of blocks for each width in a network of `depth` = 6n + 2 layers with weights. Raise ValueError
    for another depth."""
    if depth < 8 or depth % 6 != 2:
        near = max(round((depth - 2) / 6), 1) * 6 + 2
        raise ValueError(f"model.depth={depth} is not 6n + 2, as 20, 32, 44, 56 and 110 are; {near} is the nearest")
    return (depth - 2) // 6


class PadShortcut(nn.Module):
    """The paper's option A, a shortcut without parameters: every second pixel, new channels zero. [n, c, h, w] -> [n, 2c,
    h/2, w/2]."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the shortcut's value; h/2 and w/2 are rounded up."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))


def conv3x3(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    """Make a 3x3 convolution without bias (a norm follows), initialised after He et al. 2015, as the paper does."""
    conv = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


class CifarBlock(nn.Module):
    """Two convolutions with a shortcut. Where the width grows, height and width of the image are halved."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(channels, out, 1 if channels == out else 2)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = conv3x3(out, out)
        self.norm2 = nn.BatchNorm2d(out)
        self.shortcut = nn.Identity() if channels == out else PadShortcut()

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, channels, h, w] -> [n, out, h, w], or to half of h and w, rounded up."""
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + residual)


def build(data: DataSet, depth: int = DEPTH) -> nn.Module:
    """Build the model: [n, c, h, w] -> logits [n, classes]. 269,722 parameters for 3 channels, 10 classes and 20 layers."""
    first, last = WIDTHS[0], WIDTHS[-1]
    widths = [first, *(width for width in WIDTHS for _ in range(blocks(depth)))]
    return nn.Sequential(
        conv3x3(data.shape[0], first),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        *(CifarBlock(before, after) for before, after in pairwise(widths)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        classifier(last, data.classes),
    )


def task_of(model: Callable[[DataSet, int], nn.Module], recipe: Recipe, data_dir: str) -> Task:
    """Return the task of training a ResNet made by `model`, a function (data, depth) -> module. Raise ValueError for an
    invalid depth.

    Both recipes use SGD with momentum .9 and weight decay 1e-4 on all parameters, as published."""
    depth = recipe.depth or DEPTH
    blocks(depth)
    optimizer = partial(torch.optim.SGD, momentum=0.9, weight_decay=1e-4)
    return classification(lambda data: model(data, depth), optimizer, recipe, data_dir)


SETUP = Setup(
    summary="ResNet-20 of plain modules, batch norm, parameter-free shortcuts",
    citation="He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2",
    published="test accuracy .9125 on CIFAR-10 after 200 epochs (SGD .1, batch 128, /10 at 50 and 75%), crops and flips",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe("noisy_digits", 3, 64, 0.1, 0.96, "cosine", data_options=DataOptions(samples=10_780)),
        "published": Recipe("cifar10", 200, 128, lr=0.1, target=0.9125, schedule="steps", augment=True),
    },
    task=partial(task_of, build),
    depth=DEPTH,
)

"""`resnet_graph`: ResNet-20 of He et al. for small images, written with the flow builder."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ddp.graph import FlowBuilder, Graph
from ddp.runtime.task import Task
from models.data import DataSet
from models.parts import classification
from models.setup import Recipe, Setup

WIDTHS = (16, 32, 64)
BLOCKS = 3
"""Blocks for each width: 6 * BLOCKS + 2 = 20 layers with weights."""


class PadShortcut(nn.Module):
    """The paper's option A, without parameters: every second pixel, new channels zero. [n, c, h, w] -> [n, 2c, h/2, w/2]."""

    def forward(self, x: Tensor) -> Tensor:
        """The shortcut's value, h and w rounded up."""
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, x.shape[1]))


def conv3x3(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution without bias (a norm follows), initialised after He et al. 2015, as the paper does."""
    conv = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def block(channels: int, out: int) -> FlowBuilder:
    """The residual part of a block; where the width grows, the image halves."""
    return (
        FlowBuilder.from_(conv3x3(channels, out, 1 if channels == out else 2))
        .label("conv1")
        .through(nn.BatchNorm2d(out))
        .label("norm1")
        .through(nn.ReLU())
        .through(conv3x3(out, out))
        .label("conv2")
        .through(nn.BatchNorm2d(out))
        .label("norm2")
    )


def build(data: DataSet) -> Graph:
    """[n, c, h, w] -> logits [n, classes], also tagged `logits`. 269,722 parameters for 3 channels and 10 classes."""
    channels = WIDTHS[0]
    flow = FlowBuilder.from_(conv3x3(data.shape[0], channels)).label("stem")
    flow.through(nn.BatchNorm2d(channels)).label("stem_norm").through(nn.ReLU())
    for stage, width in enumerate(WIDTHS, 1):
        for index in range(1, BLOCKS + 1):
            residual = block(channels, width)
            flow = flow.also(residual) if channels == width else flow.also_with(PadShortcut(), residual)
            flow.label(f"stage{stage}_block{index}").through(nn.ReLU())
            channels = width
    flow.through(nn.AdaptiveAvgPool2d(1)).through(nn.Flatten())
    return flow.through(_classifier(channels, data.classes)).label("classifier").tag("logits").build()


def _classifier(channels: int, classes: int) -> nn.Linear:
    # Near zero, so that training starts from even odds, a loss of ln(classes): the paper leaves this layer open.
    linear = nn.Linear(channels, classes)
    nn.init.normal_(linear.weight, std=0.01)
    nn.init.zeros_(linear.bias)
    return linear


def task(recipe: Recipe, data_dir: str) -> Task:
    """SGD with momentum .9 and weight decay 1e-4 on everything, as published; both recipes."""
    optimizer = partial(torch.optim.SGD, lr=recipe.lr, momentum=0.9, weight_decay=1e-4)
    return classification(build, optimizer, recipe, data_dir)


SETUP = Setup(
    summary="ResNet-20 by the flow builder, batch norm, parameter-free shortcuts",
    citation="He et al., Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2",
    published="test accuracy .9125 on CIFAR-10 after 200 epochs (SGD .1, batch 128, /10 at 50 and 75%); not augmented yet",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe(data="digits", epochs=16, batch_size=32, lr=0.05, target=0.97, schedule="cosine"),
        "published": Recipe(data="cifar10", epochs=200, batch_size=128, lr=0.1, target=0.9125, schedule="steps"),
    },
    task=task,
)

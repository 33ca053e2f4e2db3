"""`resnet34`: the ResNet-34 of He et al. on small images of many classes.

Deviations from the paper, which trains it on ImageNet: the first convolution is 3x3 without stride or pooling, as is usual
for images of 32x32; shortcuts are 1x1 convolutions where the size changes (the paper's option B), as in torchvision; Adam at
a constant rate, from the published set-up; the last layer starts near zero. For images below 16 pixels the network has a
quarter of the widths (a step of 21 million weights takes a core half a second, however small the images), and halves the
images twice instead of three times.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.models.data import DataOptions, DataSet
from bench.models.parts import classification, classifier
from bench.models.resnet import conv3x3
from bench.models.setup import Recipe, Setup

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""(width, blocks) of each stage: 2 layers with weights in a block, and 2 more, are 34."""
SMALL, NARROW = 16, 4
"""Widths are divided by `NARROW` for images below this height."""


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = conv3x3(channels, out, stride), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = conv3x3(out, out), nn.BatchNorm2d(out)
        self.shortcut = nn.Identity() if channels == out else _projection(channels, out, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, channels, h, w] -> [n, out, h / stride, w / stride], rounded up."""
        residual = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(self.shortcut(x) + residual)


def _projection(channels: int, out: int, stride: int) -> nn.Module:
    conv = nn.Conv2d(channels, out, 1, stride, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return nn.Sequential(conv, nn.BatchNorm2d(out))


def build(data: DataSet) -> nn.Module:
    """Build the model: [n, c, h, w] -> logits [n, classes]. 21,328,292 parameters for 3x32x32 pixels and 100 classes,
    1,334,330 for 1x8x8 pixels and 10."""
    small = data.shape[1] < SMALL
    share = NARROW if small else 1
    channels = STAGES[0][0] // share
    layers: list[nn.Module] = [conv3x3(data.shape[0], channels), nn.BatchNorm2d(channels), nn.ReLU()]
    for stage, (width, blocks) in enumerate(STAGES):
        # Keep more than one pixel: batch norm cannot normalise one pixel of a last batch of one sample.
        stride = 1 if stage == 0 or (small and stage == len(STAGES) - 1) else 2
        for block in range(blocks):
            layers.append(BasicBlock(channels, width // share, stride if block == 0 else 1))
            channels = width // share
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier(channels, data.classes))


SETUP = Setup(
    summary="ResNet-34 for small images of many classes",
    citation="He et al., Deep Residual Learning for Image Recognition, CVPR 2016, table 1",
    published="no value: 100 epochs on CIFAR-100 (Adam 1e-3, weight decay 1e-4, batch 32) are published for their speed",
    metric="accuracy",
    higher_is_better=True,
    recipes={
        "quick": Recipe("noisy_digits", 3, 32, 1e-3, 0.94, "cosine", data_options=DataOptions(samples=10_780)),
        "published": Recipe(data="cifar100", epochs=100, batch_size=32, lr=1e-3, target=0.5, augment=True),
    },
    task=partial(classification, build, partial(torch.optim.Adam, weight_decay=1e-4)),  # in the gradient, as published
)

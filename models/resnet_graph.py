"""`resnet_graph`: ResNet-20 of He et al. for small images, written with the flow builder.

The same network as `resnet`, with the same parts, recipes and deviations; from the same seed it has the same bits.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import nn

from bench.models import resnet
from bench.models.data import DataSet
from bench.models.parts import classifier
from bench.models.resnet import DEPTH, WIDTHS, PadShortcut, blocks, conv3x3, task_of
from ddp.graph import FlowBuilder, Graph


def block(channels: int, out: int) -> FlowBuilder:
    """Make the residual branch of a block. Where the width grows, height and width of the image are halved."""
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


def build(data: DataSet, depth: int = DEPTH) -> Graph:
    """Build the model: [n, c, h, w] -> logits [n, classes], tagged `logits`. Its parameters are those of `resnet`, in the
    same order."""
    channels = WIDTHS[0]
    flow = FlowBuilder.from_(conv3x3(data.shape[0], channels)).label("stem")
    flow.through(nn.BatchNorm2d(channels)).label("stem_norm").through(nn.ReLU())
    for stage, width in enumerate(WIDTHS, 1):
        for index in range(1, blocks(depth) + 1):
            residual = block(channels, width)
            flow = flow.also(residual) if channels == width else flow.also_with(PadShortcut(), residual)
            flow.label(f"stage{stage}_block{index}").through(nn.ReLU())
            channels = width
    flow.through(nn.AdaptiveAvgPool2d(1)).through(nn.Flatten())
    return flow.through(classifier(channels, data.classes)).label("classifier").tag("logits").build()


SETUP = replace(
    resnet.SETUP,
    summary="ResNet-20 by the flow builder, batch norm, parameter-free shortcuts",
    task=partial(task_of, build),
)

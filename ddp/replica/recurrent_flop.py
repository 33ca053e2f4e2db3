"""FLOP of fused recurrent layers, which torch's counter does not know: their matrix products, as it counts other layers.

Each token of a layer is multiplied by each of its matrices once; the backward pass does so twice, for the inputs and for
the weights. Knows no model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

Shape = Sequence[int]


def _products(inputs: Shape, weights: Sequence[Shape]) -> int:
    """Return the FLOP of a pass over inputs [.., features] with those `weights` that are matrices; others are biases."""
    return 2 * math.prod(inputs[:-1]) * sum(math.prod(shape) for shape in weights if len(shape) == 2)


def _layer(inputs: Shape, *rest: Any, **_: Any) -> int:
    return _products(inputs, rest[:4])


def _layer_backward(inputs: Shape, *rest: Any, **_: Any) -> int:
    return 2 * _products(inputs, rest[:4])


def _stack(inputs: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    return _products(inputs, weights)


def _stack_backward(inputs: Shape, weights: Sequence[Shape], *_: Any, **__: Any) -> int:
    return 2 * _products(inputs, weights)


FUSED: dict[Any, Callable[..., int]] = {
    torch.ops.aten.mkldnn_rnn_layer: _layer,
    torch.ops.aten.mkldnn_rnn_layer_backward: _layer_backward,
    torch.ops.aten._cudnn_rnn: _stack,
    torch.ops.aten._cudnn_rnn_backward: _stack_backward,
}
"""Operation -> FLOP from the shapes of its arguments: the `custom_mapping` of torch's counter."""

"""The parts of a run's configuration on which a step depends, and what they mean by the documents. Must not use the
engine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ddp.core.settings.steps import PLAIN, StepSettings


@dataclass(frozen=True)
class Rules:
    """The parts of a run's configuration on which a step depends."""

    seed: int
    epochs: int
    samples: int
    """Samples in an epoch."""
    lr_scale: float
    max_grad_norm: float | None = None
    own_buffers: bool = False
    """Whether every rank keeps its own buffers in a step of all ranks, as PyTorch's modules do."""
    model: str = ""
    """Bundled model whose loss and metric must agree with their definitions."""
    step: StepSettings = PLAIN
    batch_size: int = 0
    """Samples of one step of one rank."""
    own_batches: bool = False
    """Whether each rank has batches of its own in a step of all ranks, as in `graph_cadence`."""


def micro_ends(rules: Rules, model: nn.Module, span: tuple[int, int], total: int, ranks: int) -> list[int]:
    """Return the boundaries of the micro-batches of a batch. Their sizes are equal, or one larger for the first ones.

    Their number follows from the largest slice of the `ranks` that share a step, so that each has at most `batch_size /
    accumulate` samples; with batch norm each has at least two. A slice above the even share is cut by itself.
    """
    (start, stop), accumulate = span, rules.step.accumulate
    if accumulate == 1:
        return [start, stop]
    size = stop - start
    least = 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1
    even = -(-total // ranks)
    largest, smallest = (even, total // ranks) if ranks > 1 and size <= even else (size, size)
    parts = -(-largest * accumulate // rules.batch_size)
    parts = max(1, min(parts, smallest // least, size // least))
    each, odd = divmod(size, parts)
    return [start + part * each + min(part, odd) for part in range(parts + 1)]


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> type of the multiplications. Repeated here, as the audit must not use the engine."""


LEFT_OUT = 4.0
"""Roundings of half precision by which a compiled step may differ."""


def left_out_roundings(step: StepSettings) -> float:
    """Return the relative difference that a compiled step may have, as a compiler omits roundings that autocast makes
    in each layer.

    Measured were 1.2 roundings: 20 layers in bf16 and fp16 on an H100, and `lenet` in bf16 on a CPU.
    """
    return LEFT_OUT * torch.finfo(HALF[step.precision]).eps if step.compile and step.half else 0.0


def autocast(step: StepSettings, device: torch.device) -> AbstractContextManager[Any]:
    """Return the context of a forward pass."""
    return torch.autocast(device.type, HALF[step.precision]) if step.half else nullcontext()


def own_gradients(parameters: Iterable[Tensor]) -> int:
    """Copy each gradient: PyTorch gives those of two parameters that are added the same memory, and what then changes
    one in place (a further pass, clipping) changes both. Return the bytes that they had, shared ones counted once."""
    spans, size, reached = list[tuple[int, int]](), 0, 0
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.layout is torch.strided:
                spans.append((parameter.grad.data_ptr(), parameter.grad.data_ptr() + parameter.grad.nbytes))
            parameter.grad = parameter.grad.clone()
    for start, stop in sorted(spans):
        size, reached = size + max(stop - max(start, reached), 0), max(reached, stop)
    return size


def unscale(
    step: StepSettings, parameters: Sequence[Tensor], scale: tuple[float, int]
) -> tuple[bool, tuple[float, int]]:
    """Divide gradients by the loss scale; return whether the step is taken, and (scale, steps since it changed) after
    it."""
    if step.precision != "fp16":
        return True, scale
    (value, steps), gradients = scale, [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        gradient.div_(value)
    if value > 1.0 and not all(bool(gradient.isfinite().all()) for gradient in gradients):
        return False, (max(value / 2, 1.0), 0)
    return True, ((value * 2, 0) if steps + 1 == 2000 else (value, steps + 1))


def total_of(parts: Sequence[Tensor], shaken: bool) -> Tensor:
    """Return the sum of the ranks' gradients. `shaken`: perturb sums that cancel to zero up to rounding, as another
    order would.

    In half precision such sums are frequent, and an optimizer that divides by a gradient's size makes a full step of a
    tiny one.
    """
    total = reduce(torch.add, parts)
    if not shaken or len(parts) == 1:
        return total
    rounding = len(parts) * torch.finfo(total.dtype).eps * reduce(torch.add, [part.abs() for part in parts])
    return torch.where(total.abs() > rounding, total, torch.where(total == 0.0, rounding, 0.0))


def norm_of(gradients: Iterable[Tensor]) -> float:
    """Return the L2 norm over all values in double precision."""
    values = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    return math.sqrt(sum(float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in values))

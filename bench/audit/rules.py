"""What of a run's configuration a step depends on, and what that means for it, as documented. Must not use the engine."""

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

from ddp.core.step_settings import PLAIN, StepSettings


@dataclass(frozen=True)
class Rules:
    """What of a run's configuration a step depends on."""

    seed: int
    epochs: int
    samples: int
    """Of an epoch."""
    lr_scale: float
    max_grad_norm: float | None = None
    own_buffers: bool = False
    """Whether every rank keeps its own buffers in a step of all ranks, as PyTorch's modules do."""
    model: str = ""
    """Whose loss and metric are to be what they are by definition."""
    step: StepSettings = PLAIN
    batch_size: int = 0
    """Samples of one step of one rank."""
    one_process: bool = False
    """Whether a rank cuts its batches into micro-batches whatever the others have, as those of one process do."""


def micro_ends(rules: Rules, model: nn.Module, span: tuple[int, int], total: int, ranks: int) -> list[int]:
    """Return where the micro-batches of a batch begin and end: equal parts, the first have the odd samples.

    There are as many as the largest slice of `ranks` that share a step needs, each of at most `batch_size / accumulate`
    samples; a part has two samples at least where the model has batch norm."""
    (start, stop), accumulate = span, rules.step.accumulate
    if accumulate == 1:
        return [start, stop]
    size = stop - start
    least = 2 if any(isinstance(module, _BatchNorm) for module in model.modules()) else 1
    largest, smallest = (-(-total // ranks), total // ranks) if ranks > 1 else (size, size)
    parts = -(-largest * accumulate // rules.batch_size)
    parts = max(1, min(parts, smallest // least, size // least))
    each, odd = divmod(size, parts)
    return [start + part * each + min(part, odd) for part in range(parts + 1)]


HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Precision -> the type of the multiplications. Not the engine's: the audit must not use it."""


LEFT_OUT = 4.0
"""Roundings of half precision by which a figure, or a change of the state, of a compiled step may be another."""


def left_out_roundings(step: StepSettings) -> float:
    """Return how far, of itself, what a step gives may be off because a compiler leaves out roundings that autocast makes in
    each layer: 1.2 roundings were seen, of 20 layers in bf16 and fp16 on an H100, and of `lenet` in bf16 on a CPU."""
    return LEFT_OUT * torch.finfo(HALF[step.precision]).eps if step.compile and step.half else 0.0


def autocast(step: StepSettings, device: torch.device) -> AbstractContextManager[Any]:
    """Return what a forward pass is computed in."""
    return torch.autocast(device.type, HALF[step.precision]) if step.half else nullcontext()


def unscale(
    step: StepSettings, parameters: Sequence[Tensor], scale: tuple[float, int]
) -> tuple[bool, tuple[float, int]]:
    """Divide gradients by the scale of the loss; return whether the step is done, and the scale behind it."""
    if step.precision != "fp16":
        return True, scale
    (value, steps), gradients = scale, [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        gradient.div_(value)
    if value > 1.0 and not all(bool(gradient.isfinite().all()) for gradient in gradients):
        return False, (max(value / 2, 1.0), 0)
    return True, ((value * 2, 0) if steps + 1 == 2000 else (value, steps + 1))


def total_of(parts: Sequence[Tensor], shaken: bool) -> Tensor:
    """Return the sum of gradients of ranks. `shaken`: as in another order, where values cancel out but for roundings.
    Those of half precision often do, and an optimizer that divides by a gradient's size tells nothing from next to it."""
    total = reduce(torch.add, parts)
    if not shaken or len(parts) == 1:
        return total
    rounding = len(parts) * torch.finfo(total.dtype).eps * reduce(torch.add, [part.abs() for part in parts])
    return torch.where(total.abs() > rounding, total, torch.where(total == 0.0, rounding, 0.0))


def norm_of(gradients: Iterable[Tensor]) -> float:
    """Return the L2 norm over all values, taken in double precision."""
    values = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    return math.sqrt(sum(float(torch.linalg.vector_norm(each, dtype=torch.float64)) ** 2 for each in values))

"""Compares the gradient of a set-up's training loss with its numerical derivative. Knows no model.

The outputs do not show an error in a backward pass alone: recomputed layers with another dropout mask, or a scaled
gradient. All is computed in double precision with one dropout mask, so rounding does not matter.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddp.replica.scalars import Scalars
from ddp.replica.task import Task

STEP = 1e-8
"""Step relative to a parameter's root mean square: few ReLUs change sign within it, and a slope has five correct
digits."""


def slope(task: Task, model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, float]:
    """Return the loss in training mode, and the difference between its numerical slope and that of the gradient,
    relative to the norm of the parameters' contributions. Leaves the model in double precision with moved
    parameters."""
    model.double().train()
    inputs = batch[0].double() if batch[0].is_floating_point() else batch[0]
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]

    def loss() -> Tensor:
        torch.manual_seed(1)
        with Scalars():
            return task.loss(model, (inputs, batch[1]))

    model.zero_grad()
    with torch.enable_grad():
        first = loss()
        first.backward()  # type: ignore[no-untyped-call]
    ways = [_way(number, parameter.detach()) for number, parameter in enumerate(parameters)]
    ends = []
    for move in (STEP, -2 * STEP):
        with torch.no_grad():
            for parameter, way in zip(parameters, ways, strict=True):
                parameter.add_(way, alpha=move)
            ends.append(float(loss()))
    pairs = zip(parameters, ways, strict=True)
    parts = [0.0 if parameter.grad is None else float((parameter.grad * way).sum()) for parameter, way in pairs]
    apart = (ends[0] - ends[1]) / (2 * STEP) - sum(parts)
    relative = round(apart / sum(part**2 for part in parts) ** 0.5, 4)
    return {"loss": float(first.detach()), "slope without gradient": relative + 0.0}


def _way(number: int, values: Tensor) -> Tensor:
    """Return the direction in which a parameter is moved: a sine wave of the size of its values."""
    wave = torch.sin(torch.arange(values.numel(), dtype=torch.float64) * 0.7 + number).view(values.shape)
    return wave * (float(values.square().mean()) ** 0.5 or 1.0)

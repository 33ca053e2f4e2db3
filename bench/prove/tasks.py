"""Tasks prepared for a proof: without random augmentation, in double precision, or with visible gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ddp.replica.norms import least_samples
from ddp.replica.task import Source, Task

Make = Callable[[], Task]


def check_size(data: Source, steps: int, samples: int) -> None:
    """Raise ValueError if `steps` steps of `samples` samples are more than the data has: a proof is of one epoch."""
    if steps * samples > len(data):
        need = f"{steps} steps of {samples} samples of all ranks"
        raise ValueError(f"{need} are more than the {len(data)} of the data: give a smaller --batch, or fewer --steps")


def least(make: Make) -> int:
    """Return the least samples of a slice for this task's model."""
    return least_samples(make().model())


def plain(make: Make) -> Make:
    """Return the task without its own randomness per sample: augmentation and sampler."""
    return partial(_plain, make)


def _plain(make: Make) -> Task:
    return replace(make(), augment=None, sampler=None, drop_last=False)


def double(make: Make) -> Make:
    """Return the task in double precision."""
    return partial(_double, make)


def _double(make: Make) -> Task:
    task = make()

    def model() -> nn.Module:
        return task.model().double()

    return replace(
        task, model=model, train_data=lambda: Wide(task.train_data()), eval_data=lambda: Wide(task.eval_data())
    )


class Wide:
    """A source whose real numbers are converted to double precision."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def batch(self, indices: torch.Tensor) -> Any:
        """Return the samples at `indices`."""
        return tree_map(_wide, self._source.batch(indices))

    def to(self, device: torch.device) -> Wide:
        """Return the same data on `device`."""
        return Wide(self._source.to(device))


def _wide(value: Any) -> Any:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


class TakeGradient(torch.optim.SGD):
    """An optimizer that replaces each parameter by its gradient, so that gathering a sharded model shows the
    gradients."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Replace the parameters by their gradients; zero if there is none."""
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.copy_(parameter.grad if parameter.grad is not None else torch.zeros_like(parameter))


def gradient_task(task: Task, state: Path) -> Task:
    """Return the task that begins with a saved state, and whose first step leaves the gradient in place of the
    parameters."""
    build = task.model

    def model() -> torch.nn.Module:
        made = build()
        made.load_state_dict(torch.load(state))
        return made

    return replace(task, model=model, optimizer=lambda parameters: TakeGradient(parameters, lr=1.0))


def gradient(make: Make, state: Path) -> Task:
    """Return `gradient_task` of a new task; ranks can import this function by name."""
    return gradient_task(make(), state)

"""Accumulates what a rank has trained and not reported yet. Knows neither reports nor when they are due."""

from __future__ import annotations

import torch

from ddp.core.values.frozen import finite


class Pending:
    """The training of one epoch that is not reported yet."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.steps = self.samples = 0
        self.busy_s = 0.0
        self._loss_sum = 0.0
        self._losses: list[torch.Tensor] = []
        """Losses of steps on a GPU, read only when the report is due."""
        self._weights: list[int] = []

    def add(self, loss: torch.Tensor | None, samples: int, busy_s: float) -> None:
        """Add one step. Must be fast: a small model's step takes a fraction of a millisecond."""
        self.steps += 1
        self.samples += samples
        self.busy_s += busy_s
        if loss is None:
            return
        if loss.device.type == "cpu":
            self._loss_sum += loss.detach().item() * samples
        else:
            self._losses.append(loss.detach())
            self._weights.append(samples)

    def loss_sum(self) -> float | None:
        """Return the sum of the loss over samples; None if it is not finite."""
        total = self._loss_sum
        if self._losses:
            losses = torch.stack(self._losses).double().cpu()
            total += float(losses @ torch.tensor(self._weights, dtype=torch.float64))
        return finite(total)

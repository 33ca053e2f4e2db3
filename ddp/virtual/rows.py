"""The replicas of many ranks as rows of one tensor, and vectorised steps of many ranks (`torch.func`).

Owns parameters, optimizer state and the arithmetic of steps. Knows nothing of events, rounds or time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from ddp.core.worker import Step
from ddp.replica.evidence.pieces import OPTIMIZER, PARAMETERS, StatePiece
from ddp.replica.replica import Replica
from ddp.replica.task import Job, Task, Tensors
from ddp.virtual.row_optimizer import RowOptimizer

TOGETHER = 128
"""Number of ranks in one operation, so that its results fit the caches."""


class _Loss(nn.Module):
    """A task's loss as a module that has the model, which so gets other parameters wherever the loss reads them."""

    def __init__(self, task: Task, model: nn.Module) -> None:
        super().__init__()
        self._task, self.model = task, model

    def forward(self, batch: Tensors) -> Tensor:
        """Return the loss of a batch."""
        return self._task.loss(self.model, batch)


def loss_of(task: Task, model: nn.Module) -> Callable[[dict[str, Tensor], Tensors], Tensor]:
    """Return a function of (parameters by name, batch) that returns the loss, for `torch.func`."""
    loss = _Loss(task, model)
    return lambda parameters, batch: functional_call(
        loss, {f"model.{name}": value for name, value in parameters.items()}, (batch,)
    )


def apart(loss: Callable[[dict[str, Tensor], Tensors], Tensor]) -> Callable[..., Any]:
    """Return a function that computes the gradients and losses of many ranks: of rows of parameters, and a batch each."""
    return vmap(grad_and_value(loss), in_dims=(0, 0), randomness="error")


def shared(loss: Callable[[dict[str, Tensor], Tensors], Tensor]) -> Callable[..., Tensor]:
    """Return a function that computes the losses of many ranks with the same parameters, of a batch each."""
    return vmap(loss, in_dims=(None, 0), randomness="error")


class ReplicaRows:
    """`ranks` copies of `replica`: `flat` has shape [ranks, parameters]. If all ranks share every step, there is one
    row."""

    def __init__(self, job: Job, replica: Replica, ranks: int) -> None:
        self._job, self._replica = job, replica
        (first,) = replica.state.tensors
        self.flat = first.detach().expand(ranks, -1).clone()
        size = first.element_size()
        self.shared = ranks == 1
        """Whether a single row is the replica of all ranks."""
        self._places = places = {name: (p.data_ptr() - first.data_ptr()) // size for name, p in replica.state.named}
        self.optimizer = RowOptimizer(replica.optimizer, replica.state.named, places, ranks)
        self._source, self._order, _ = replica.data[0]
        self.hashes: list[deque[Tensor]] = [deque() for _ in range(job.world_size)]
        """Hashes of the samples of each rank, one tensor for each step that is not recorded yet."""
        # Functional calls do not change the replica's parameters, which are views.
        loss = loss_of(replica.task, replica.model)
        self._apart, self._shared = apart(loss), shared(loss)

    def pieces(self, rank: int) -> Iterator[StatePiece]:
        """Yield the state of a rank, as a separate replica would have it."""
        row = 0 if self.shared else rank
        for name, parameter in self._replica.state.named:
            values = self.flat[row, self._places[name] :][: parameter.numel()]
            yield StatePiece(PARAMETERS, name, values, tuple(parameter.shape))
        for name, key, value in self.optimizer.state_of(row):
            yield StatePiece(OPTIMIZER, name, value, tuple(value.shape), key)

    def _parameters(self, rows: Tensor) -> dict[str, Tensor]:
        return {slot.name: slot.of(rows) for slot in self.optimizer.slots}

    def batch(self, steps: Sequence[Step]) -> Tensors:
        """Return the samples of steps with the same batch size: tensors [steps, samples, ...]."""
        indices = [self._order(step.batch.epoch)[step.batch.start : step.batch.stop] for step in steps]
        tensors: Tensors = self._source.batch(torch.cat(indices))
        return tuple(tensor.view(len(steps), steps[0].batch.samples, *tensor.shape[1:]) for tensor in tensors)

    def _given(self, ranks: Sequence[int], steps: Sequence[Step]) -> Tensors:
        """Return the samples of these ranks' steps, and store their hashes."""
        tensors = self.batch(steps)
        rows = self._replica.record.hashes([tensor.flatten(0, 1) for tensor in tensors])
        for rank, own in zip(ranks, rows.view(len(steps), -1) if rows is not None else (), strict=rows is not None):
            self.hashes[rank].append(own)
        return tensors

    def rates(self, steps: Sequence[Step]) -> list[Tensor]:
        """Return, by parameter group, the learning rate of each step."""
        replica, rows = self._replica, []
        for step in steps:
            replica.rates.apply(replica.fraction(step.seen))
            rows.append([group["lr"] for group in replica.optimizer.param_groups])
        return [torch.tensor(column, dtype=torch.float64) for column in zip(*rows, strict=True)]

    def step(self, ranks: Sequence[int], steps: Sequence[Step]) -> list[float]:
        """Train one step of each of the ranks, all with the same batch size. Return the losses."""
        losses: list[float] = []
        for first in range(0, len(ranks), TOGETHER):
            part = slice(first, first + TOGETHER)
            losses += self._step(list(ranks[part]), steps[part])
        return losses

    def _step(self, ranks: list[int], steps: Sequence[Step]) -> list[float]:
        dense = ranks == list(range(ranks[0], ranks[0] + len(ranks)))
        place = slice(ranks[0], ranks[0] + len(ranks)) if dense else torch.tensor(ranks)
        rows, states = self.flat[place], [state[place] for state in self.optimizer.states]
        grads, losses = self._apart(self._parameters(rows), self._given(ranks, steps))
        self._clip(grads)
        self.optimizer.steps[place] += 1
        self.optimizer.step(rows, states, self.optimizer.steps[place], grads, self.rates(steps))
        if not dense:  # indexing with a tensor made copies
            self.flat[place] = rows
            for state, own in zip(self.optimizer.states, states, strict=True):
                state[place] = own
        return [float(loss) for loss in losses.tolist()]

    def step_shared(self, groups: Sequence[tuple[Sequence[int], Sequence[Step]]]) -> dict[int, float]:
        """Train one step of all ranks on the mean gradient of their slices, in groups with the same batch size. Return the
        losses by rank."""
        total = sum(step.batch.samples for _, steps in groups for step in steps)
        parameters = {name: value[0].requires_grad_() for name, value in self._parameters(self.flat.detach()).items()}
        sums = {name: torch.zeros_like(value) for name, value in parameters.items()}
        losses: dict[int, float] = {}
        for ranks, steps in groups:
            for first in range(0, len(ranks), TOGETHER):
                part = slice(first, first + TOGETHER)
                own = self._shared(parameters, self._given(ranks[part], steps[part]))
                weight = steps[0].batch.samples / total
                parts = torch.autograd.grad(own.sum() * weight, list(parameters.values()))
                for name, value in zip(parameters, parts, strict=True):
                    sums[name] += value
                losses |= dict(zip(ranks[part], map(float, own.tolist()), strict=True))
        grads = {name: value[None] for name, value in sums.items()}
        self._clip(grads)
        self.optimizer.steps += 1
        steps = groups[0][1][:1]
        self.optimizer.step(self.flat, self.optimizer.states, self.optimizer.steps, grads, self.rates(steps))
        return losses

    def _clip(self, grads: dict[str, Tensor]) -> None:
        """Scale the gradients of each rank like `torch.nn.utils.clip_grad_norm_`."""
        limit = self._job.max_grad_norm
        if limit is None:
            return
        norms = torch.stack([value.reshape(len(value), -1).norm(dim=1) for value in grads.values()]).norm(dim=0)
        factor = (limit / (norms + 1e-6)).clamp(max=1.0)
        for name, value in grads.items():  # not in place: several may share memory
            grads[name] = value * factor.view(-1, *(1 for _ in value.shape[1:]))

"""The oracle: a synchronous run played in one process, every rank's slice of every step in the order of ranks.

Plain PyTorch on purpose: of the project it uses where samples and seeds come from, and how a step is cut, which is what an
engine is given. How an engine weighs and reduces, and what it does with buffers, is its documented `Rule`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ddp.core.spans import Batch, Chunk
from ddp.data.order import derive, order
from ddp.replica.flat import FlatState
from ddp.replica.task import Source, Task


@dataclass(frozen=True)
class Rule:
    """What tells one engine's result from another's."""

    scaled: str
    """`gradient`: that of the slice's mean loss, times samples / samples of all; then summed. `loss`: the loss times
    samples x ranks / samples of all, its gradient times 1 / ranks; then summed."""
    buffers: str
    """After a step. `mean`: changes are averaged by samples, counters take the maximum. `first`: rank 0's, on all ranks.
    `own`: each rank has its own, and the model has rank 0's."""
    flat: bool = True
    """Parameters lie in one piece of memory, not each in its own: a convolution of one or two images takes another path for
    weights that are not aligned, and its last bit with it."""


@dataclass(frozen=True)
class Course:
    """What is trained, on how many ranks; picklable."""

    task: Callable[[], Task]
    world_size: int
    batch: int
    """Samples of a step of one rank."""
    steps: int
    tail: int = 0
    """Samples that the last step lacks."""
    seed: int = 5
    epochs: int = 1
    least: int = 1
    """Fewest samples of a slice."""

    def batches(self, step: int) -> list[Batch]:
        """Each rank's slice, as the coordinator cuts an epoch."""
        whole = self.batch * self.world_size
        stop = whole * self.steps - self.tail
        ranks = range(self.world_size)
        return [Chunk(0, 0, stop, whole, rank, self.world_size, least=self.least).at(step) for rank in ranks]

    def seen(self, step: int) -> float:
        """Samples that all ranks have seen when a step begins."""
        return step * self.batch * self.world_size


State = dict[str, Tensor]


def replay(course: Course, rule: Rule) -> Iterator[tuple[float, State]]:
    """After each step: the loss of the global batch before it, and the state of the model (shared, not copied)."""
    torch.manual_seed(derive(course.seed, "init"))
    task = course.task()
    model, data = task.model(), task.train_data()
    if rule.flat:
        FlatState(model)
    optimizer = task.optimizer(model.parameters())
    rates = [group["lr"] for group in optimizer.param_groups]
    positions, base = order(course.seed, 0, len(data)), derive(course.seed, "step", 0)
    held = [_buffers(model)] * course.world_size
    for step in range(course.steps):
        factor = task.schedule(min(course.seen(step) / (course.epochs * len(data)), 1.0))
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        mean_loss, total, left = 0.0, [], []
        batches = course.batches(step)
        for rank, batch in enumerate(batches):
            _load(model, held[rank])
            torch.manual_seed((base + batch.start) & 0x7FFF_FFFF_FFFF_FFFF)
            loss, gradients = _slice(task, model, data, positions, batch, rule, course.world_size)
            total = [a + b for a, b in zip(total, gradients, strict=True)] if total else gradients
            left.append(_buffers(model))
            mean_loss += loss * batch.samples / batch.total
        held = _settled(held, left, batches, rule)
        _load(model, held[0])
        for parameter, gradient in zip(model.parameters(), total, strict=True):
            parameter.grad = gradient
        optimizer.step()
        yield mean_loss, model.state_dict()


def _slice(
    task: Task, model: nn.Module, data: Source, positions: Tensor, batch: Batch, rule: Rule, ranks: int
) -> tuple[float, list[Tensor]]:
    """Loss and weighted gradients of one rank's slice."""
    if not batch.samples:
        return 0.0, [torch.zeros_like(parameter) for parameter in model.parameters()]
    loss = task.loss(model, data.batch(positions[batch.start : batch.stop]))
    scale, weight = 1.0, batch.samples / batch.total
    if rule.scaled == "loss":
        scale, weight = batch.samples * ranks / batch.total, 1.0 / ranks
    gradients = torch.autograd.grad(loss * scale, list(model.parameters()))
    return float(loss.detach()), [gradient * weight for gradient in gradients]


def _settled(
    before: list[list[Tensor]], after: list[list[Tensor]], batches: list[Batch], rule: Rule
) -> list[list[Tensor]]:
    """Every rank's buffers for the next step."""
    if rule.buffers == "own":
        return after
    if rule.buffers == "first":
        return [after[0]] * len(after)
    mean = []
    for index, old in enumerate(before[0]):
        new = [buffers[index] for buffers in after]
        if not old.is_floating_point():
            mean.append(torch.stack(new).amax(dim=0))
            continue
        changes = [(buffer - old) * (b.samples / b.total) for buffer, b in zip(new, batches, strict=True)]
        change = changes[0]
        for more in changes[1:]:
            change = change + more
        mean.append(old + change)
    return [mean] * len(after)


def _buffers(model: nn.Module) -> list[Tensor]:
    return [buffer.clone() for buffer in model.buffers()]


def _load(model: nn.Module, values: list[Tensor]) -> None:
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)

"""The oracle: a synchronous run in one process, which computes every rank's slice of every step in the order of ranks.

It is plain PyTorch on purpose. From the project it takes the order of samples, the seeds, and how a step is cut,
because an engine is given these. The documented `Rule` of an engine says how it weights and reduces gradients, and what
it does with buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ddp.core.samples.spans import Batch, Chunk, micro_batches
from ddp.core.settings.steps import PLAIN, StepSettings
from ddp.data.epoch_order import order
from ddp.data.seeded import seeded
from ddp.permutation import derive
from ddp.replica.memory.flat import FlatState
from ddp.replica.scalars import Scalars
from ddp.replica.task import Source, Task


@dataclass(frozen=True)
class Rule:
    """How the results of one engine differ from those of another."""

    scaled: str
    """`gradient`: the gradient of the slice's mean loss, times samples / samples of all ranks; then summed over ranks.
    `loss`: the loss times samples x ranks / samples of all ranks, its gradient times 1 / ranks; then summed."""
    buffers: str
    """Buffers after a step. `mean`: changes are averaged by samples, counters take the maximum. `first`: all ranks take
    rank 0's. `own`: each rank keeps its own, and the model has rank 0's."""
    each_pass: bool = False
    """With several passes in a step: sum the gradients of each pass over the ranks, then the passes; else first the
    passes."""
    flat: bool = True
    """All parameters share one piece of memory. It matters: for unaligned weights a convolution of one or two images
    takes another path, with other last bits."""


@dataclass(frozen=True)
class OracleCourse:
    """What to train, and on how many ranks; picklable."""

    task: Callable[[], Task]
    world_size: int
    batch: int
    """Samples of one step of one rank."""
    steps: int
    tail: int = 0
    """Samples that are missing in the last step."""
    seed: int = 5
    epochs: int = 1
    least: int = 1
    """Least samples of a slice."""
    first: int = 0
    """Number of the first step; the steps before it are taken as done."""
    how: StepSettings = PLAIN
    """How a rank performs a step. Supported are micro-batches, and `fp32` or `bf16`."""

    def batches(self, step: int) -> list[Batch]:
        """Return each rank's slice, cut as the coordinator cuts an epoch."""
        whole = self.batch * self.world_size
        stop = whole * (self.first + self.steps) - self.tail
        ranks = range(self.world_size)
        return [Chunk(0, 0, stop, whole, rank, self.world_size, least=self.least).at(step) for rank in ranks]

    def seen(self, step: int) -> float:
        """Return the samples that all ranks have seen before a step."""
        return step * self.batch * self.world_size


State = dict[str, Tensor]
Gradients = list[Tensor | None]
"""By parameter; None: no loss depends on it."""


class OracleStep(NamedTuple):
    """The outcome of a step."""

    loss: float
    """Loss of the global batch before the step."""
    gradients: Gradients
    """Gradients of the global batch."""
    state: State
    """State of the model after the step; shared, not copied."""


class PlainTrainer:
    """A model with its optimizers, rates and random numbers, in the initial state of every engine."""

    def __init__(self, course: OracleCourse, flat: bool = True) -> None:
        torch.set_num_threads(1)  # as in a rank: sums of several threads have another order
        self.course, self.task = course, seeded(derive(course.seed, "init"), course.task)
        self.model = self.task.model()
        if flat:
            FlatState(self.model)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        made = self.task.optimizer(list(self.model.parameters()))
        self.data = self.task.train_data()
        self._optimizers: list[Any] = list(made) if isinstance(made, list | tuple) else [made]
        self._groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        self._rates = [group["lr"] for group in self._groups]
        self._positions = order(course.seed, 0, len(self.data))
        self._base = derive(course.seed, "step", 0)

    def schedule(self, seen: float) -> None:
        """Set the learning rates for a step that begins after `seen` samples."""
        factor = self.task.schedule(min(seen / (self.course.epochs * len(self.data)), 1.0))
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"] = rate * factor

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean loss of a slice, with the slice's random numbers."""
        # `torch.manual_seed` records a traceback for each unused device, which takes most of a small step's time.
        torch.default_generator.manual_seed((self._base + batch.start) & 0x7FFF_FFFF_FFFF_FFFF)
        samples = self.data.batch(self._positions[batch.start : batch.stop])
        with Scalars(), torch.autocast("cpu", torch.bfloat16) if self.course.how.half else nullcontext():
            loss = self.task.loss(self.model, samples)
        return loss.float() if self.course.how.half else loss

    def passes(self, batch: Batch, scale: float = 1.0) -> tuple[float, list[Gradients]]:
        """Return the mean loss of a slice that is not empty, and the gradients of each of its passes (one, or one per
        micro-batch), times `scale`."""
        course = self.course
        many = course.how.accumulate > 1
        parts = micro_batches(batch, course.batch // course.how.accumulate, course.least) if many else [batch]
        mean, passes = 0.0, list[Gradients]()
        for part in parts:
            share = part.samples / batch.samples if len(parts) > 1 else 1.0
            loss = self.loss(part)
            passes.append([*torch.autograd.grad(loss * (scale * share), self.parameters, allow_unused=True)])
            mean += float(loss.detach()) * share
        return mean, passes

    def step(self, gradients: Gradients) -> None:
        """Step all optimizers."""
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient
        for optimizer in self._optimizers:
            optimizer.step()


def replay(course: OracleCourse, rule: Rule) -> Iterator[OracleStep]:
    """Perform the steps of a course; yield the outcome of each."""
    plain = PlainTrainer(course, rule.flat)
    model = plain.model
    buffers = [_buffers(model)] * course.world_size
    for step in range(course.first, course.first + course.steps):
        plain.schedule(course.seen(step))
        mean_loss, left = 0.0, []
        totals: dict[int, list[Gradients]] = {}
        batches = course.batches(step)
        for rank, batch in enumerate(batches):
            load_buffers(model, buffers[rank])
            loss, passes = _slice(plain, batch, rule, course.world_size)
            for number, gradients in enumerate(passes):
                totals.setdefault(number, []).append(gradients)
            left.append(_buffers(model))
            mean_loss += loss * batch.samples / batch.total
        buffers = _settled(buffers, left, batches, rule)
        load_buffers(model, buffers[0])
        total = summed([summed(of_ranks) for of_ranks in totals.values()])
        plain.step(total)
        yield OracleStep(mean_loss, total, model.state_dict())


def summed(gradients: Sequence[Gradients]) -> Gradients:
    """Return the sum of gradients by parameter, added in order."""
    total = gradients[0]
    for more in gradients[1:]:
        total = [_sum(a, b) for a, b in zip(total, more, strict=True)]
    return total


def _sum(first: Tensor | None, other: Tensor | None) -> Tensor | None:
    if first is None or other is None:
        return first if other is None else other
    return first + other


def _slice(plain: PlainTrainer, batch: Batch, rule: Rule, ranks: int) -> tuple[float, list[Gradients]]:
    """Return loss and weighted gradients of a rank's slice: one per pass if passes are exchanged separately; zeros for
    an empty slice."""
    if not batch.samples:
        return 0.0, [[torch.zeros_like(parameter) for parameter in plain.parameters]]
    scale, weight = 1.0, batch.samples / batch.total
    if rule.scaled == "loss":
        scale, weight = batch.samples * ranks / batch.total, 1.0 / ranks
    loss, passes = plain.passes(batch, scale)
    exchanged = passes if rule.each_pass else [summed(passes)]
    return loss, [[None if gradient is None else gradient * weight for gradient in each] for each in exchanged]


def _settled(
    before: list[list[Tensor]], after: list[list[Tensor]], batches: list[Batch], rule: Rule
) -> list[list[Tensor]]:
    """Return every rank's buffers for the next step."""
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


def load_buffers(model: nn.Module, values: list[Tensor]) -> None:
    """Copy values into the buffers of a model."""
    for buffer, value in zip(model.buffers(), values, strict=True):
        buffer.copy_(value)


def whole_batches(course: OracleCourse) -> Iterator[OracleStep]:
    """Perform a course as on one device: each global batch as a whole. Yield the outcome of each step."""
    plain = PlainTrainer(course, flat=False)
    for step in range(course.first, course.first + course.steps):
        plain.schedule(course.seen(step))
        batches = course.batches(step)
        start, stop = min(b.start for b in batches if b.samples), max(b.stop for b in batches)
        loss = plain.loss(Batch(0, start, stop, stop - start))
        gradients: list[Tensor | None] = [*torch.autograd.grad(loss, plain.parameters, allow_unused=True)]
        plain.step(gradients)
        yield OracleStep(float(loss.detach()), gradients, plain.model.state_dict())


def limited(source: Source, samples: int) -> Source:
    """Return the first samples of a source."""
    return source if len(source) <= samples else _FirstSamples(source, samples)


class _FirstSamples:
    def __init__(self, source: Source, samples: int) -> None:
        self._source, self._samples = source, samples

    def __len__(self) -> int:
        return self._samples

    def batch(self, indices: Tensor) -> Any:
        return self._source.batch(indices)

    def to(self, device: torch.device) -> _FirstSamples:
        return _FirstSamples(self._source.to(device), self._samples)

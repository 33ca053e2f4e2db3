"""One replica: its model, optimizer and data, and how it does a step and an evaluation, in solo and distributed runs alike.

Owns determinism: all random numbers derive from (seed, epoch, position). Knows nothing of other ranks; exchanges inside a
step go through a `GradientSync`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn

from ddp.core.messages.event_parts import StepSketch
from ddp.core.samples.spans import Batch
from ddp.data.augment import Augment
from ddp.data.batch_loader import feed
from ddp.data.contents import value_sum
from ddp.data.data_record import DataRecord
from ddp.data.epoch_order import EpochOrder
from ddp.data.seeded import seeded
from ddp.permutation import derive
from ddp.process.meter import Meter
from ddp.process.slowdown import Slowdown
from ddp.replica.evidence.parameter_guard import StepParameterGuard
from ddp.replica.evidence.sketcher import Sketcher
from ddp.replica.evidence.step_sketches import StepSketches
from ddp.replica.figures import StepFigures
from ddp.replica.gradient_sync import GradientSync, moved
from ddp.replica.memory.extra_state import any_extra_state, set_extra_state
from ddp.replica.memory.flat import FlatState
from ddp.replica.memory.shared_gradients import clip, separate
from ddp.replica.optim.learning_rates import Rates
from ddp.replica.optim.optimizers import as_one, settings_of, usable
from ddp.replica.passes import StepPasses, backward, evaluating
from ddp.replica.scalars import Scalars
from ddp.replica.task import Job, Task, Tensors, epoch_samples, whole_batches
from ddp.replica.trainable import trainable

PATIENCE = 0.8
"""Longest wait for a batch, as a fraction of the deadline after which a silent rank is lost: the rank can still report
why."""
DataSource = tuple[Any, EpochOrder, Augment | None]
"""(samples, their order, augmentation of a batch)."""


class Replica:
    """A replica, built from the job. Raises what the task's functions raise."""

    taken = 0
    """How often it loaded another replica's state."""

    def __init__(self, job: Job, device: torch.device, meter: Meter, slowdown: Slowdown) -> None:
        torch.set_num_threads(1)
        self._job, self._meter, self._slowdown, self._device = job, meter, slowdown, device
        self.task = seeded(derive(job.seed, "init"), job.task)  # all ranks create the same model and data
        self.model = trainable(self.task.model()).to(device)
        self.state = FlatState(self.model)
        # A list: the factory may iterate over it more than once.
        self.optimizer = usable(as_one(self.task.optimizer(list(self.model.parameters()))), self.state)
        self.sketcher = Sketcher(self.model, self.state, self.optimizer, job.seed)
        self.unmoved = _others(self.state, self.optimizer)
        """Parameters that the optimizer does not have: their gradients must be cleared here."""
        self.parameter_guard = StepParameterGuard(self.state.named, self.optimizer)
        self.settings = settings_of(self.optimizer)
        """The options that the optimizer was created with."""
        self.rates = Rates(self.optimizer, self.task.schedule, job.lr_scale)
        self.scalars = Scalars()
        self._source, evaluated, patience = self.task.train_data(), self.task.eval_data(), PATIENCE * job.deadline_s
        visits = _order(self.task, job, len(self._source))
        self.feed, note = feed(self._source, visits, device, job.loading, self.task.augment, patience)
        in_turn = EpochOrder(0, len(evaluated), shuffle=False)
        self._eval, other = feed(evaluated, in_turn, device, job.loading, None, patience)
        self.shown: list[tuple[int, int, float, float]] = []
        """(start, stop, sum of loss, sum of metric) of each batch of the last evaluation."""
        self.record = DataRecord(self.feed.gather, self._eval.gather, visits)
        """Tallies what both data sets contain, and which samples are trained and evaluated on."""
        self.data = (self._source, visits, self.task.augment), (evaluated, in_turn, None)
        """The data for training, and for evaluation."""
        self.note = "; ".join(dict.fromkeys(filter(None, (note, other))))
        """A note for readers of the results: how data is read, what a checkpoint lacks."""
        self.passes = StepPasses(job, self.model, self.state.parameters, device)
        # `torch.manual_seed` visits every kind of device, which is slow for a small model.
        self._seed = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
        self.gradient_sync: GradientSync | None = None
        """What ranks do together inside a step; None: nothing."""
        self.samples = len(visits)
        steps = job.epochs * -(-self.samples // (job.batch_size * job.world_size))
        self.figures = StepFigures(job, self.model, self.optimizer, steps)
        self.step_sketches = StepSketches(self.sketcher, derive(job.seed, "sketched steps"), steps)
        self.lr = 0.0
        self._epoch = lru_cache(maxsize=2)(partial(derive, job.seed, "step"))

    def close(self) -> None:
        """Stop the data loaders."""
        self.feed.close()
        self._eval.close()

    def add_note(self, text: str) -> None:
        """Append `text` to the note unless it is empty."""
        self.note = "; ".join(filter(None, (self.note, text)))

    def undo(self) -> None:
        """Undo what a step changed and recorded before its exchange broke."""
        self.scalars.undo()
        if self.gradient_sync is not None:
            self.gradient_sync.undo()

    def capture(self) -> dict[str, Any]:
        """Return parameters, buffers, extra state and optimizer state, without copying them."""
        self.state.gather()
        state = {"tensors": self.state.tensors, "optimizer": self.optimizer.state_dict()}
        return state | {"extra": any_extra_state(self.model)} | self.passes.capture()

    def restore(self, state: dict[str, Any]) -> None:
        """Load what another replica's `capture` returned."""
        self.taken += 1
        for flat, other in zip(self.state.tensors, state["tensors"], strict=True):
            flat.copy_(other)
        self.optimizer.load_state_dict(state["optimizer"])
        self.passes.restore(state)
        set_extra_state(self.model, state["extra"])

    def replace_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Step with another optimizer, whose parameter groups must be in the same order."""
        self.optimizer = optimizer
        self.figures.count_updates(optimizer)
        self.rates.steer(optimizer)

    def some(self, samples: int) -> Tensors:
        """Return a batch of `samples` training samples, or of all if there are fewer."""
        batch: Tensors = self.feed.gather.some(samples)
        return batch

    def read(self, batch: Batch) -> Tensors:
        """Return the tensors of a batch that is trained next; it must not be empty."""
        tensors: Tensors = self.feed.get(batch)
        self.record.add(batch, tensors)
        self._slowdown.hold()
        return tensors

    def step(self, batch: Batch, seen: float) -> tuple[Tensor | None, float]:
        """Train one batch; return (mean loss as a scalar tensor on the device, None for an empty batch; busy seconds)."""
        meter, team, began = self._meter, self.gradient_sync, self._slowdown.begin()
        parts = self.passes.cut(batch)
        tensors: Tensors = self.read(parts[0]) if batch.samples else ()
        at = meter.add("data", began)
        self.lr = self.rates.apply(self.fraction(seen))
        self._draw(batch)
        self.scalars.begin()
        factor, busy = 1.0, 0.0
        if team is None:
            self._clear()
        else:
            met = meter.exchanged
            factor = team.begin(batch)
            began += meter.exchanged - met  # no work of this rank
        factor *= self.passes.loss_scale
        loss: Tensor | None = None
        if len(parts) > 1:
            loss, at = self._accumulate(parts, tensors, factor, at)
        elif batch.samples:
            loss, at = self._pass(tensors, factor, at, batch.samples)
        elif team is not None:
            team.idle(batch)
        if team is not None:
            at = self._slowdown.pay(at - began, meter, "gradient")
            busy = at - began
            team.exchange(batch)
            began = at = self._slowdown.begin(meter)
        else:
            self.step_sketches.alone(batch.samples, self.state.parameters)
        if self.passes.ready(self.optimizer, team):
            self.figures.step(self.optimizer)
            self._clip(team)
            self.optimizer.step()
        at = self._slowdown.pay(meter.add("optimizer", at) - began, meter, "step" if team is None else "optimizer")
        busy += at - began
        if team is not None:
            team.end()
        meter.sample_core()
        return self.passes.reported(loss), busy

    def _draw(self, batch: Batch) -> None:
        """Seed the random generator for the pass on a batch (for dropout and the like)."""
        self._seed((self._epoch(batch.epoch) + batch.start) & 0x7FFF_FFFF_FFFF_FFFF)

    def _pass(
        self, tensors: Tensors, factor: float, at: float, samples: int, several: bool = False
    ) -> tuple[Tensor, float]:
        """Add the gradients of the loss times `factor`; return the loss, and the time after the pass. `several`: other
        passes of the step add gradients too."""
        with self.figures.counting(tensors, samples):
            return self._gradients(tensors, factor, at, several)

    def _gradients(self, tensors: Tensors, factor: float, at: float, several: bool) -> tuple[Tensor, float]:
        team = self.gradient_sync
        marks = self.passes.marks() if several else None
        self.parameter_guard.begin()
        with self.scalars:
            loss = self.passes.loss(self.task, self.model if team is None else team.module, tensors)
        if marks is not None:
            self.passes.check(marks)
        self.rates.check()
        at = self._meter.add("forward", at)
        if team is not None:
            team.backward()
        backward(loss if factor == 1.0 else loss * factor)
        self.parameter_guard.end()
        return loss, self._meter.add("backward", at)

    def _accumulate(self, parts: Sequence[Batch], tensors: Tensors, factor: float, at: float) -> tuple[Tensor, float]:
        """Add the gradients of micro-batches, each weighted by its part of the slice. Return the mean loss, and the time
        after the last pass. `tensors`: the first micro-batch."""
        team, samples = self.gradient_sync, sum(part.samples for part in parts)
        losses: list[Tensor] = []
        for part in parts:
            if losses:
                separate(parameter for _, parameter in self.state.named)  # the next pass adds to them in place
                tensors = self.read(part)
                at = self._meter.add("data", at)
                self._draw(part)
            share = part.samples / samples
            with nullcontext() if team is None else team.one_pass(part is parts[-1]):
                loss, at = self._pass(tensors, factor * share, at, part.samples, several=True)
            losses.append(loss.detach() * share)
        return torch.stack(losses).sum(0), at

    def expect(self, batches: Iterable[Batch]) -> None:
        """Prefetch the batches that will be trained next, instead of those expected before."""
        self.feed.expect(self.passes.cut_all(batches))

    def _clear(self) -> None:
        """Begin a step without other ranks: clear all gradients."""
        self.step_sketches.begin()
        self.optimizer.zero_grad(set_to_none=True)
        for parameter in self.unmoved:
            parameter.grad = None

    def _clip(self, team: GradientSync | None) -> None:
        limit = self._job.max_grad_norm
        if limit is None:
            return
        if team is None:
            clip(moved(self.state, self.optimizer), limit)
        else:
            team.clip(limit)

    def exchanged(self) -> tuple[StepSketch, ...]:
        """Return the sketches recorded inside steps since the last call."""
        sketches = tuple(self.step_sketches.waiting)
        self.step_sketches.waiting.clear()
        return sketches

    def fraction(self, seen: float) -> float:
        """Return `seen` as a fraction of all training samples of the run, at most 1."""
        return min(seen / (self._job.epochs * self.samples), 1.0)

    @torch.no_grad()
    def evaluate(self, part: int, parts: int, heartbeat: Callable[[], None]) -> tuple[int, float, float, float]:
        """Evaluate slice `part` of `parts` of the test set; return (samples, sum of the loss, of the metric, of all input
        values).

        `heartbeat` is called after every batch."""
        size, most = len(self.data[1][0]), self.task.eval_batch
        first, last = size * part // parts, size * (part + 1) // parts
        batches = [Batch(0, start, min(start + most, last), 0) for start in range(first, last, most)]
        self._eval.expect(batches)
        self.shown.clear()
        loss_sum = metric_sum = content = 0.0
        with evaluating(self.model):
            for batch in batches:
                tensors: Tensors = self._eval.get(batch)
                self.record.show(tensors)
                with self.passes.eager():
                    loss, metric = self.task.evaluate(self.model, tensors)
                weight = batch.samples if self.task.means else 1
                sums = float(loss) * weight, float(metric) * weight
                self.shown.append((batch.start, batch.stop, *sums))
                loss_sum, metric_sum = loss_sum + sums[0], metric_sum + sums[1]
                content += value_sum(tensors)
                heartbeat()
        return last - first, loss_sum, metric_sum, content


def _others(state: FlatState, optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    owned = {id(p) for p in moved(state, optimizer)}
    return [p for _, p in state.named if id(p) not in owned]


def _order(task: Task, job: Job, size: int) -> EpochOrder:
    """Return the order in which `size` samples are trained; the first epoch's is computed already."""
    cut = whole_batches(task.drop_last, job)
    visits = EpochOrder(job.seed, size, task.sampler, cut, length=epoch_samples(job))
    visits(0)  # computed now, while nobody waits for it
    return visits

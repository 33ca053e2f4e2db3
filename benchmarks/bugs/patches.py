"""The defects. Each is a function of the module that it breaks, called once it is imported. Modules are given, so nothing of
the engine is imported here. What ranks are is in the name of their process.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

Module = Any


def rank() -> int:
    """Of this process; 0 for one that is none."""
    name, _, number = multiprocessing.current_process().name.partition("-")
    return int(number) if name == "rank" else 0


def wrap(owner: Any, name: str, broken: Callable[..., Any]) -> None:
    """Put `broken(original, self, *arguments)` in place of a method; `original` is bound."""
    original = getattr(owner, name)

    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        return broken(functools.partial(original, self), self, *arguments, **named)

    setattr(owner, name, method)


def not_averaged(nccl: Module) -> None:
    """Replicas stay as they were."""

    def broken(take: Any, self: Any) -> Any:
        kept = [section.values.clone() for section in self._sections]
        divergence = take()
        for section, values in zip(self._sections, kept, strict=True):
            section.values.copy_(values)
        return divergence

    wrap(nccl.Backend, "_take", broken)


def wrong_divisor(nccl: Module) -> None:
    """The sum is divided as if there were one rank more."""

    def broken(take: Any, self: Any) -> Any:
        ranks = self.job.world_size
        self._total.mul_((ranks + 1) / ranks)
        return take()

    wrap(nccl.Backend, "_take", broken)


def unweighted(averaging: Module) -> None:
    """A rank weighs the same whatever it trained."""
    averaging.Averaging.weight = lambda self, samples: 1.0 if samples else 0.0


def _older(part: Callable[[Any], Any]) -> Callable[..., Any]:
    """A snapshot of which `part` is what the replica was a round ago."""

    def broken(snapshot: Any, self: Any, round: int) -> Any:
        held = getattr(self, "held", None)
        before = snapshot(round)
        self.held = [laid.clone() for laid in self._snapshot]
        for laid, old in zip(self._snapshot, held or self.held, strict=True):
            part(laid).copy_(part(old))
        return before

    return broken


def stale_snapshot(cpu: Module) -> None:
    """Laid down is what the replica was a round ago."""
    wrap(cpu.Backend, "snapshot", _older(lambda flat: flat))


def torn_snapshot(cpu: Module) -> None:
    """Half of what is laid down is a round old."""
    wrap(cpu.Backend, "snapshot", _older(lambda flat: flat[flat.numel() // 2 :]))


def coarse_snapshot(cpu: Module) -> None:
    """Snapshots are laid down with eight bits of mantissa."""

    def broken(snapshot: Any, self: Any, round: int) -> Any:
        before = snapshot(round)
        for laid in self._snapshot:
            laid.copy_(laid.bfloat16())
        return before

    wrap(cpu.Backend, "snapshot", broken)


def flight_lost(cpu: Module) -> None:
    """The average takes the place of the replica, with what was trained while it was made."""
    wrap(cpu.Backend, "apply", lambda apply, self, round, exact: apply(round, True))


def own_model_evaluated(cpu: Module) -> None:
    """Every rank evaluates its own replica."""
    cpu.Backend.consensus = lambda self, exact: nullcontext()


def narrow_wire(nccl: Module) -> None:
    """Averages travel in single precision, whatever was asked for."""

    def broken(make: Any, self: Any) -> None:
        job = self.job
        self.job = replace(job, averaging=replace(job.averaging, wire="float32"))
        make()
        self.job = job

    wrap(nccl.Backend, "_make_wire", broken)


def buffers_left_out(nccl: Module) -> None:
    """Running statistics are not averaged."""

    def broken(prepare: Any, self: Any) -> None:
        prepare()
        kept = [k for k, section in enumerate(self._sections) if section.kind != "buffers"]
        for name in ("_sections", "_outer", "_last"):
            setattr(self, name, [getattr(self, name)[k] for k in kept])

    wrap(nccl.Backend, "_prepare_average", broken)


def buffers_left_out_of_steps(buffers: Module) -> None:
    """Nor where gradients are averaged inside the step."""
    buffers.BufferChanges.take = lambda self: self.rebase()


def gradients_summed(step_gradients: Module) -> None:
    """Gradients of a step are added up, not averaged."""
    wrap(step_gradients.StepGradients, "pack", lambda pack, self, weight, gradients=None: pack(weight, 1.0))


def gradients_not_averaged(average: Module) -> None:
    """Ranks step with their own gradients."""

    def broken(exchange: Any, self: Any, batch: Any) -> None:
        own = [p.grad.clone() for p in self._state.parameters]
        exchange(batch)
        for parameter, values in zip(self._state.parameters, own, strict=True):
            parameter.grad.copy_(values)

    wrap(average.GradientAverage, "exchange", broken)


def idle_in_steps(average: Module) -> None:
    """Rank 1 takes part with gradients of zero."""

    def broken(exchange: Any, self: Any, batch: Any) -> None:
        for parameter in self._state.parameters if rank() == 1 else ():
            parameter.grad.zero_()
        exchange(batch)

    wrap(average.GradientAverage, "exchange", broken)


def idle_rank(replica: Module) -> None:
    """Rank 1 never moves its parameters."""

    def broken(make: Any, self: Any, *made_of: Any) -> None:
        make(*made_of)
        if rank() == 1:
            self.optimizer.step = lambda *closure: None

    wrap(replica.Replica, "__init__", broken)


def gradients_kept(replica: Module) -> None:
    """Gradients are never cleared."""

    def broken(make: Any, self: Any, *made_of: Any) -> None:
        make(*made_of)
        self.optimizer.zero_grad = lambda **settings: None

    wrap(replica.Replica, "__init__", broken)


def order_per_rank(visits: Module) -> None:
    """Every rank shuffles for itself, so shards overlap."""

    def broken(make: Any, self: Any, epoch: int) -> Any:
        return visits.order(self.seed + rank(), epoch, self._size)[: self._length] if self._shuffle else make(epoch)

    wrap(visits.EpochOrder, "_make", broken)


def order_by_chance(visits: Module) -> None:
    """Samples come in another order every time."""
    chance = int.from_bytes(os.urandom(4), "little")

    def broken(make: Any, self: Any, epoch: int) -> Any:
        return visits.order(chance, epoch, self._size)[: self._length] if self._shuffle else make(epoch)

    wrap(visits.EpochOrder, "_make", broken)


def same_shard(worker: Module) -> None:
    """Every rank trains the first slice of a global batch."""

    def broken(receive: Any, self: Any, order: Any) -> Any:
        shared = isinstance(order, worker.Train) and order.chunk.parts > 1
        return receive(replace(order, chunk=replace(order.chunk, part=0)) if shared else order)

    wrap(worker.Worker, "receive", broken)


def sample_lost(gather: Module) -> None:
    """The last sample of an epoch is never read, the one before it twice."""

    def broken(indices: Any, self: Any, batch: Any) -> Any:
        found = indices(batch)
        if batch.stop == len(self._order[1]) and len(found) > 1:
            found = found.clone()
            found[-1] = found[-2]
        return found

    wrap(gather.Gather, "indices", broken)


def epoch_short(coordinator: Module) -> None:
    """The books end one sample too early."""
    enter = coordinator._on_ready
    coordinator._on_ready = lambda cohort, event: enter(cohort, replace(event, samples=event.samples - 1))


def last_batch_dropped(spans: Module) -> None:
    """What makes no whole batch is left out."""
    spans.Chunk.steps = property(lambda self: (self.stop - self.start) // self.batch - self.done)


def rate_times_ranks(replica: Module) -> None:
    """The learning rate is multiplied by the number of ranks."""

    def broken(make: Any, self: Any, job: Any, *made_of: Any) -> None:
        make(replace(job, lr_scale=job.lr_scale * job.world_size), *made_of)

    wrap(replica.Replica, "__init__", broken)


def schedule_per_rank(replica: Module) -> None:
    """The schedule goes by the samples that the rank has trained itself."""

    def broken(step: Any, self: Any, batch: Any, seen: float) -> Any:
        own = getattr(self, "own", 0)
        self.own = own + batch.samples
        return step(batch, float(own))

    wrap(replica.Replica, "step", broken)


def schedule_stuck(replica: Module) -> None:
    """The schedule never moves."""
    replica.Replica.fraction = lambda self, seen: 0.0


def _evaluating(source: Callable[[Any], Any]) -> Callable[[Module], None]:
    """Replicas evaluate on what `source` makes of the task."""

    def patch(replica: Module) -> None:
        def broken(make: Any, self: Any, job: Any, *made_of: Any) -> None:
            task = job.task()
            make(replace(job, task=lambda: replace(task, eval_data=lambda: source(task))), *made_of)

        wrap(replica.Replica, "__init__", broken)

    return patch


def _leaked(task: Any) -> Any:
    held_out, trained = task.eval_data(), task.train_data()
    return type(held_out)(*(tensor[: len(held_out)] for tensor in trained.tensors))


evaluated_on_training_data = _evaluating(lambda task: task.train_data())
"""The whole of it."""
evaluated_on_leaked_data = _evaluating(_leaked)
"""As many training samples as the test set has."""


def part_evaluated(replica: Module) -> None:
    """Every rank evaluates the first part of the test set."""
    wrap(
        replica.Replica,
        "evaluate",
        lambda evaluate, self, part, parts, heartbeat: evaluate(0, parts, heartbeat),
    )


def begin_apart(replica: Module) -> None:
    """Every rank draws initial parameters of its own."""
    derive = replica.derive
    replica.derive = lambda seed, *keys: derive(seed + (rank() if keys == ("init",) else 0), *keys)

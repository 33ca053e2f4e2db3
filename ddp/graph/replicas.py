"""Replicas of a graph, one for each device: runs forward and backward passes on all of them, and reduces their gradients.

Owns the work since the last reduction. Must not know optimizers, learning rates or data sets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from ddp.gradients.exchange import Exchange
from ddp.graph.errors import GraphError
from ddp.graph.flow import Flow, FlowOutput
from ddp.graph.parallel import Pass, ReplicaBatch
from ddp.graph.scatter import piece, samples
from ddp.graph.serialized_rng import SerializedRng
from ddp.graph.timed_workers import Listeners, TimedWorkers, Work
from ddp.graph.tracking import WriteTracker, attributes, changes, put
from ddp.graph.windows import Windows
from ddp.permutation import derive
from ddp.process.clock import now
from ddp.replica.memory.flat import FlatState
from ddp.replica.norms import least_samples


class GraphReplicas:
    """The replicas of `graph`: `graph` itself on the first device, and bit-identical copies on the others.

    `speeds`: emulated relative speed of each replica, or empty. Raises GraphError if the builder's graphs differ from
    `graph`.
    """

    def __init__(
        self,
        graph: Flow,
        builder: Callable[[torch.device], Flow],
        devices: Sequence[torch.device],
        windows: Callable[[int], Windows],
        speeds: Sequence[float] = (),
        parallel: bool = True,
        listeners: Listeners | None = None,
    ) -> None:
        self.devices = tuple(devices)
        self.models = (graph.to(self.devices[0]), *(_build(graph, builder, device) for device in self.devices[1:]))
        _check(self.models)
        self.least = least_samples(graph)
        self.windows = windows(self.least)
        self.exchange = Exchange([FlatState(model) for model in self.models])
        self._listeners = Listeners() if listeners is None else listeners
        self.workers = TimedWorkers(self.devices, speeds, parallel, self._listeners)
        self._turns = {mode: SerializedRng(self.devices) for mode in (True, False)}
        self._trained = [p.requires_grad for p in graph.parameters()]
        self._seq = 0
        self.shard_sizes = (0,) * len(self.devices)
        """Samples of each rank in the last forward pass."""
        self._parameters = WriteTracker(graph, nn.Module.parameters)
        self._buffers = WriteTracker(graph, nn.Module.buffers)
        self._attributes, self._parts = attributes(graph), _parts(graph)
        self._record(self.windows.plan)
        self.broadcast()

    def broadcast(self) -> None:
        """Copy the graph's parameters and buffers to all replicas."""
        self.exchange.broadcast()
        self._note()

    def _note(self) -> None:
        self._parameters.note()
        self._buffers.note()

    def scatter(self, inputs: tuple[Any, ...]) -> list[list[ReplicaBatch]]:
        """Divide a batch by the current shares: at most one piece for each rank. Raise GraphError for an empty
        batch."""
        whole = samples(inputs)
        if not whole:
            raise GraphError("an empty batch cannot be divided over replicas; leave it out")
        # In evaluation mode, batch norm does not need a second sample.
        least = self.least if self.models[0].training else 1
        sizes = self.windows.cut(whole, least)
        stops = [sum(sizes[: rank + 1]) for rank in range(len(sizes))]
        return [
            [ReplicaBatch(piece(inputs, stop - size, stop), size)] if size else []
            for stop, size in zip(stops, sizes, strict=True)
        ]

    def forward(self, batches: Sequence[Sequence[ReplicaBatch]], whole: bool = False) -> FlowOutput:
        """Run the batches of all ranks and return the gathered output. `whole`: the batches are a whole window."""
        self._mirror()
        self._follow()
        self.shard_sizes = tuple(sum(batch.samples for batch in mine) for mine in batches)
        turns, before = self._turns[self.models[0].training], tuple(self.workers.busy_s)
        base = turns.begin()

        def run(rank: int, inputs: tuple[Any, ...], number: int) -> Any:
            with turns.of(lambda: derive(base, rank, number), self.devices[rank]):
                return self.models[rank].flow(*inputs)

        each = Pass(batches, self.devices, run, self.workers.everywhere, turns, own=self._buffers.own)
        try:
            output: FlowOutput = each()
        except BaseException:
            turns.restore()
            raise
        finally:
            self._attributes = attributes(self.models[0])
        turns.end()
        work = Work(self.shard_sizes, tuple(map(len, batches)), self.workers.take_since(before), whole)
        each.counted = partial(self.workers.count, work)
        return output

    def reduce(self) -> None:
        """Sum the gradients and average the buffers. Raises GraphError if a parameter was unfrozen after the graph was
        distributed."""
        now_trained = [p.requires_grad for p in self.models[0].parameters()]
        if any(new and not old for new, old in zip(now_trained, self._trained, strict=True)):
            raise GraphError(
                "a parameter was unfrozen after the graph was distributed: unfreeze it before, freeze after"
            )
        self._follow()
        began, total = now(), sum(self.workers.step.samples)
        gradients = self.exchange.gradients
        with torch.no_grad():
            for flat, n in zip(gradients, self.workers.step.samples, strict=True):
                # The loss is a mean over all samples, so gradients are summed. Buffers are averaged by samples.
                flat.pack(n / total, gradients=1.0)
            self.exchange.reduce()
            for flat in gradients:
                flat.unpack()
        self._seq += 1
        self.workers.record_exchange(began, self._seq, self.exchange.bytes)
        self._sync_s = now() - began

    def close_step(self) -> None:
        """Clear the gradients, and update the shares from the measured speeds."""
        for gradients in self.exchange.gradients:
            gradients.clear()
        step, busy_s = self.workers.step, self.workers.total_busy_s()
        if step.whole or not self.windows.windowed:
            self.windows, records = self.windows.close(now(), step.samples, step.steps, busy_s, self._sync_s)
            for record in records:
                self._record(record)
        else:
            self.windows = self.windows.measure(step.samples, busy_s)
        self.workers.flush()
        self.workers.begin()
        self._note()

    def forget(self) -> None:
        """Clear the gradients since the last step."""
        for gradients in self.exchange.gradients:
            gradients.clear()
        self.workers.begin()

    def _record(self, record: Any) -> None:
        if self._listeners:
            self._listeners(record, getattr(record, "at", now()))

    def _mirror(self) -> None:
        """Copy the graph's training modes, frozen parameters and plain attributes to the other replicas. Raises GraphError
        if a module or parameter was added after the graph was distributed."""
        if _parts(self.models[0]) != self._parts:
            raise GraphError(
                "a module or parameter was added to the graph, or put in another's place, after it was distributed, and the "
                "other replicas do not have it: do that before, or build another graph with it and set that up"
            )
        new = changes(self._attributes, attributes(self.models[0]))
        for other in self.models[1:]:
            put(new, other)
            for own, theirs in zip(self.models[0].modules(), other.modules(), strict=True):
                theirs.training = own.training
            for mine, parameter in zip(self.models[0].parameters(), other.parameters(), strict=True):
                parameter.requires_grad_(mine.requires_grad)

    def _follow(self) -> None:
        """If the graph's parameters or buffers were written since the last step, copy them to all replicas."""
        self._check_unwritten()
        if self._parameters.changed or self._buffers.changed:
            self.broadcast()

    def _check_unwritten(self) -> None:
        """Raise GraphError if parameters were written between backward() and step(). The gradients belong to the old
        values, and an optimizer of the user's own has only seen those of one replica."""
        if self.workers.backward and self._parameters.changed:
            raise GraphError(
                "parameters were changed between backward() and step(), as by an optimizer of your own, which has the "
                "gradients of one replica only: use graph.step(), and write into parameters right after it"
            )

    def resize(self, windows: Windows) -> None:
        """Replace the schedule by that of a data set, and keep the measured speeds."""
        self.windows = replace(windows, balance=self.windows.balance)


def _parts(graph: Flow) -> list[tuple[object, ...]]:
    """Return the modules of a graph, each with the names of its parameters."""
    return [(part, *(n for n, p in part._parameters.items() if p is not None)) for part in graph.modules()]


def _build(graph: Flow, builder: Callable[[torch.device], Flow], device: torch.device) -> Flow:
    built = builder(device)
    if not isinstance(built, Flow):
        raise GraphError(f"the builder must return a Graph, made by FlowBuilder.build, not {type(built).__name__}")
    if built is graph:
        raise GraphError("the builder returned the graph itself: it must make a new one each time it is called")
    return built.to(device)


def _check(models: Sequence[Flow]) -> None:
    """Raise GraphError, with a remedy, unless all models are alike and share no weights. Then copy the first one's values
    to all."""
    seen: set[int] = set()
    for model in models:
        own = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
        if own & seen:
            raise GraphError("replicas share parameters: the builder must make new modules each time it is called")
        seen |= own
    first = models[0]
    shapes = {name: tuple(value.shape) for name, value in first.state_dict(keep_vars=True).items()}
    for model in models[1:]:
        theirs = {name: tuple(value.shape) for name, value in model.state_dict(keep_vars=True).items()}
        for name in sorted(shapes.keys() ^ theirs.keys()):
            where = "the graph" if name in shapes else "what the builder makes"
            raise GraphError(f"unequal models: only {where} has {name!r}; build both in the same way")
        for name, shape in shapes.items():
            if theirs[name] != shape:
                raise GraphError(
                    f"unequal models: {name!r} is {list(shape)} in the graph and {list(theirs[name])} in what the "
                    "builder makes; build both in the same way"
                )
        for mine, parameter in zip(first.parameters(), model.parameters(), strict=True):
            parameter.requires_grad_(mine.requires_grad)
        if model.structural_hash != first.structural_hash:
            raise GraphError("unequal models: equal parameters, but another structure; build both in the same way")
        model.load_state_dict(first.state_dict())

"""Defines `Training`: trains a graph on one device, or on replicas of it.

Owns optimizers, learning rates and data. Must not know how replicas work. The loop is the caller's, and the same for any
number of devices: forward, `loss.backward()`, `step()`. On one device every call does what plain PyTorch does, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ddp.core.messages.events import Ready
from ddp.core.settings.world import World
from ddp.graph.config import DdpConfig
from ddp.graph.devices import cuda_devices, resolve
from ddp.graph.epochs import alone, shared
from ddp.graph.errors import GraphError
from ddp.graph.flow import Flow, FlowOutput
from ddp.graph.listeners import TrainingRecord
from ddp.graph.loader import DataLoader, GraphBatch
from ddp.graph.parallel import ReplicaBatch
from ddp.graph.rates import GraphRates
from ddp.graph.replicas import GraphReplicas
from ddp.graph.timed_workers import Listener
from ddp.graph.windows import Windows
from ddp.process.clock import now
from ddp.replica.memory.flat import sizes
from ddp.replica.memory.shared_gradients import clip
from ddp.replica.scalars import Scalars
from ddp.settings import emulated

UNKNOWN = 1 << 30
"""Number of samples in an epoch, before a data set is attached."""


OptimizerFactory = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]


class Training:
    """The training state of `graph`. Made by the first call that needs it. `Graph` documents the methods."""

    def __init__(self, graph: Flow) -> None:
        self.graph = graph
        self.replicas: GraphReplicas | None = None
        self.steps = 0
        self._config = DdpConfig()
        self._optimizers: list[torch.optim.Optimizer] = []
        self._factory: OptimizerFactory | None = None
        self.rates = GraphRates()
        self._scalars = Scalars()
        self._loader: DataLoader | None = None
        self._inputs: tuple[str, ...] = ()
        self.record = TrainingRecord()

    def configure(self, config: DdpConfig) -> None:
        """Set the settings for the next `distribute` and for steps."""
        self._config = config

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Pass records to `listener`."""
        plan = self.replicas.windows.plan if self.replicas is not None else None
        parameters, frozen = sizes(self.graph)
        through = "memory" if self.replicas is not None else "none"
        ready = [
            Ready(now(), rank, len(self._loader or ()), parameters, "", str(place), through, frozen=frozen)
            for rank, place in enumerate(self.places())
        ]
        return self.record.listen(listener, ready, plan)

    def places(self) -> tuple[torch.device, ...]:
        """Return the device of each replica."""
        own = next((p.device for p in self.graph.parameters()), torch.device("cpu"))
        return self.replicas.devices if self.replicas is not None else (own,)

    def epoch_samples(self) -> int:
        """Return the samples of an epoch; 0: no data is attached."""
        return len(self._loader) if self._loader is not None else 0

    def distribute(
        self, builder: Callable[[torch.device], Flow], devices: Sequence[str | torch.device] | None = None
    ) -> None:
        """Make the replicas. Raise GraphError if there are some already, ValueError for fewer than two devices."""
        if self.replicas is not None:
            raise GraphError("the graph is distributed already: build another one, or go on with this one")
        config, places = self._config, resolve(devices) if devices is not None else cuda_devices()
        if len(places) < 2:
            raise ValueError(
                f"{len(places)} device(s) to distribute over: give two or more, or use ddp.setup, which asks"
            )
        emulated("speeds", config.speeds, len(places))
        self.replicas = GraphReplicas(
            self.graph,
            builder,
            places,
            lambda least: self._windows(places, least),
            config.speeds,
            config.parallel,
            self.record.listeners,
        )
        self.record.distribute(len(places))
        if self._factory is not None:
            self.set_optimizer(self._factory)

    def auto_distribute(self, builder: Callable[[torch.device], Flow]) -> bool:
        """Make the replicas if there are several CUDA devices."""
        if len(cuda_devices()) < 2:
            return False
        self.distribute(builder)
        return True

    def _windows(self, devices: Sequence[torch.device], least: int) -> Windows:
        config, loader = self._config, self._loader
        samples, batch = (len(loader), loader.batch_size) if loader is not None else (UNKNOWN, 1)
        world = World(len(devices), samples, batch, 1, blocking=True, in_step=True)
        hint = tuple(config.speed_hint) if config.speed_hint is not None else None
        return Windows.start(config.policy(devices), world, hint, least)

    def set_optimizer(self, factory: OptimizerFactory) -> None:
        """Make an optimizer for every replica."""
        models = self.replicas.models if self.replicas is not None else (self.graph,)
        optimizers = [factory(list(model.parameters())) for model in models]
        if self.replicas is not None:
            for model, optimizer in zip(models, optimizers, strict=True):
                _refuse_others(model, optimizer)
        self._factory, self._optimizers = factory, optimizers
        self.rates.steer(optimizers)

    def forward(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Return the result of a forward pass, on all replicas if the graph is distributed."""
        self._record()
        if self.replicas is None:
            return self._flow(inputs)
        return self.replicas.forward(self.replicas.scatter(inputs))

    def _flow(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Return the result of a forward pass on one device."""
        if not torch.is_grad_enabled():
            return self.graph.flow(*inputs)
        if not self.graph.training:
            began, output = now(), self.graph.flow(*inputs)
            self.record.count_if_trained(inputs, output, self.graph.parameters(), self.places()[0], began)
            return output
        self.record.begin_pass(inputs, self.places()[0])
        output = self.graph.flow(*inputs)
        self.record.end_pass()
        return output

    def step(self) -> None:
        """Make one step on all replicas. Raise GraphError without an optimizer or a gradient."""
        if not self._optimizers:
            raise GraphError("no optimizer: call ddp.setup(graph, builder, optimizer_factory), or set_optimizer")
        if not self._has_gradients():
            raise GraphError("step without a gradient: call loss.backward() on what the graph returned before step()")
        # First, because a schedule may raise: nothing has changed yet, and the step can be repeated.
        self.rates.apply(self.steps, self.record.seen)
        if self.replicas is not None:
            self.replicas.reduce()
        self.record.begin_step()
        work = [self._update(optimizer) for optimizer in self._optimizers]
        if self.replicas is None:
            work[0]()
            # The optimizer may have only some of the graph's parameters, and other parameters too.
            self.graph.zero_grad()
            self._optimizers[0].zero_grad(set_to_none=True)
            self.record.end_step()
        else:
            self.replicas.workers.everywhere("optimizer", work)
            self.record.add(self.replicas.workers)
            self.replicas.close_step()
        self.steps += 1
        self._scalars.__exit__()

    def _has_gradients(self) -> bool:
        if self.replicas is not None:
            return self.replicas.workers.backward
        return any(parameter.grad is not None for parameter in self.graph.parameters())

    def _record(self) -> None:
        """Collect the caller's `record_scalar` calls, from a forward pass with gradients to its step."""
        if torch.is_grad_enabled():
            self._scalars.begin()
            self._scalars.__enter__()

    def scalars(self) -> dict[str, float | None]:
        """Return the means of recorded scalars."""
        return {name: total / calls if total is not None else None for name, total, calls in self._scalars.drain()}

    def _update(self, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def work() -> None:
            if self._config.max_grad_norm is not None:
                trained = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
                clip(trained, self._config.max_grad_norm)
            optimizer.step()

        return work

    def set_data_loader(self, loader: DataLoader, inputs: Sequence[str]) -> None:
        """Attach the training data. Raise GraphError for a name that its batches do not have."""
        for name in inputs:
            if name not in loader.names:
                raise GraphError(f"no member {name!r} in a batch; the loader names {list(loader.names)}")
        self._loader, self._inputs = loader, tuple(inputs) or loader.names[:1]
        if self.replicas is not None:
            self.replicas.resize(self._windows(self.replicas.devices, self.replicas.least))

    def epoch(self, number: int) -> Iterator[GraphBatch]:
        """Return the batches of an epoch. Raise GraphError without data."""
        loader = self._loader
        if loader is None:
            raise GraphError("no data: call set_data_loader(loader, name of the input) first")
        if self.replicas is not None:
            return shared(loader, self.replicas, number)
        place = next((p.device for p in self.graph.parameters()), torch.device("cpu"))
        return alone(loader, place, number)

    def forward_batch(self, batch: GraphBatch) -> Any:
        """Return the graph's output for a batch of `epoch`. Raise GraphError for a batch with another number of parts
        than replicas."""
        graph = self.graph
        self._record()
        if self.replicas is None:
            return graph(*(batch[name] for name in self._inputs))
        if len(batch.parts) != len(self.replicas.devices):
            raise GraphError(
                f"a batch of {len(batch.parts)} parts for {len(self.replicas.devices)} replicas: take it from epoch() of "
                "this graph, after it was distributed"
            )
        batches = [
            [ReplicaBatch(batch.columns(part, self._inputs), size) for part, size in zip(mine, sizes, strict=True)]
            for mine, sizes in zip(batch.parts, batch.sizes, strict=True)
        ]
        return graph.keep(self.replicas.forward(batches, whole=self.replicas.windows.windowed))


def _refuse_others(model: Flow, optimizer: torch.optim.Optimizer) -> None:
    """Raise GraphError if a replica's optimizer has parameters that are not the replica's: every replica's optimizer would
    step them."""
    own = {id(parameter) for parameter in model.parameters()}
    if any(id(parameter) not in own for group in optimizer.param_groups for parameter in group["params"]):
        raise GraphError(
            "on several devices there is an optimizer for each, and this one has parameters that its replica does not have, "
            "which would be stepped once for every device: make it of those that its factory is given"
        )

"""`Graph`: a flow that can be trained, on one device or on many.

Owns the interface of training. Must not know how it is done: `ddp.graph.training` is imported on use, so that building a
model needs no runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ddp.graph.errors import GraphError
from ddp.graph.flow import Flow, FlowOutput, FlowStep

if TYPE_CHECKING:
    import torch

    from ddp.graph.loader import DataLoader, GraphBatch
    from ddp.graph.rates import Schedule
    from ddp.graph.replicas import GraphReplicas
    from ddp.graph.training import Training


class Graph(Flow):
    """A flow of modules and what it is trained with. Made by `FlowBuilder.build`.

    Distributed, `forward` divides its inputs over the replicas along their first dimension and puts the value together.
    Before `ddp.setup` (or `distribute`, `set_optimizer`) most methods of training raise GraphError.
    """

    def __init__(self, steps: Iterable[FlowStep], modules: Iterable[nn.Module]) -> None:
        super().__init__(steps, modules)
        self._training: Training | None = None
        # A function of the module, for a copy has hooks of its own to be called with itself.
        self.register_load_state_dict_post_hook(_take_loaded)  # type: ignore[no-untyped-call]

    def distribute(
        self, builder: Callable[[torch.device], Flow], devices: Sequence[str | torch.device] | None = None
    ) -> None:
        """Put a replica on each of `devices`; None: on every CUDA device. `builder(device)` makes a graph like this one.

        This graph is the first replica; the others take its parameters. Raises GraphError where it is distributed already,
        or the builder makes another model; ValueError for devices that are not there.
        """
        self._set_up().distribute(builder, devices)

    def auto_distribute(self, builder: Callable[[torch.device], Flow]) -> bool:
        """Distribute over all CUDA devices if there are two or more; return whether it did."""
        return self._set_up().auto_distribute(builder)

    def set_optimizer(self, factory: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> None:
        """Make an optimizer for every replica: parameters -> optimizer. A second call replaces the first."""
        self._set_up().set_optimizer(factory)

    def step(self) -> None:
        """Reduce gradients and buffers, set the learning rate, step every optimizer, clear the gradients.

        Gradients are those of the loss that `backward` was called on, as on one device. Raises GraphError without one.
        """
        self._trained.step()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all optimizers; ends a scheduler. Other groups keep their proportion."""
        self._trained.rates.fix(lr)

    def set_scheduler(self, schedule: Schedule, samples: int | None = None) -> None:
        """Follow `schedule` from the coming step on: step counter -> learning rate; or an object with `lr(step)`.

        With `samples`, those of the whole training, it is what `Trainer(schedule=)` takes: fraction of the samples seen ->
        factor on the optimizer's own rates, such as a `ddp.LRSchedule`."""
        self._trained.rates.follow(schedule, samples)

    def set_lr_scale(self, scale: float) -> None:
        """Multiply what the scheduler gives (Goyal et al. 2017). Has no effect without a scheduler."""
        self._trained.rates.rescale(scale)

    def training_step(self) -> int:
        """Return the steps so far."""
        return self._training.steps if self._training is not None else 0

    def world_size(self) -> int:
        """Return the number of replicas; 1 if not distributed."""
        return len(self.devices()) or 1

    def is_distributed(self) -> bool:
        """Return whether there are several replicas."""
        return self._replicas is not None

    def devices(self) -> list[torch.device]:
        """Return the devices by rank; empty if not distributed."""
        return list(self._replicas.devices) if self._replicas is not None else []

    def chunk_ratios(self) -> list[float]:
        """Return the planned share of the samples by rank; they sum to 1."""
        return list(self._replicas.windows.ratios) if self._replicas is not None else [1.0]

    def throughput(self) -> list[float]:
        """Return smoothed samples per millisecond by rank; 0 until measured, and where the graph is not distributed."""
        return list(self._replicas.windows.balance.throughput) if self._replicas is not None else [0.0]

    def shard_sizes(self) -> list[int]:
        """Return the samples by rank in the last forward pass; empty if not distributed."""
        return list(self._replicas.shard_sizes) if self._replicas is not None else []

    def has_el_che(self) -> bool:
        """Return whether replicas train windows of whole batches."""
        return self._replicas is not None and self._replicas.windows.windowed

    def batch_counts(self) -> list[int]:
        """Return the batches of each rank in the coming window; 1 each without El Che."""
        return list(self._replicas.windows.plan.counts) if self._replicas is not None else [1]

    def scalars(self) -> dict[str, float | None]:
        """Return the means of what `ddp.record_scalar` got since the last call, between a forward pass and its step; None:
        not finite."""
        return self._trained.scalars()

    def on_record(self, listener: Callable[[Any, float], None]) -> Callable[[], None]:
        """Hand every record of the training on to `listener`, with its time; return what ends that. `Monitor.watch` calls
        it."""
        return self._set_up().listen(listener)

    def replica_devices(self) -> list[str]:
        """Return the device of each replica; of a graph that is not distributed its own."""
        return [str(place) for place in self._set_up().places()]

    def work(self) -> list[tuple[int, int, float]]:
        """Return (steps, samples, seconds of training) of each replica so far."""
        return [(each.steps, each.samples, each.busy_s) for each in self._set_up().record.work]

    def lr(self) -> float:
        """Return the learning rate of the first parameter group; 0 without an optimizer."""
        return self._set_up().rates.first

    def epoch_samples(self) -> int:
        """Return the samples of an epoch; 0: no data is attached."""
        return self._set_up().epoch_samples()

    def set_data_loader(self, loader: DataLoader, *inputs: str) -> None:
        """Attach the training data; `inputs` name the members of a batch that go into the graph, in order."""
        self._set_up().set_data_loader(loader, inputs)

    def epoch(self, number: int) -> Iterator[GraphBatch]:
        """Yield the batches of an epoch, each with all replicas' parts, in an order of the loader's seed and `number`."""
        return self._trained.epoch(number)

    def forward_batch(self, batch: GraphBatch) -> Any:
        """Return the graph's value of a batch of `epoch`: every replica's part, put together in the batch's order."""
        return self._trained.forward_batch(batch)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients since the last step; distributed, those of all replicas."""
        nn.Module.zero_grad(self, set_to_none)
        if self._replicas is not None:
            self._replicas.forget()

    def _pass(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Do the pass that `forward` is called for, on all replicas."""
        return self._training.forward(inputs) if self._training is not None else self.flow(*inputs)

    @property
    def _replicas(self) -> GraphReplicas | None:
        return self._training.replicas if self._training is not None else None

    @property
    def _trained(self) -> Training:
        if self._training is None:
            raise GraphError(
                "the graph is not set up for training: call ddp.setup(graph, builder, optimizer_factory) first"
            )
        return self._training

    def _set_up(self) -> Training:
        if self._training is None:
            from ddp.graph.training import Training

            self._training = Training(self)
        return self._training

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_training": None}


def _take_loaded(graph: Graph, *_: Any) -> None:
    """Copy parameters that were loaded into the replicas."""
    if graph._replicas is not None:
        graph._replicas.broadcast()

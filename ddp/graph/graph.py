"""Defines `Graph`: a flow that can be trained, on one device or on many.

Owns the interface of training. Must not know how training works: `ddp.graph.training` is imported on first use, so building
a model imports no training code.
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
    """A flow of modules that can be trained. Made by `FlowBuilder.build`.

    In a distributed graph, `forward` divides its inputs over the replicas along their first dimension, and gathers the
    outputs. Most methods of training raise GraphError before `ddp.setup` (or `distribute`, `set_optimizer`) was called.
    """

    def __init__(self, steps: Iterable[FlowStep], modules: Iterable[nn.Module]) -> None:
        super().__init__(steps, modules)
        self._training: Training | None = None
        # A function, not a bound method: the hook of a copied graph must act on the copy.
        self.register_load_state_dict_post_hook(_take_loaded)  # type: ignore[no-untyped-call]

    def distribute(
        self, builder: Callable[[torch.device], Flow], devices: Sequence[str | torch.device] | None = None
    ) -> None:
        """Put a replica on each of `devices`; None: on every CUDA device. `builder(device)` makes a graph like this one.

        This graph becomes the first replica; its parameters are copied to the others. Raises GraphError if the graph is
        distributed already or the builder makes another model, ValueError for devices that do not exist.
        """
        self._set_up().distribute(builder, devices)

    def auto_distribute(self, builder: Callable[[torch.device], Flow]) -> bool:
        """Distribute over all CUDA devices if there are two or more. Return whether the graph is distributed."""
        return self._set_up().auto_distribute(builder)

    def set_optimizer(self, factory: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> None:
        """Make an optimizer for every replica with `factory`: parameters -> optimizer. A second call replaces the first."""
        self._set_up().set_optimizer(factory)

    def step(self) -> None:
        """Reduce gradients and buffers, set the learning rate, step every optimizer, and clear the gradients.

        The gradients are those of the loss on which `backward` was called, as on one device. Raises GraphError without a
        gradient.
        """
        self._trained.step()

    def set_lr(self, lr: float) -> None:
        """Set the learning rate of all optimizers, and remove the scheduler. The first parameter group gets `lr`; the
        others keep their ratio to it."""
        self._trained.rates.fix(lr)

    def set_scheduler(self, schedule: Schedule, samples: int | None = None) -> None:
        """Use `schedule` from the next step on: a function step -> learning rate, or an object with a method `lr(step)`.

        With `samples`, the number of samples of the whole training, `schedule` is as in `Trainer(schedule=)`: fraction of
        the samples seen -> factor on the optimizer's own learning rates, such as a `ddp.LRSchedule`."""
        self._trained.rates.follow(schedule, samples)

    def set_lr_scale(self, scale: float) -> None:
        """Multiply the scheduler's learning rates by `scale` (Goyal et al. 2017). Has no effect without a scheduler."""
        self._trained.rates.rescale(scale)

    def training_step(self) -> int:
        """Return the number of steps so far."""
        return self._training.steps if self._training is not None else 0

    def world_size(self) -> int:
        """Return the number of replicas; 1 if the graph is not distributed."""
        return len(self.devices()) or 1

    def is_distributed(self) -> bool:
        """Return whether there are several replicas."""
        return self._replicas is not None

    def devices(self) -> list[torch.device]:
        """Return the device of each rank; empty if the graph is not distributed."""
        return list(self._replicas.devices) if self._replicas is not None else []

    def chunk_ratios(self) -> list[float]:
        """Return the planned fraction of the samples of each rank; they sum to 1."""
        return list(self._replicas.windows.ratios) if self._replicas is not None else [1.0]

    def throughput(self) -> list[float]:
        """Return the smoothed samples per millisecond of each rank; 0 before it is measured, or if the graph is not
        distributed."""
        return list(self._replicas.windows.balance.throughput) if self._replicas is not None else [0.0]

    def shard_sizes(self) -> list[int]:
        """Return the samples of each rank in the last forward pass; empty if the graph is not distributed."""
        return list(self._replicas.shard_sizes) if self._replicas is not None else []

    def has_el_che(self) -> bool:
        """Return whether replicas train windows of whole batches (El Che) instead of shards of each batch."""
        return self._replicas is not None and self._replicas.windows.windowed

    def batch_counts(self) -> list[int]:
        """Return the number of batches of each rank in the next window; 1 each without El Che."""
        return list(self._replicas.windows.plan.counts) if self._replicas is not None else [1]

    def scalars(self) -> dict[str, float | None]:
        """Return the mean of each scalar recorded since the last call by `ddp.record_scalar`, between a forward pass and
        its step. None: the mean is not finite."""
        return self._trained.scalars()

    def on_record(self, listener: Callable[[Any, float], None]) -> Callable[[], None]:
        """Call `listener` with every record of the training and its time. Return a function that removes the listener. Used
        by `Monitor.watch`."""
        return self._set_up().listen(listener)

    def replica_devices(self) -> list[str]:
        """Return the device of each replica; the graph's own device if it is not distributed."""
        return [str(place) for place in self._set_up().places()]

    def work(self) -> list[tuple[int, int, float]]:
        """Return (steps, samples, training seconds) of each replica so far."""
        return [(each.steps, each.samples, each.busy_s) for each in self._set_up().record.work]

    def lr(self) -> float:
        """Return the learning rate of the first parameter group; 0 without an optimizer."""
        return self._set_up().rates.first

    def epoch_samples(self) -> int:
        """Return the number of samples in an epoch; 0 if no data is attached."""
        return self._set_up().epoch_samples()

    def set_data_loader(self, loader: DataLoader, *inputs: str) -> None:
        """Attach the training data. `inputs`: names of the batch members that are the graph's inputs, in order."""
        self._set_up().set_data_loader(loader, inputs)

    def epoch(self, number: int) -> Iterator[GraphBatch]:
        """Yield the batches of an epoch, each divided over the replicas. The order depends on the loader's seed and
        `number`."""
        return self._trained.epoch(number)

    def forward_batch(self, batch: GraphBatch) -> Any:
        """Return the graph's output for a batch of `epoch`. Outputs of the replicas are gathered in the order of the
        batch."""
        return self._trained.forward_batch(batch)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients since the last step; in a distributed graph, on all replicas."""
        nn.Module.zero_grad(self, set_to_none)
        if self._replicas is not None:
            self._replicas.forget()

    def _pass(self, inputs: tuple[Any, ...]) -> FlowOutput:
        """Run the pass for `forward` on all replicas."""
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
    """Copy parameters that were loaded into the graph to all replicas."""
    if graph._replicas is not None:
        graph._replicas.broadcast()

"""`Trainable`: what a graph can be told once it is set up for training, on one device or on many. Hands everything on.

`ddp.graph.training` does it; it is imported on use, so that building a model needs no runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ddp.graph.errors import GraphError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ddp.graph.flow import Flow
    from ddp.graph.loader import DataLoader, GraphBatch
    from ddp.graph.training import Schedule, Training


class Trainable:
    """The training methods of `Graph`. Before `ddp.setup` (or `distribute`, `set_optimizer`) most raise GraphError."""

    _training: Training | None

    def distribute(
        self, builder: Callable[[torch.device], Flow], devices: Sequence[str | torch.device] | None = None
    ) -> None:
        """A replica on each of `devices`; None: on every CUDA device. `builder(device)` makes a graph like this one.

        This graph is the first replica; the others take its parameters. GraphError where it is distributed already, or the
        builder makes another model; ValueError for devices that are not there.
        """
        self._begun(or_begin=True).distribute(builder, devices)

    def auto_distribute(self, builder: Callable[[torch.device], Flow]) -> bool:
        """`distribute` over all CUDA devices if there are two or more; whether it was done."""
        return self._begun(or_begin=True).auto_distribute(builder)

    def set_optimizer(self, factory: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]) -> None:
        """An optimizer for every replica: parameters -> optimizer. A second call replaces the first."""
        self._begun(or_begin=True).set_optimizer(factory)

    def step(self) -> None:
        """Reduce gradients, bring buffers together, set the learning rate, step every optimizer, clear the gradients.

        Gradients are those of the loss that `backward` was called on, as on one device. GraphError without one.
        """
        self._begun().step()

    def set_lr(self, lr: float) -> None:
        """The learning rate of all optimizers from now on; ends a scheduler. Other groups keep their proportion."""
        self._begun().set_lr(lr)

    def set_scheduler(self, schedule: Schedule) -> None:
        """Follow `schedule` from the coming step on: step counter -> learning rate; or an object with `lr(step)`."""
        self._begun().set_scheduler(schedule)

    def set_lr_scale(self, scale: float) -> None:
        """Multiply what the scheduler says (Goyal et al. 2017). Without a scheduler it has no effect."""
        self._begun().set_lr_scale(scale)

    def training_step(self) -> int:
        """Steps so far."""
        return self._training.steps if self._training is not None else 0

    def world_size(self) -> int:
        """Number of replicas; 1 if not distributed."""
        return len(self.devices()) or 1

    def is_distributed(self) -> bool:
        """Whether there are several replicas."""
        return self._training is not None and self._training.replicas is not None

    def devices(self) -> list[torch.device]:
        """By rank; empty if not distributed."""
        replicas = self._training.replicas if self._training is not None else None
        return list(replicas.devices) if replicas is not None else []

    def chunk_ratios(self) -> list[float]:
        """Share of the samples by rank, as they are planned; they sum to 1."""
        replicas = self._training.replicas if self._training is not None else None
        return list(replicas.windows.ratios) if replicas is not None else [1.0]

    def throughput(self) -> list[float]:
        """Smoothed samples per millisecond by rank; 0 until it is measured, and where the graph is not distributed."""
        replicas = self._training.replicas if self._training is not None else None
        return list(replicas.windows.balance.throughput) if replicas is not None else [0.0]

    def shard_sizes(self) -> list[int]:
        """Samples by rank in the last forward pass; empty if not distributed."""
        replicas = self._training.replicas if self._training is not None else None
        return list(replicas.shard_sizes) if replicas is not None else []

    def has_el_che(self) -> bool:
        """Whether replicas run windows of batches of their own."""
        replicas = self._training.replicas if self._training is not None else None
        return replicas is not None and replicas.windows.windowed

    def batch_counts(self) -> list[int]:
        """Batches of each rank in the coming window; 1 each without El Che."""
        replicas = self._training.replicas if self._training is not None else None
        return list(replicas.windows.plan.counts) if replicas is not None else [1]

    def scalars(self) -> dict[str, float | None]:
        """Means of what `ddp.record_scalar` was given since the last call, between a forward pass and its step; None: not
        finite."""
        return self._begun().scalars()

    def set_data_loader(self, loader: DataLoader, *inputs: str) -> None:
        """Attach the training data; `inputs` name the members of a batch that go into the graph, in order."""
        self._begun(or_begin=True).set_data_loader(loader, inputs)

    def epoch(self, number: int) -> Iterator[GraphBatch]:
        """The batches of an epoch, each with all replicas' parts; the order depends on the loader's seed and `number`."""
        return self._begun().epoch(number)

    def forward_batch(self, batch: GraphBatch) -> Any:
        """The graph's value of a batch of `epoch`: every replica on its own part, put together in the batch's order."""
        return self._begun().forward_batch(batch)

    def _begun(self, or_begin: bool = False) -> Training:
        if self._training is None:
            if not or_begin:
                raise GraphError(
                    "the graph is not set up for training: call ddp.setup(graph, builder, optimizer_factory) first"
                )
            from ddp.graph.training import Training

            self._training = Training(self)  # type: ignore[arg-type]
        return self._training

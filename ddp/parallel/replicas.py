"""Own `wrap`: replicas of one model, each on its own device, averaged when the user's loop asks for it (GANs, RL)."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp.comm.transports.base import MAX, SUM
from ddp.gradients.step_gradients import by_type
from ddp.gradients.storage import BucketStorage
from ddp.parallel.group import Group, current
from ddp.parallel.startup_check import ParameterGuard, agree, claim, describe, difference, release
from ddp.replica.memory.shared_gradients import separate
from ddp.replica.sparse import dense


class Replicas:
    """The replicas of a model that `wrap` has wrapped. They are numbered over all ranks, beginning with those of rank 0."""

    def __init__(self, models: Sequence[nn.Module], devices: Sequence[torch.device], group: Group) -> None:
        self._models, self._group = list(models), group
        self.devices = tuple(devices)
        """Device of each replica in this process."""
        self.world_size = len(models) * group.world_size
        """Number of replicas in all processes."""
        first = describe(models[0])
        for number, model in enumerate(models[1:], 1):
            if what := difference(describe(model), first, f"replica {number}", "replica 0"):
                raise ValueError(f"these are not replicas of one model: {what}")
        claim(models, self)
        try:
            agree(group, models[:1], {"replicas of a rank": len(models)})
        except BaseException:
            release(models, self)
            raise
        self._guards = [ParameterGuard(model) for model in models]
        trained = [[p for p in model.parameters() if p.requires_grad] for model in models]
        self._columns = list(zip(*trained, strict=True))
        # float32 for half precision: a gradient times its count may overflow.
        self._sums = BucketStorage(
            trained[0],
            by_type(trained[0]),
            lambda _, size, dtype: group.empty(size, torch.float32 if dtype.itemsize == 2 else dtype),
        )
        self._release = weakref.finalize(self, group.release, self._sums.flats)
        self._release.atexit = False

    def sync_params(self) -> None:
        """Set the parameters of all replicas to those of replica 0. Raises RankLost."""
        self._spread([list(model.parameters()) for model in self._models])

    def sync_buffers(self) -> None:
        """Set the buffers of all replicas to those of replica 0. Raises RankLost."""
        self._spread([list(model.buffers()) for model in self._models])

    def _spread(self, tensors: list[list[Tensor]]) -> None:
        with torch.no_grad():
            self._group.broadcast([tensor.detach() for tensor in tensors[0]])
            for others in tensors[1:]:
                for tensor, first in zip(others, tensors[0], strict=True):
                    tensor.copy_(first)

    def all_reduce_gradients(self) -> None:
        """Set every `.grad` to the mean over all replicas. A missing gradient counts as zero. Raises RankLost."""
        self._reduce([1.0] * self.world_size)

    def weighted_all_reduce_gradients(self, counts: Sequence[float]) -> None:
        """Set every `.grad` to the mean weighted by `counts`, one number for every replica of every rank, such as its
        samples. Raises ValueError, RankLost."""
        if len(counts) != self.world_size:
            raise ValueError(f"one count for each of {self.world_size} replicas is needed, not {len(counts)}")
        if not all(math.isfinite(count) and count >= 0 for count in counts) or not sum(counts):
            raise ValueError(f"counts must be finite, 0 or more, and not all zero: {list(counts)}")
        self._reduce([float(count) for count in counts])

    @torch.no_grad()
    def _reduce(self, counts: list[float]) -> None:
        for guard in self._guards:
            guard.check()
        total, local = sum(counts), len(self._models)
        own = counts[self._group.rank * local : (self._group.rank + 1) * local]
        flags = [float(any(p.grad is not None for p in column)) for column in self._columns]
        bounds = [*counts, *(-count for count in counts), *flags]
        extremes = torch.tensor(bounds, dtype=torch.float64, device=self._group.device)
        self._group.all_reduce(extremes, MAX)
        most, least, used = torch.split(extremes, [len(counts), len(counts), len(flags)])
        if not torch.equal(most, -least):
            raise ValueError(
                f"ranks gave different counts, {counts} on rank {self._group.rank}: give all of them the same list, one for "
                "each replica, those of rank 0 first"
            )
        for column, view in zip(self._columns, self._sums.views, strict=True):
            _add_up(column, own, view)
        for flat in self._sums.flats:
            self._group.all_reduce(flat, SUM)
            flat.div_(total)
        for model in self._models:
            separate(model.parameters())
        for column, view, anywhere in zip(self._columns, self._sums.views, used.tolist(), strict=True):
            if anywhere:
                _hand_out(column, view)

    def close(self) -> None:
        """Release the models, so that they can be wrapped again."""
        self._release()
        release(self._models, self)


def _add_up(column: Sequence[nn.Parameter], counts: Sequence[float], view: Tensor) -> None:
    """Sum the weighted gradients of one parameter over this process's replicas into `view`."""
    view.zero_()
    for parameter, count in zip(column, counts, strict=True):
        if parameter.grad is not None and count:
            view.add_(dense(parameter.grad).to(view.device, view.dtype), alpha=count)


def _hand_out(column: Sequence[nn.Parameter], view: Tensor) -> None:
    for parameter in column:
        if parameter.grad is None or parameter.grad.is_sparse:
            parameter.grad = torch.empty_like(parameter)
        parameter.grad.copy_(view)


def wrap(
    models: Sequence[nn.Module], devices: Sequence[str | torch.device] | None = None, *, group: Group | None = None
) -> Replicas:
    """Wrap replicas of one model: one for each of `devices` in this process. Every other rank must have the same number of
    replicas.

    Wrap the parts of a GAN separately: `ddp.wrap([generator], ["cpu"])`, `ddp.wrap([critic], ["cpu"])`. Without `ddp.init`,
    torchrun's variables or a torch process group, this process is the only rank. Raises ValueError for models that differ
    or are wrapped already (with rank and parameter), RankLost for a rank that does not come.
    """
    if isinstance(models, nn.Module):
        raise ValueError("wrap takes a list of models, one for each device: wrap([model], [device])")
    models = list(models)
    places = [torch.device(d) for d in devices] if devices is not None else [_place(model) for model in models]
    if not models or len(models) != len(places):
        raise ValueError(f"one model for each device is needed, not {len(models)} for {len(places)}")
    if len(set(map(id, models))) < len(models):
        raise ValueError("a model is in the list twice: replicas are copies of it, as copy.deepcopy(model) makes them")
    for number, (model, place) in enumerate(zip(models, places, strict=True)):
        if _place(model).type != place.type:
            raise ValueError(f"model {number} is on {_place(model)}, not on {place}: move it there first")
    return Replicas(models, places, group or current(alone=True))


def _place(model: nn.Module) -> torch.device:
    for parameter in model.parameters():
        return parameter.device
    raise ValueError("a model without parameters has nothing to bring together")

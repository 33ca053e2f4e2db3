"""Own the gradients of one wrapped model in buckets, and their way through a group. Knows neither modules nor loops.

Gradients live in the buckets: `p.grad` is a view, and what autograd or the user makes anew is copied there as it comes.
Buckets but the last go from a thread while backward still runs. The last one goes at its end, from the caller's: there is
nothing left to overlap with. Behind it travel four numbers: whether a rank left a parameter out, its samples, whether it
gave them, whether its parameters moved by gradients that it alone has.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp.comm.transports.base import MEAN, SUM
from ddp.gradients.buckets import Item, Launches, assign
from ddp.gradients.storage import BucketStorage
from ddp.parallel.divergence import Moved, compare
from ddp.parallel.group import Group

TAIL = 4
LINE = 64
"""Bytes of a cache line: sums over what begins with one run at full speed."""


class BucketReducer:
    """Call `touch` for every gradient as it comes, `finish` at the end of the pass."""

    def __init__(
        self,
        group: Group,
        named: Sequence[tuple[str, nn.Parameter]],
        caps: Sequence[int],
        average: bool = True,
        wire: torch.dtype | None = None,
    ) -> None:
        self._group, self._names = group, [name for name, _ in named]
        self._parameters = [parameter for _, parameter in named]
        self._op = MEAN if average else SUM
        plan = assign([Item(p.nbytes, str(p.dtype)) for p in self._parameters], caps)
        self._plan, self._launches, self._last = plan, Launches(plan), len(plan) - 1
        dtype = self._parameters[plan[-1][0]].dtype
        self._exact = wire is None and dtype in (torch.float32, torch.float64)
        """Whether the four numbers travel with the last bucket: one of few bits would round them."""
        tails = {self._last: (dtype, TAIL)} if self._exact else None
        self._storage = BucketStorage(
            self._parameters, plan, lambda _, size, dtype: group.empty(size, dtype), tails, LINE
        )
        self._tail = self._storage.tails[-1] if self._exact else torch.zeros(TAIL, device=group.device)
        self._wires = None if wire is None else [group.empty(f.numel(), wire) for f in self._storage.flats]
        self._numbers = self._tail.numpy() if group.device.type == "cpu" else None
        self.samples: float | None
        """How many samples this rank's gradient is the mean of; None: ranks weigh the same."""
        self.enabled = True
        """Whether gradients are sent as they come."""
        self.moved = Moved(self._parameters)
        self.passes = 0
        """Synchronisations so far."""
        self._summed = False
        """Whether every `grad` is a sum over all ranks, to which nothing has been added since."""
        self._room: dict[int, Tensor] = {}
        """Of buckets in float16, float32: a gradient times its samples may be too large for them."""
        flats = [*self._storage.flats, *(self._wires or ())]
        self.release = weakref.finalize(self, _release, group, flats, self._room)
        """Gives back the memory of the buckets, which lives on in gradients that lie there; called when this ends, too."""
        self.release.atexit = False
        self._rest()

    def _rest(self) -> None:
        """Forget the last pass: nothing has come since."""
        self._launches.reset()
        self.samples = None
        self._used = [False] * len(self._parameters)

    @property
    def launched(self) -> int:
        """Buckets that are under way."""
        return self._launches.launched

    def touch(self, index: int) -> None:
        """Note that the gradient of this parameter is complete. Raises ValueError, RankLost."""
        self._storage.place(index)
        self._used[index] = True
        if not self.enabled:
            self.moved.unsent()
            return
        try:
            for bucket in self._launches.arrive(index):
                if bucket < self._last:
                    self._group.start(self._outgoing(bucket), self._op)
        except ValueError as error:
            raise ValueError(
                f"the gradient of {self._names[index]} {error}: it is used in several backward passes that run into one "
                "another (checkpointing?); do them inside no_sync() and call sync_gradients() after"
            ) from None

    def add_to_sums(self) -> None:
        """Begin a pass; where ranks sum, call it before its first gradient is added to anything. What was summed already
        stays on one rank alone: it would count once for every rank."""
        if self._summed and self._group.rank:
            for index, parameter in enumerate(self._parameters):
                if parameter.grad is self._storage.views[index]:
                    parameter.grad.zero_()
        self._summed = False

    def finish(self) -> None:
        """Send what has not gone, and wait for all: every `grad` is that of all ranks. Raises ValueError, RankLost."""
        self.add_to_sums()
        waiting = [index for bucket in self._plan[self._launches.launched :] for index in bucket]
        missing = [index for index in waiting if self._parameters[index].grad is None]
        for index in waiting:
            self._storage.place(index)
        samples = self.samples
        for bucket in self._launches.rest():
            if bucket < self._last:
                self._group.all_reduce(self._outgoing(bucket), self._op)
        outgoing = self._outgoing(self._last)
        count = 1.0 if samples is None else float(samples)
        self._write([float(not all(self._used)), count, float(samples is not None), float(bool(self.moved))])
        self._group.all_reduce(outgoing, self._op)
        if not self._exact:
            self._group.all_reduce(self._tail, self._op)
        self.passes += 1
        self._conclude(samples, missing)

    def _outgoing(self, bucket: int) -> Tensor:
        """Return what is sent of a bucket, times the samples of this rank."""
        flat, wide = self._storage.flats[bucket], self._wide(bucket)
        weighed = flat if wide is None else wide.copy_(flat)
        if self.samples is not None and self.samples != 1:
            # A rank without samples weighs nothing, whatever it holds.
            weighed.mul_(self.samples) if self.samples else weighed.zero_()
        return weighed if wide is not None or self._wires is None else self._wires[bucket].copy_(flat)

    def _wide(self, bucket: int) -> Tensor | None:
        """Return where a bucket has room for its values times their samples; None: where it is, or nobody gives samples."""
        flats = self._storage.flats
        if flats[bucket].dtype is not torch.float16 or self.samples is None:
            return None
        if self._wires is not None:
            return self._wires[bucket]
        if not self._room:
            half = [number for number, flat in enumerate(flats) if flat.dtype is torch.float16]
            self._room = {number: self._group.empty(flats[number].numel(), torch.float32) for number in half}
        return self._room[bucket]

    def _write(self, numbers: list[float]) -> None:
        if self._numbers is not None:
            self._numbers[:] = numbers
        else:
            self._tail.copy_(torch.tensor(numbers))

    def _conclude(self, given: float | None, missing: list[int]) -> None:
        """Unpack, divide by the samples, and take away the gradients of parameters that no rank used."""
        unused, samples, counted, moved = (self._tail if self._numbers is None else self._numbers).tolist()
        whole = 1.0 if self._op == MEAN else float(self._group.world_size)
        if counted and counted != whole:
            raise ValueError(
                "some ranks said how many samples they have (set_samples), some did not: all must, or none"
            )
        divisor = samples if given is not None and samples else 1.0
        for bucket, flat in enumerate(self._storage.flats):
            wide = self._wide(bucket)
            if wide is not None:
                flat.copy_(wide.div_(divisor))
                continue
            if self._wires is not None:
                flat.copy_(self._wires[bucket])
            if divisor != 1.0:
                flat.div_(divisor)
        if unused:
            used = torch.tensor([float(used) for used in self._used], device=self._group.device)
            self._group.all_reduce(used)
            flags = used.tolist()
            for index in missing:
                if not flags[index]:
                    self._parameters[index].grad = None
        self._rest()
        self._summed = self._op == SUM
        self.moved.forget()
        if moved:
            compare(self._group, self._names, self._parameters)

    def abandon(self) -> None:
        """Give up a pass that broke off; the samples given are for the next one. Raises ValueError if some of it was sent
        already: the other ranks have it."""
        if self._launches.launched:
            raise ValueError("the last backward pass broke off with gradients under way: start the ranks anew")
        samples = self.samples
        self._rest()
        self.samples = samples


def _release(group: Group, flats: list[Tensor], room: dict[int, Tensor]) -> None:
    group.release([*flats, *room.values()])

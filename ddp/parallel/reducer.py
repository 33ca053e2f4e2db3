"""Own the gradients of one wrapped model in buckets, and their reduction through a group. Knows neither modules nor loops.

Gradients are views of the buckets. A gradient that autograd or the user allocates anew is copied into its bucket when it is
complete. All buckets but the last are sent from a thread while the backward pass still runs. The last bucket is sent at the
end from the caller's thread, because no computation is left to overlap with. Four numbers are sent behind it: whether a
rank left a parameter unused, its number of samples, whether it set that number, and whether its parameters moved by unsent
gradients.
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
"""Bytes of a cache line. Sums are fastest over memory that begins at a multiple of it."""


class BucketReducer:
    """Reduces gradients in buckets. Call `touch` when a gradient is complete, and `finish` at the end of the backward
    pass."""

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
        """Whether the four numbers are sent in the last bucket. A half-precision bucket would round them."""
        tails = {self._last: (dtype, TAIL)} if self._exact else None
        self._storage = BucketStorage(
            self._parameters, plan, lambda _, size, dtype: group.empty(size, dtype), tails, LINE
        )
        self._tail = self._storage.tails[-1] if self._exact else torch.zeros(TAIL, device=group.device)
        self._wires = None if wire is None else [group.empty(f.numel(), wire) for f in self._storage.flats]
        self._numbers = self._tail.numpy() if group.device.type == "cpu" else None
        self.samples: float | None
        """Number of samples in this rank's batch; None: all ranks have the same weight."""
        self.enabled = True
        """Whether a bucket is sent as soon as its gradients are complete."""
        self.moved = Moved(self._parameters)
        self.passes = 0
        """Number of synchronisations so far."""
        self._summed = False
        """Whether every `grad` is still the sum over all ranks from the last synchronisation."""
        self._room: dict[int, Tensor] = {}
        """float32 buffers of float16 buckets: a gradient times its number of samples may overflow float16."""
        flats = [*self._storage.flats, *(self._wires or ())]
        self.release = weakref.finalize(self, _release, group, flats, self._room)
        """Releases the memory of the buckets; also called on garbage collection. Gradients that are views keep theirs."""
        self.release.atexit = False
        self._rest()

    def _rest(self) -> None:
        """Reset the state of a pass: no gradient is complete."""
        self._launches.reset()
        self.samples = None
        self._used = [False] * len(self._parameters)

    @property
    def launched(self) -> int:
        """Number of buckets that are being sent."""
        return self._launches.launched

    def touch(self, index: int) -> None:
        """Note that the gradient of parameter `index` is complete, and send each bucket that this completes. Raises
        ValueError, RankLost."""
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
        """Begin a backward pass. If gradients are summed over ranks, call this before autograd accumulates the first
        gradient: the earlier sum is kept on rank 0 only, because otherwise every rank would contribute it once."""
        if self._summed and self._group.rank:
            for index, parameter in enumerate(self._parameters):
                if parameter.grad is self._storage.views[index]:
                    parameter.grad.zero_()
        self._summed = False

    def finish(self) -> None:
        """Send the remaining buckets and wait for all: every `grad` is then reduced over all ranks. Raises ValueError,
        RankLost."""
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
        """Return the tensor to send for a bucket: its gradients times this rank's number of samples."""
        flat, wide = self._storage.flats[bucket], self._wide(bucket)
        weighed = flat if wide is None else wide.copy_(flat)
        if self.samples is not None and self.samples != 1:
            # A rank with 0 samples must contribute zeros, even if its gradients are infinite.
            weighed.mul_(self.samples) if self.samples else weighed.zero_()
        return weighed if wide is not None or self._wires is None else self._wires[bucket].copy_(flat)

    def _wide(self, bucket: int) -> Tensor | None:
        """Return the float32 buffer of a float16 bucket if samples were set; None if the bucket itself is used."""
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
        """Copy the results into the gradients, divide them by the total number of samples, and remove the gradients of
        parameters that no rank used."""
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
        """Discard an interrupted pass, but keep its number of samples for the next one. Raises ValueError if a bucket was
        sent already, because other ranks have received it."""
        if self._launches.launched:
            raise ValueError("the last backward pass broke off with gradients under way: start the ranks anew")
        samples = self.samples
        self._rest()
        self.samples = samples


def _release(group: Group, flats: list[Tensor], room: dict[int, Tensor]) -> None:
    group.release([*flats, *room.values()])

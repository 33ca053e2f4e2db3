"""The gradients of one model in buckets, and their way through a group. Knows neither modules nor loops.

Gradients live in the buckets: `p.grad` is a view. Where the user has cleared `grad` to None, only the first gradient to come
is copied: by then the rest of the model has its views. Buckets but the last go from a thread (or PyTorch's own) while
backward still runs; the last one goes at its end, from the caller's, for there is nothing left to overlap with. Behind it
travel four numbers: whether a rank left a parameter out, its samples, whether it said them, whether its parameters moved
by gradients that it alone has.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ddp.comm.transports.base import MEAN, SUM
from ddp.gradients.buckets import Item, Launches, assign
from ddp.parallel.agreement import layout
from ddp.parallel.apart import Moved, compare
from ddp.parallel.group import Group
from ddp.replica.sparse import dense

TAIL = 4


class BucketReducer:
    """`touch` for every gradient as it comes, `finish` at the end of the pass."""

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
        self._plan, self._launches = plan, Launches(plan)
        self._flats: list[Tensor] = []
        self._views: list[Tensor] = [p.detach() for p in self._parameters]  # replaced right here
        self._parts, self._layouts = list(self._views), [layout(p) for p in self._parameters]
        exact = wire is None and bool(plan) and self._parameters[plan[-1][0]].dtype in (torch.float32, torch.float64)
        for number, bucket in enumerate(plan):
            members = [self._parameters[index] for index in bucket]
            # Their places start where a cache line does, so that sums over them run at full speed.
            line = 64 // members[0].element_size()
            sizes = [-(-p.numel() // line) * line for p in members]
            tail = TAIL if exact and number == len(plan) - 1 else 0
            flat = group.empty(sum(sizes) + tail, members[0].dtype).zero_()
            self._flats.append(flat)
            for index, part in zip(bucket, torch.split(flat[: sum(sizes)], sizes), strict=True):
                self._parts[index] = part
                self._lay(index)
        self._tail = self._flats[-1][-TAIL:] if exact else torch.zeros(TAIL, device=group.device)
        self._apart = not exact
        """The four numbers go by themselves: a bucket of few bits would round them."""
        self._wires = None if wire is None else [group.empty(f.numel(), wire) for f in self._flats]
        self._numbers = self._tail.numpy() if group.device.type == "cpu" else None
        self.samples: int | None
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
        self._rest()

    def _rest(self) -> None:
        """Nothing is there since the last synchronisation."""
        self._launches.reset()
        self.samples = None
        self._used = [False] * len(self._parameters)
        self._fresh: list[int] = []
        self.open = False
        """Whether gradients came since the last synchronisation."""

    @property
    def launched(self) -> int:
        """Buckets that are under way."""
        return self._launches.launched

    def touch(self, index: int) -> None:
        """The gradient of this parameter is complete. Raises ValueError, RankLost."""
        if not self.open:
            self.open = True
            self._attach(index)
        if not self._is_here(index):
            self._take_in(index)
        self._used[index] = True
        if not self.enabled:
            self.moved.unsent()
        else:
            last = len(self._plan) - 1
            try:
                for bucket in self._launches.arrive(index):
                    if bucket < last:
                        self._send(bucket, inline=False)
            except ValueError as error:
                raise ValueError(
                    f"the gradient of {self._names[index]} {error}: it is used in several backward passes that run into one "
                    "another (checkpointing?); do them inside no_sync() and call sync_gradients() after"
                ) from None

    def add_to_sums(self) -> None:
        """A pass begins; where ranks sum, call it before its first gradient is added to anything. What was summed already
        stays on one rank alone: it would count once for every rank."""
        if self._summed and self._group.rank:
            for parameter, view in zip(self._parameters, self._views, strict=True):
                if parameter.grad is view:
                    view.zero_()
        self._summed = False

    def _lay(self, index: int) -> None:
        """A view of a gradient's place, in the strides that autograd gives it: fused optimizers pair what lies alike."""
        part, like = self._parts[index], self._layouts[index]
        self._views[index] = part.as_strided(like.shape, like.stride(), part.storage_offset())

    def _mend(self, index: int) -> None:
        """`p.grad.data = ...` gives our view other memory."""
        if self._views[index].data_ptr() != self._parts[index].data_ptr():
            self._lay(index)

    def _is_here(self, index: int) -> bool:
        """Whether a gradient is in its place."""
        grad = self._parameters[index].grad
        return grad is self._views[index] and grad.data_ptr() == self._parts[index].data_ptr()

    @torch.no_grad()
    def _take_in(self, index: int) -> None:
        """A gradient that autograd or the user made anew, dense or sparse, goes to its place."""
        grad = self._parameters[index].grad
        assert grad is not None
        self._mend(index)
        self._views[index].copy_(dense(grad))
        self._parameters[index].grad = self._views[index]

    def _attach(self, came: int = -1) -> None:
        """Where the user has cleared `grad` to None, put zeros of ours there: autograd adds to them. `came` has come."""
        parameters, views = self._parameters, self._views
        for number in range(self._launches.launched, len(self._plan)):
            bucket = self._plan[number]
            missing = [index for index in bucket if parameters[index].grad is None]
            if not missing:
                continue
            self._fresh += missing
            for index in missing:
                self._mend(index)
            rest = len(bucket) - len(missing)
            if not rest or (rest == 1 and came in bucket and parameters[came].grad is not views[came]):
                self._flats[number].zero_()  # one call for all
            else:
                for index in missing:
                    views[index].zero_()
            for index in missing:
                parameters[index].grad = views[index]

    def finish(self) -> None:
        """Send what has not gone, and wait for all: every `grad` is that of all ranks. Raises ValueError, RankLost."""
        self.add_to_sums()
        self._attach()
        for members in self._plan[self._launches.launched :]:
            for index in members:
                if not self._is_here(index):
                    self._take_in(index)
        last, said = len(self._plan) - 1, self.samples
        for bucket in self._launches.rest():
            if bucket < last:
                self._send(bucket, inline=True)
        outgoing = self._outgoing(last)
        samples = 1.0 if said is None else float(said)
        self._tell([float(not all(self._used)), samples, float(said is not None), float(bool(self.moved))])
        self._group.all_reduce(outgoing, self._op)
        if self._apart:
            self._group.all_reduce(self._tail, self._op)
        self.passes += 1
        self._conclude(said)

    def _outgoing(self, bucket: int) -> Tensor:
        """What is sent of a bucket, times the samples of this rank."""
        flat, wide = self._flats[bucket], self._wide(bucket)
        weighed = flat if wide is None else wide.copy_(flat)
        if self.samples is not None and self.samples != 1:
            # A rank without samples weighs nothing, whatever it holds.
            weighed.mul_(self.samples) if self.samples else weighed.zero_()
        return weighed if wide is not None or self._wires is None else self._wires[bucket].copy_(flat)

    def _wide(self, bucket: int) -> Tensor | None:
        """Where a bucket has room for its values times their samples; None: where it is, or nobody says samples."""
        flat = self._flats[bucket]
        if flat.dtype is not torch.float16 or self.samples is None:
            return None
        if self._wires is not None:
            return self._wires[bucket]
        if not self._room:
            half = [number for number, one in enumerate(self._flats) if one.dtype is torch.float16]
            self._room = {number: self._group.empty(self._flats[number].numel(), torch.float32) for number in half}
        return self._room[bucket]

    def _send(self, bucket: int, inline: bool) -> None:
        tensor = self._outgoing(bucket)
        if inline:
            self._group.all_reduce(tensor, self._op)
        else:
            self._group.start(tensor, self._op)

    def _tell(self, numbers: list[float]) -> None:
        if self._numbers is not None:
            self._numbers[:] = numbers
        else:
            self._tail.copy_(torch.tensor(numbers))

    def _conclude(self, said: int | None) -> None:
        """Unpack, divide by the samples, and take away the gradients of parameters that no rank used."""
        unused, samples, counted, moved = (self._tail if self._numbers is None else self._numbers).tolist()
        whole = 1.0 if self._op == MEAN else float(self._group.world_size)
        if counted and counted != whole:
            raise ValueError(
                "some ranks said how many samples they have (set_samples), some did not: all must, or none"
            )
        divisor = samples if said is not None and samples else 1.0
        for bucket, flat in enumerate(self._flats):
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
            for index in self._fresh:
                if not flags[index]:
                    self._parameters[index].grad = None
        self._rest()
        self._summed = self._op == SUM
        self.moved.forget()
        if moved:
            compare(self._group, self._names, self._parameters)

    def abandon(self) -> None:
        """A pass broke off; what was said of samples is for the next one. Raises ValueError if some of it was sent already:
        the other ranks have it."""
        if self._launches.launched:
            raise ValueError("the last backward pass broke off with gradients under way: start the ranks anew")
        said = self.samples
        self._rest()
        self.samples = said

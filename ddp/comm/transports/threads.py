"""The transport of ranks that are threads of one process.

The last rank to arrive carries out the collective, in the order of ranks, so its bits depend on nothing else. Earlier ranks
pause. Owns the tensors of the current collective; the caller decides how a thread pauses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ddp.comm.transports.arithmetic import about, reduction, words
from ddp.comm.transports.base import SUM, ExchangeBroken, ShardRange, TransportConfig, Wait

Pause = Callable[[Callable[[], bool]], None]
"""Returns when the condition is true; other threads run meanwhile."""


@dataclass
class _Collective:
    """One collective: the tensors of its members, by rank."""

    tensors: dict[int, Tensor] = field(default_factory=dict)
    what: int | None = None
    done: bool = False
    error: str = ""

    def over(self) -> bool:
        return self.done or bool(self.error)


class ThreadGroup:
    """The group of ranks in one process."""

    def __init__(self, pauses: Sequence[Pause]) -> None:
        """`pauses`: for each rank, the function that it waits with."""
        self.pauses = list(pauses)
        self.regions: dict[tuple[int, str], Tensor] = {}
        """Tensors of `Transport.empty`, by rank and name."""
        self.members: tuple[int, ...] = ()
        self._generation = -1
        self._current = _Collective()
        self._lock = threading.Lock()

    def join(self, members: Sequence[int], generation: int) -> None:
        """Form the group of `members`; the first member to call it breaks up the previous group."""
        with self._lock:
            if generation > self._generation:
                self._fail("there is another group")
                self.members, self._generation = tuple(members), generation

    def leave(self, rank: int, generation: int | None = None) -> None:
        """Break the current and further collectives of the group that `rank` is in: of `generation`, or of any group if
        None."""
        with self._lock:
            if generation in (None, self._generation) and rank in self.members:
                self._fail(f"rank {rank} has left")
                self.members = ()

    def _fail(self, error: str) -> None:
        self._current.error = error
        self._current = _Collective()

    def meet(self, rank: int, tensor: Tensor, what: int, act: Callable[[list[Tensor]], None]) -> None:
        """Add `tensor` to the collective; `act` is called once with the tensors of all members, in order. Raises
        ExchangeBroken."""
        with self._lock:
            if rank not in self.members:
                raise ExchangeBroken("there is no group")
            current = self._current
            if current.what not in (None, what):
                self._fail(f"rank {rank} reduces {words(what)}, others {words(current.what or 0)}")
            else:
                current.what = what
                current.tensors[rank] = tensor
                if len(current.tensors) == len(self.members):
                    act([current.tensors[member] for member in self.members])
                    current.done, self._current = True, _Collective()
        if not current.over():
            self.pauses[rank](current.over)
        if not current.done:
            raise ExchangeBroken(current.error)


class Transport:
    """One rank's side."""

    name = "memory"

    def __init__(self, group: ThreadGroup, config: TransportConfig) -> None:
        self.config = replace(config, spare_core=None)  # ranks take turns, so nothing runs in the background
        self._group, self._rank, self._device = group, config.rank, config.device
        self._generation = -1
        self._names: dict[int, str] = {}
        """Address -> name of the tensor made by `empty`."""

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Return ordinary memory, which all threads can access."""
        tensor = torch.zeros(elements, dtype=dtype, device=self._device)
        self._group.regions[self._rank, name] = tensor
        self._names[tensor.data_ptr()] = name
        return tensor

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group without waiting."""
        self._generation = generation
        self._group.join(members, generation)

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce `tensor` over the group, in place. Raises ExchangeBroken."""

        def act(tensors: list[Tensor]) -> None:
            first = tensors[0]
            reduction([each.to(first.device) for each in tensors], op, first)
            for other in tensors[1:]:
                other.copy_(first)

        flat = tensor.view(-1)
        self._group.meet(self._rank, flat, about(flat, op), act)

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum the ranges that each member owns, into its tensor. Raises ExchangeBroken."""

        def act(tensors: list[Tensor]) -> None:
            for owner, start, stop in runs:
                parts = [each[start:stop].to(tensors[owner].device) for each in tensors]
                total = torch.empty_like(parts[0])
                reduction(parts, SUM, total)
                tensors[owner][start:stop] = total

        self._group.meet(self._rank, tensor, about(tensor, SUM), act)

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Fill `out` at once from the owners' memory."""
        name, at = self._names[source.data_ptr()], 0
        for owner, start, stop in runs:
            part = out[at : at + stop - start]
            theirs = self._group.regions[self._group.members[owner], name][start:stop]
            at += stop - start
            if part.data_ptr() != theirs.data_ptr():
                part.copy_(theirs)
        return lambda: None

    def fence(self) -> None:
        """Wait for all. Raises ExchangeBroken."""
        self._group.meet(self._rank, torch.empty(0), 0, lambda tensors: None)

    def leave(self) -> None:
        """Leave the group: collectives that wait for this rank raise ExchangeBroken."""
        self._group.leave(self._rank, self._generation)

    def close(self) -> None:
        """Do nothing: other ranks may still use what this rank has completed."""

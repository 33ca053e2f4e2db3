"""`memory`: ranks of one host without GPUs reduce in shared memory.

A tensor from `empty` is in shared memory. When all ranks have arrived, each reduces its own slice of all ranks' tensors and
writes the result to all of them; then all wait for all. Nothing is copied. A small tensor, or one in other memory, is copied
to a stage in shared memory, and each rank reduces it from there. Bits depend only on the order of ranks.

Ranks meet at counters, one per rank in its own cache line, which only that rank writes. A lost rank is detected by its lock,
which the kernel releases however the process ended. A collective is complete if and only if every rank has posted its end.
That never becomes untrue, so either all living ranks get a result or none.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ddp.comm import futex
from ddp.comm.transports.arithmetic import about, reduction, words
from ddp.comm.transports.base import SUM, ExchangeBroken, ShardRange, TransportConfig, Wait
from ddp.process.cores import cores
from ddp.process.memory import shared
from ddp.process.process_lock import ProcessLock, ended

LINE = 8
"""Number of 8-byte counters in a cache line."""
STAGE_BYTES = 1 << 22
"""Size of a stage: larger tensors go through it in parts."""
SMALL_BYTES = 1 << 17
"""Up to this size, every rank reduces the whole tensor, which saves the second meeting."""
PIECE = 1 << 17
"""Number of elements reduced at a time, so that they fit the cache."""
SPIN_S = 50e-6
"""Seconds that a waiting rank spins before it sleeps, if every rank has a core. If it spun in vain, because others are late
or share its core, it sleeps at once in the next meeting; after each further failure, in twice as many meetings."""
MOST_RESTS = 64
LOOK_S = 0.01
"""Seconds between two checks of a waiting rank whether the others are alive."""
AHEAD_BYTES = 1 << 18
"""From this size on, a background thread copies what is gathered."""
LEFT = 1
ASLEEP = 3
"""Position in a rank's cache line, after its counter and the codes of two collectives: whether it sleeps."""
MOST_VIEWS = 256


class Transport:
    """A rank's side of one shared folder."""

    name = "memory"

    def __init__(self, config: TransportConfig) -> None:
        self.config, self._folder, self._rank = config, config.folder, config.rank
        self._spin_s = SPIN_S if config.world_size <= cores() else 0.0
        self._life = ProcessLock(self._lock(config.rank, config.life))
        self._lives: dict[int, int] = {}
        """Member -> how often it was restarted."""
        self._stage = [self._region(half, config.rank, torch.uint8, STAGE_BYTES) for half in ("stage0", "stage1")]
        self._own: dict[int, tuple[str, Tensor]] = {}
        """Address -> name and tensor made by `empty`."""
        self._peers: dict[str, dict[int, Tensor]] = {}
        self._members: tuple[int, ...] = ()
        self._posted = self._turn = self._what = 0
        self._rests = 0
        """Number of coming meetings without spinning."""
        self._more_rests = 1
        self._views: dict[tuple[int, int, torch.dtype], list[Tensor]] = {}
        """Views of the stages, by half, size and type: making them takes as long as a small reduction."""
        self._fence = threading.Lock()
        self._helper: ThreadPoolExecutor | None = None

    @staticmethod
    def applies(config: TransportConfig) -> bool:
        """Return whether ranks are on CPUs of one host, on a system with shared memory and file locks."""
        here = not config.meet and config.folder.is_dir()
        return here and config.device.type == "cpu" and hasattr(os, "sched_getaffinity")

    def _lock(self, rank: int, life: int) -> Path:
        return self._folder / (f"alive-{rank}.life{life}" if life else f"alive-{rank}")

    def _region(self, name: str, rank: int, dtype: torch.dtype, elements: int) -> Tensor:
        return shared(self._folder / f"{name}-{rank}.memory", dtype, elements)

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate memory that the other ranks of the host can reach."""
        tensor = self._region(name, self._rank, dtype, elements)
        self._own[tensor.data_ptr()] = name, tensor
        return tensor

    def release(self, tensor: Tensor) -> None:
        """Release a tensor of `empty`, after this rank's last collective on it: no other rank reads it any more."""
        name, _ = self._own.pop(tensor.data_ptr(), ("", tensor))
        self._peers.pop(name, None)
        (self._folder / f"{name}-{self._rank}.memory").unlink(missing_ok=True)

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group without waiting: ranks meet in the first collective."""
        self.leave()
        self._members = tuple(members)
        self._lives = dict(zip(members, lives, strict=True)) if lives else {}
        self._views.clear()
        self._table = shared(self._folder / f"group-{generation}", torch.int64, 2 * LINE * len(members))
        self._counters = self._table.numpy().data.cast("B").cast("q")
        self._me = self._members.index(self._rank)
        self._posted = self._turn = 0

    def leave(self) -> None:
        """Mark this rank as gone; the others break off collectives that it has not completed."""
        if self._members:
            self._counters[LINE * (len(self._members) + self._me)] = LEFT
            futex.wake(self._place(self._me))
        self._members = ()

    def close(self) -> None:
        """Leave the group; the files are deleted with their folder."""
        self.leave()
        self._life.end()
        if self._helper is not None:
            self._helper.shutdown()

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce in place if the tensor is from `empty`, otherwise through the stage."""
        flat = tensor.view(-1)
        name, whole = self._own.get(flat.data_ptr(), ("", flat))
        self._begin(about(flat, op))
        if flat.nbytes <= SMALL_BYTES:
            staged = self._staged(flat)
            self._meet()
            self._compare()
            reduction(staged, op, flat)
        elif name and whole.dtype == flat.dtype:
            self._large([self._reach(name, m, whole)[: flat.numel()] for m in self._members], op)
        else:
            for part in torch.split(flat, STAGE_BYTES // flat.element_size()):
                staged = self._staged(part)
                self._large(staged, op)
                part.copy_(staged[self._me])

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Reduce this rank's ranges from all ranks' tensors, or from their stages if the tensor is in other memory."""
        self._begin(about(tensor, SUM))
        name, whole = self._own.get(tensor.data_ptr(), ("", tensor))
        own = [(start, stop) for owner, start, stop in runs if owner == self._me]
        if name and whole.dtype == tensor.dtype:
            tensors = [self._reach(name, m, whole) for m in self._members]
            self._meet()
            self._compare()
            for first, last in own:
                for start in range(first, last, PIECE):
                    parts = [each[start : min(start + PIECE, last)] for each in tensors]
                    reduction(parts, SUM, parts[0])  # no other rank works on this range
                    if self._me:
                        parts[self._me].copy_(parts[0])
            self._meet()
            return
        step = STAGE_BYTES // tensor.element_size()
        for begin in range(0, tensor.numel(), step):
            part = tensor[begin : begin + step]
            staged = self._staged(part)
            self._meet()
            self._compare()
            for first, last in own:
                start, stop = max(first - begin, 0), min(last - begin, part.numel())
                if start < stop:
                    reduction([each[start:stop] for each in staged], SUM, part[start:stop])

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Copy the ranges from the owners' memory; owners take no part. Another thread copies large ones."""
        name, whole = self._own[source.data_ptr()]
        pairs, at = [], 0
        for owner, start, stop in runs:
            part, theirs = out[at : at + stop - start], self._reach(name, self._members[owner], whole)[start:stop]
            at += stop - start
            if part.data_ptr() != theirs.data_ptr():
                pairs.append((part, theirs))
        if out.nbytes < AHEAD_BYTES or not self._spin_s:
            _copy(pairs)
            return lambda: None
        self._helper = self._helper or ThreadPoolExecutor(1, "fetch", partial(torch.set_num_threads, 1))
        return self._helper.submit(_copy, pairs).result

    def fence(self) -> None:
        """Wait for all."""
        self._begin(0)
        self._meet()

    def _begin(self, what: int) -> None:
        """Begin a collective with the code `what`. Raises ExchangeBroken without a group."""
        if not self._members:
            raise ExchangeBroken("there is no group")
        self._what = what

    def _large(self, tensors: list[Tensor], op: str) -> None:
        self._meet()
        self._compare()
        count, size = len(tensors), tensors[0].numel()
        line = 64 // tensors[0].element_size()  # two ranks must not write to the same cache line
        first, last = (min(-(-size * k // count // line) * line, size) for k in (self._me, self._me + 1))
        for start in range(first, last if self._me < count - 1 else size, PIECE):
            parts = [tensor[start : min(start + PIECE, last)] for tensor in tensors]
            reduction(parts, op, parts[0])
            for part in parts[1:]:
                part.copy_(parts[0])
        self._meet()

    def _staged(self, flat: Tensor) -> list[Tensor]:
        """Copy `flat` to this rank's stage; returns its place in every member's stage. The halves alternate: a reader is
        not overtaken by a writer."""
        half = self._turn = 1 - self._turn
        size = flat.nbytes
        staged = self._views.get((half, size, flat.dtype))
        if staged is None:
            stages = [self._reach(f"stage{half}", member, self._stage[half]) for member in self._members]
            staged = [stage[:size].view(flat.dtype) for stage in stages]
            if len(self._views) < MOST_VIEWS:
                self._views[half, size, flat.dtype] = staged
        staged[self._me].copy_(flat)
        return staged

    def _reach(self, name: str, member: int, own: Tensor) -> Tensor:
        """Return the tensor `name` of `member`."""
        if member == self._rank:
            return own
        peers = self._peers.setdefault(name, {})
        if member not in peers:
            peers[member] = self._region(name, member, own.dtype, own.numel())
        return peers[member]

    def _meet(self) -> None:
        """Wait until every member has arrived. Raises ExchangeBroken if one is gone."""
        target = self._posted = self._posted + 1
        counters, waiting = self._counters, list(range(len(self._members)))
        counters[LINE * self._me + 1 + target % 2] = self._what
        self._settle()  # the data must be visible before the counter
        counters[LINE * self._me] = target
        self._settle()  # a rank that goes to sleep sets its flag first, then checks the counters again
        if any(counters[LINE * k + ASLEEP] for k in waiting):
            futex.wake(self._place(self._me))
        began = time.perf_counter()
        spin_s, slept = 0.0 if self._rests else self._spin_s, False
        while waiting := [k for k in waiting if counters[LINE * k] < target]:
            if time.perf_counter() - began < spin_s:
                continue
            if not slept:
                slept, counters[LINE * self._me + ASLEEP] = True, 1
                self._settle()
            seen = counters[LINE * waiting[0]]
            if seen < target and futex.wait(self._place(waiting[0]), seen, LOOK_S):
                self._look(waiting, target, time.perf_counter() - began)
        counters[LINE * self._me + ASLEEP] = 0
        self._rest(slept)
        self._settle()

    def _rest(self, slept: bool) -> None:
        """Decide whether to spin in the next meeting."""
        if self._rests:
            self._rests -= 1
        elif slept:
            self._rests, self._more_rests = self._more_rests, min(2 * self._more_rests, MOST_RESTS)
        else:
            self._more_rests = 1

    def _compare(self) -> None:
        """Raise ExchangeBroken if a member is in another collective. Two positions for the code alternate."""
        for k, member in enumerate(self._members):
            if (theirs := self._counters[LINE * k + 1 + self._posted % 2]) != self._what:
                mine = f"rank {self._rank} reduces {words(self._what)}"
                raise ExchangeBroken(f"{mine}, rank {member} {words(theirs)}: they are not at the same place")

    def _place(self, k: int) -> int:
        """Return the address of a member's counter: of its lower half, which is the part that changes."""
        return self._table.data_ptr() + LINE * k * self._table.element_size()

    def _settle(self) -> None:
        """Order this thread's reads and writes: acquiring and releasing a lock are memory barriers on every machine."""
        for _ in range(2):
            with self._fence:
                pass

    def _look(self, waiting: list[int], target: int, waited_s: float) -> None:
        """Raise ExchangeBroken if a waiting member has gone without arriving, or is alive but too late."""
        for k in waiting:
            rank, left = self._members[k], self._counters[LINE * (len(self._members) + k)] == LEFT
            if (left or ended(self._lock(rank, self._lives.get(rank, 0)))) and self._counters[LINE * k] < target:
                raise ExchangeBroken(f"rank {rank} {'has left' if left else 'is gone'}")
        if waited_s > self.config.limit_s:
            late = ", ".join(str(self._members[k]) for k in waiting)
            raise ExchangeBroken(f"rank {late} did not come within {self.config.limit_s:g} s")


def _copy(pairs: Sequence[tuple[Tensor, Tensor]]) -> None:
    for part, theirs in pairs:
        part.copy_(theirs)

"""Emulates links over another transport: a collective ends when it would over them, counted from the last arrival.

Sleeps, so that it costs the other ranks no core. Emulation only slows down: links on which a collective is faster than the
transport itself are refused. Owns when a collective ends; what a transfer takes is in `ddp.core.link_costs`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep

import torch
from torch import Tensor

from ddp.comm.transports.base import MAX, SUM, ExchangeBroken, ShardRange, Transport, Wait
from ddp.core.errors import OutOfResources
from ddp.core.link_costs import collective_s
from ddp.core.links import Links
from ddp.process.clock import core_wait, now

TRIALS, MOST_TRIALS = 8, 128
"""Collectives that are measured for the floor of the transport, which is the least of them; and where that would refuse the
links, as on a busy machine."""
PROBED = 1 << 18
"""Elements of a larger one: 2 MiB."""
SPIN_S = 0.0003
"""A sleep that is to end on time ends so much earlier; the rest is spent in yielding the core."""


def sleep_until(due: float) -> None:
    """Return at `due`, or at once if that is over."""
    while (left := due - now()) > 0:
        if left > 2 * SPIN_S:
            sleep(left - SPIN_S)
        else:
            os.sched_yield()


def _as_fast() -> float:
    return 1.0


def _unmeasured(ratio: float, queued: float) -> None:
    pass


class EmulatedTransport:
    """Another transport, as slow as links.

    `slowness`: how many times as long as its link needs a transfer of this rank takes now. `sent` is called with what the
    rank measures of that (0: nothing), without what it waited for a core, and with what its thread waited for one."""

    def __init__(
        self,
        inner: Transport,
        links: Links,
        slowness: Callable[[], float] = _as_fast,
        sent: Callable[[float, float], None] = _unmeasured,
    ) -> None:
        self._inner, self._links = inner, links
        self._slowness, self._sent = slowness, sent
        self.name, self.config = inner.name, inner.config
        self._members: tuple[int, ...] = ()
        self._number = 0
        self._probed = inner.config.life > 0  # the others have measured it, and would not take part

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate as the other transport does."""
        return self._inner.empty(name, elements, dtype)

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group, and measure it, the first. Raises OutOfResources for links that are faster than the transport."""
        self._members = tuple(members)
        self._number = generation << 32
        self._inner.join(members, generation, lives)
        if not self._probed:
            with suppress(ExchangeBroken):  # found out by the first collective
                self._probe()

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce, and return when it would be done over the links. Raises ExchangeBroken."""
        self._emulated(lambda: self._inner.all_reduce(tensor, op), tensor.nbytes, 1.0)

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum what each member owns: the first half of an all-reduce. Raises ExchangeBroken."""
        self._emulated(lambda: self._inner.reduce_scatter(tensor, runs), tensor.nbytes, 0.5)

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Begin to gather; what is returned waits as long as the second half of an all-reduce takes from now on."""
        due = now() + self._next(out.nbytes, 0.5) * self._slowness()
        wait = self._inner.all_gather(out, source, runs)

        def arrive() -> None:
            wait()
            sleep_until(due)

        return arrive

    def fence(self) -> None:
        """Wait for all, as long as that takes without links: it moves nothing."""
        self._inner.fence()

    def leave(self) -> None:
        """Break up the group."""
        self._inner.leave()

    def close(self) -> None:
        """Go."""
        self._inner.close()

    def _next(self, size: int, part: float) -> float:
        self._number += 1
        return collective_s(self._links, self._members, size, self._number, part)

    def _emulated(self, act: Callable[[], None], size: int, part: float) -> None:
        own, queued = self._slowness(), core_wait()
        arrival = torch.tensor([now(), own], dtype=torch.float64, device=self.config.device)
        self._inner.all_reduce(arrival, MAX)  # before it, so that a break leaves everything as it was
        act()
        (last, slowest), needed = arrival.tolist(), self._next(size, part)
        ratio = self._send(last, needed, own)
        sleep_until(last + needed * slowest)  # it is over when the slowest has sent
        self._sent(ratio, core_wait() - queued)

    def _send(self, arrival: float, needed: float, slowness: float) -> float:
        """Wait until what this rank sends from `arrival` on is sent; return how many times as long as needed that took: 0
        where it is over already."""
        due, queued = arrival + needed * slowness, core_wait()
        if now() >= due:
            return 0.0
        sleep_until(due)
        return (now() - arrival - (core_wait() - queued)) / needed

    def _probe(self) -> None:
        """Measure the transport, all ranks together. Raises OutOfResources, ExchangeBroken."""
        self._probed = True
        meeting = 0.0
        for elements in (1, PROBED):
            probe = torch.zeros(elements, dtype=torch.float64, device=self.config.device)
            planned = collective_s(self._links, self._members, probe.nbytes)
            least = min(self._floor(probe) for _ in range(TRIALS))
            for _ in range(MOST_TRIALS - TRIALS):
                if not 0 < planned < least + (meeting or least):
                    break
                least = min(least, self._floor(probe))
            meeting = meeting or least  # before each collective, to know when the last rank has arrived
            floor = least + meeting
            if 0 < planned < floor:
                raise OutOfResources(
                    f"cluster.links={self._links.words}: {probe.nbytes} bytes would take {planned * 1e6:.0f} us, and this "
                    f"transport ({self.name}) takes {floor * 1e6:.0f} us: such links can be predicted only (bench predict)"
                )

    def _floor(self, probe: Tensor) -> float:
        """Return the seconds of an all-reduce after a meeting of all; the least of the ranks' figures, the same on all."""
        self._inner.all_reduce(probe[:1])
        began = now()
        self._inner.all_reduce(probe)
        taken = torch.tensor([now() - began], dtype=torch.float64, device=self.config.device)
        self._inner.all_reduce(taken, MAX)
        return float(taken)

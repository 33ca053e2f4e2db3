"""Emulates links over another transport: a collective ends when it would end over the links, counted from the last arrival.

It sleeps, so it takes no core from other ranks. It can only slow down: links on which a collective is faster than the
transport itself are refused. Owns when a collective ends; `ddp.core.network.link_costs` has the time of a transfer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep

import torch
from torch import Tensor

from ddp.comm.transports.base import MAX, SUM, ExchangeBroken, ShardRange, Transport, Wait
from ddp.core.errors import LinksRefused
from ddp.core.network.link_costs import collective_s, used
from ddp.core.network.links import Links
from ddp.process.clock import core_wait, now

TRIALS, MOST_TRIALS = 8, 128
"""Number of collectives of which the fastest is the transport's own time; the larger number is tried before links are
refused, because the machine may be busy."""
PROBED = 1 << 18
"""Elements of the larger probe: 2 MiB."""
SPIN_S = 0.0003
"""A sleep ends this many seconds early, so that it is on time; the rest is spent yielding the core."""


def sleep_until(due: float) -> None:
    """Return at time `due`, or at once if that has passed."""
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
    """Another transport, slowed down to the speed of links.

    `slowness`: returns the present factor on this rank's transfer time. `sent` is called with the measured factor (0: not
    measured), without waiting for a core, and with the seconds that the thread waited for a core."""

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
        self._free = 0.0
        """When the links have carried all that was started."""
        self._probed = [0.0] * len(links.rules)
        """By rule: 1 if a group whose collectives use it was measured."""

    def empty(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate as the other transport does."""
        return self._inner.empty(name, elements, dtype)

    def join(self, members: Sequence[int], generation: int, lives: Sequence[int] = ()) -> None:
        """Form the group; measure it if it is the first that uses a link. Raises LinksRefused for links that are faster than
        the transport."""
        self._members = tuple(members)
        self._number = generation << 32
        self._free = 0.0
        self._inner.join(members, generation, lives)
        if rules := used(self._links, self._members):
            with suppress(ExchangeBroken):  # the first collective will raise it again
                self._probe(rules)

    def all_reduce(self, tensor: Tensor, op: str = SUM) -> None:
        """Reduce, and return when the links would be done. Raises ExchangeBroken."""
        self._emulated(lambda: self._inner.all_reduce(tensor, op), tensor.nbytes, 1.0)

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum what each member owns, which takes the time of half an all-reduce. Raises ExchangeBroken."""
        self._emulated(lambda: self._inner.reduce_scatter(tensor, runs), tensor.nbytes, 0.5)

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Start to gather. The returned function waits for the end, which takes the time of half an all-reduce, from now
        or from the end of what was started before."""
        due = self._free = max(now(), self._free) + self._next(out.nbytes, 0.5) * self._slowness()
        wait = self._inner.all_gather(out, source, runs)

        def arrive() -> None:
            wait()
            sleep_until(due)

        return arrive

    def fence(self) -> None:
        """Wait for all ranks, without emulation: a fence moves no data."""
        self._inner.fence()

    def leave(self) -> None:
        """Break up the group."""
        self._inner.leave()

    def close(self) -> None:
        """Close the other transport."""
        self._inner.close()

    def _next(self, size: int, part: float) -> float:
        self._number += 1
        return collective_s(self._links, self._members, size, self._number, part)

    def _emulated(self, act: Callable[[], None], size: int, part: float) -> None:
        own, queued = self._slowness(), core_wait()
        arrival = torch.tensor([max(now(), self._free), own], dtype=torch.float64, device=self.config.device)
        self._inner.all_reduce(arrival, MAX)  # before the reduction, so that a break leaves the tensor unchanged
        act()
        (last, slowest), needed = arrival.tolist(), self._next(size, part)
        ratio = self._send(last, needed, own)
        self._free = last + needed * slowest  # the collective ends when the slowest rank has sent
        sleep_until(self._free)
        self._sent(ratio, core_wait() - queued)

    def _send(self, arrival: float, needed: float, slowness: float) -> float:
        """Wait until this rank's transfer, begun at `arrival`, has ended. Return its duration as a multiple of `needed`; 0
        if it has ended already."""
        due, queued = arrival + needed * slowness, core_wait()
        if now() >= due:
            return 0.0
        sleep_until(due)
        return (now() - arrival - (core_wait() - queued)) / needed

    def _probe(self, rules: set[int]) -> None:
        """Measure the transport with all ranks, unless one of them knows that a group with these rules was measured. Raises
        LinksRefused, ExchangeBroken."""
        known = torch.tensor(self._probed, dtype=torch.float64, device=self.config.device)
        self._inner.all_reduce(known, MAX)  # a restarted rank knows nothing
        self._probed = known.tolist()
        if all(self._probed[rule] for rule in rules):
            return
        self._probed = [float(known or rule in rules) for rule, known in enumerate(self._probed)]
        meeting = 0.0
        for elements in (1, PROBED):
            probe = torch.zeros(elements, dtype=torch.float64, device=self.config.device)
            planned = collective_s(self._links, self._members, probe.nbytes, None)
            least = min(self._floor(probe) for _ in range(TRIALS))
            for _ in range(MOST_TRIALS - TRIALS):
                if not 0 < planned < least + (meeting or least):
                    break
                least = min(least, self._floor(probe))
            meeting = meeting or least  # before each collective, to know when the last rank has arrived
            floor = least + meeting
            if 0 < planned < floor:
                raise LinksRefused(
                    f"cluster.links={self._links.words}: {probe.nbytes} bytes would take {planned * 1e6:.0f} us, and this "
                    f"transport ({self.name}) takes {floor * 1e6:.0f} us: such links can be predicted only (bench predict)"
                )

    def _floor(self, probe: Tensor) -> float:
        """Return the seconds of an all-reduce after all ranks have met: the maximum over the ranks, so it is the same on
        all."""
        self._inner.all_reduce(probe[:1])
        began = now()
        self._inner.all_reduce(probe)
        taken = torch.tensor([now() - began], dtype=torch.float64, device=self.config.device)
        self._inner.all_reduce(taken, MAX)
        return float(taken)

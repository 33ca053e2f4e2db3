"""A rank's collectives: through a transport, measured, with signs of life. Knows nothing of what is reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ddp.comm.background import Courier
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import SUM, ExchangeBroken, ShardRange, Transport, Wait
from ddp.core.commands import Join
from ddp.process.clock import now
from ddp.process.meter import Meter

T = TypeVar("T")
SEQ = 1_000_000_000
"""Collectives of a group are numbered from a multiple of this."""


class Collectives:
    """The group that a rank is in."""

    def __init__(self, transport: Transport, meter: Meter, heart: Heartbeat) -> None:
        self.transport, self._meter, self._heart, self._seq = transport, meter, heart, 0
        self.members: tuple[int, ...] = ()
        self._under_way: list[tuple[int, int, Callable[[], tuple[float, float]]]] = []
        self._courier: Courier | None = None

    @property
    def generation(self) -> int:
        """The number of the group that the rank is in, or was in last."""
        return self._seq // SEQ

    @property
    def rank(self) -> int:
        """This rank."""
        return self.transport.config.rank

    @property
    def device(self) -> torch.device:
        """Where what is reduced lies."""
        return self.transport.config.device

    def _stop(self) -> None:
        """What is still started belongs to a group that is left."""
        self._under_way.clear()
        if self._courier is not None:
            self._courier.stop()
            self._courier = None

    def close(self) -> None:
        """Leave the group, and end the thread that carried out what was started."""
        self._stop()
        self.transport.close()

    def join(self, order: Join) -> None:
        """Leave the group that there is, and meet the members of the new one."""
        began = now()
        self.members = order.members
        self._stop()
        self._seq = order.generation * SEQ  # members may have left the older group at different collectives
        with self._heart:
            self.transport.join(order.members, order.generation, order.lives)
        self._meter.add("join", began)

    def all_reduce(self, tensors: Sequence[Tensor], op: str = SUM) -> tuple[float, int]:
        """Reduce tensors in place; returns seconds and bytes. Raises ExchangeBroken, having left the group."""
        size = sum(tensor.nbytes for tensor in tensors)
        self._drain()
        if not size:
            return 0.0, 0

        def act() -> None:
            for tensor in filter(Tensor.numel, tensors):
                self.transport.all_reduce(tensor, op)

        return self._measured(act, size), size

    def start(self, tensor: Tensor) -> None:
        """Begin to sum a tensor in place beside what this thread does; the next `all_reduce` waits for it."""
        if not tensor.numel():
            return
        self._seq += 1
        if hasattr(self.transport, "start"):
            result = self._begun(tensor)
        else:
            self._courier = self._courier or Courier()
            result = self._courier.submit(partial(self._sum, tensor)).result
        self._under_way.append((self._seq, tensor.nbytes, result))

    def _begun(self, tensor: Tensor) -> Callable[[], tuple[float, float]]:
        began = now()
        try:
            wait = self.transport.start(tensor)  # type: ignore[attr-defined]  # not every transport has it
        except ExchangeBroken as error:
            broken = error  # found out where the others are waited for

            def wait() -> None:
                raise broken

        def result() -> tuple[float, float]:
            wait()
            return began, now()

        return result

    def _sum(self, tensor: Tensor) -> tuple[float, float]:
        """Returns begin and end."""
        began = now()
        self.transport.all_reduce(tensor)
        return began, now()

    def _drain(self) -> None:
        """Wait for what was started. Raises ExchangeBroken, having left the group."""
        since, under_way, self._under_way = now(), self._under_way, []
        for seq, size, result in under_way:
            began, ended = self._guarded(result, since)
            self._meter.add_hidden(began, ended, seq, size)
        if under_way:
            self._meter.add("wait", since)

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum, for each member, what it owns of a tensor. Raises ExchangeBroken, having left the group."""
        self._measured(lambda: self.transport.reduce_scatter(tensor, runs), tensor.nbytes)

    def fence(self) -> None:
        """Wait until what was written before can be gathered. Raises ExchangeBroken, having left the group."""
        self._measured(self.transport.fence, 0)

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Begin to fill `out` with what others own; the time that is measured is what it takes here. Raises
        ExchangeBroken, having left the group; what is returned does, too."""
        began = now()
        wait = self._guarded(lambda: self.transport.all_gather(out, source, runs), began)
        self._meter.add("copy", began, size=out.nbytes)

        def end() -> None:
            began = now()
            self._guarded(wait, began)
            self._meter.add("copy", began)

        return end

    def _measured(self, act: Callable[[], None], size: int) -> float:
        began = now()
        self._guarded(act, began)
        self._seq += 1
        return self._meter.add("exchange", began, self._seq, size) - began

    def _guarded(self, act: Callable[[], T], began: float) -> T:
        try:
            with self._heart:
                return act()
        except ExchangeBroken:
            self.transport.leave()
            self._meter.add("wait", began)
            raise

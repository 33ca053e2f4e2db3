"""A rank's collectives through a transport, with measured times and a heartbeat. Knows nothing of what is reduced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from ddp.comm.background import Courier
from ddp.comm.heartbeat import Heartbeat
from ddp.comm.transports.base import SUM, ExchangeBroken, ShardRange, Transport, Wait
from ddp.core.messages.commands import Join
from ddp.process.clock import now
from ddp.process.meter import Meter

T = TypeVar("T")
SEQ = 1_000_000_000
"""The collectives of a group are numbered from generation * SEQ on."""


class Collectives:
    """The collectives of a rank in its present group."""

    def __init__(self, transport: Transport, meter: Meter, heart: Heartbeat) -> None:
        self.transport, self._meter, self._heart, self._seq = transport, meter, heart, 0
        self.members: tuple[int, ...] = ()
        self._under_way: list[tuple[int, int, Callable[[], tuple[float, float]]]] = []
        self._courier: Courier | None = None

    @property
    def generation(self) -> int:
        """Number of the rank's present or last group."""
        return self._seq // SEQ

    @property
    def rank(self) -> int:
        """Return this rank."""
        return self.transport.config.rank

    @property
    def device(self) -> torch.device:
        """Device of the tensors that are reduced."""
        return self.transport.config.device

    def _stop(self) -> None:
        """Forget started collectives: they belong to a group that this rank has left."""
        self._under_way.clear()
        if self._courier is not None:
            self._courier.stop()
            self._courier = None

    def close(self) -> None:
        """Leave the group and end the background thread."""
        self._stop()
        self.transport.close()

    def join(self, order: Join) -> None:
        """Leave the present group and form the new one with its members."""
        began = now()
        self.members = order.members
        self._stop()
        self._seq = order.generation * SEQ  # members may have left the older group at different collectives
        with self._heart:
            self.transport.join(order.members, order.generation, order.lives)
        self._meter.add("join", began)

    def all_reduce(self, tensors: Sequence[Tensor], op: str = SUM) -> tuple[float, int]:
        """Reduce tensors in place. Returns (seconds, bytes). On ExchangeBroken, the rank has left the group."""
        size = sum(tensor.nbytes for tensor in tensors)
        self._drain()
        if not size:
            return 0.0, 0

        def act() -> None:
            for tensor in filter(Tensor.numel, tensors):
                self.transport.all_reduce(tensor, op)

        return self.measured(act, size), size

    def start(self, tensor: Tensor) -> None:
        """Start summing a tensor in place in the background. The next `all_reduce` waits for it."""
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
            wait = self.transport.start(tensor)  # type: ignore[attr-defined]  # only some transports have it
        except ExchangeBroken as error:
            broken = error  # raised when the started collectives are awaited

            def wait() -> None:
                raise broken

        def result() -> tuple[float, float]:
            wait()
            return began, now()

        return result

    def _sum(self, tensor: Tensor) -> tuple[float, float]:
        """Sum a tensor. Returns the times of begin and end."""
        began = now()
        self.transport.all_reduce(tensor)
        return began, now()

    def _drain(self) -> None:
        """Wait for the started collectives. On ExchangeBroken, the rank has left the group."""
        since, under_way, self._under_way = now(), self._under_way, []
        for seq, size, result in under_way:
            began, ended = self._guarded(result, since)
            self._meter.add_hidden(began, ended, seq, size)
        if under_way:  # the number says that it was a wait for collectives
            self._meter.add("wait", since, under_way[-1][0])

    def reduce_scatter(self, tensor: Tensor, runs: Sequence[ShardRange]) -> None:
        """Sum a tensor; each member gets the ranges that it owns. On ExchangeBroken, the rank has left the group."""
        self.measured(lambda: self.transport.reduce_scatter(tensor, runs), tensor.nbytes)

    def fence(self) -> None:
        """Wait until earlier writes of all members can be gathered. On ExchangeBroken, the rank has left the group."""
        self.measured(self.transport.fence, 0)

    def all_gather(self, out: Tensor, source: Tensor, runs: Sequence[ShardRange]) -> Wait:
        """Start to fill `out` with ranges from their owners. Return a function that waits for the end. Only this rank's own
        time is measured. On ExchangeBroken, from this call or from the wait, the rank has left the group."""
        began = now()
        wait = self._guarded(lambda: self.transport.all_gather(out, source, runs), began)
        self._meter.add("copy", began, size=out.nbytes)

        def end() -> None:
            began = now()
            self._guarded(wait, began)
            self._meter.add("copy", began)

        return end

    def measured(self, act: Callable[[], None], size: int) -> float:
        """Run a collective of `size` bytes. Returns seconds. On ExchangeBroken, the rank has left the group."""
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

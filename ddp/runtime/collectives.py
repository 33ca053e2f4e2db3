"""A rank's collectives: through a transport, measured, with signs of life. Knows nothing of what is reduced."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ddp.core.commands import Join
from ddp.runtime.clock import now
from ddp.runtime.heart import Heart
from ddp.runtime.meter import Meter
from ddp.runtime.transports.base import SUM, ExchangeBroken, Transport

SEQ = 1_000_000_000
"""Collectives of a group are numbered from a multiple of this."""


class Collectives:
    """The group that a rank is in."""

    def __init__(self, transport: Transport, meter: Meter, heart: Heart) -> None:
        self.transport, self._meter, self._heart, self._seq = transport, meter, heart, 0
        self.members: tuple[int, ...] = ()

    def join(self, order: Join) -> None:
        """Leave the group that there is, and meet the members of the new one."""
        began = now()
        self.members = order.members
        self._seq = order.generation * SEQ  # members may have left the older group at different collectives
        with self._heart:
            self.transport.join(order.members, order.generation)
        self._meter.add("join", began)

    def all_reduce(self, tensors: Sequence[Tensor], op: str = SUM) -> tuple[float, int]:
        """Reduce tensors in place; returns seconds and bytes. Raises ExchangeBroken, having left the group."""
        began, size = now(), 0
        try:
            with self._heart:
                for tensor in tensors:
                    self.transport.all_reduce(tensor, op)
                    size += tensor.nbytes
        except ExchangeBroken:
            self.transport.leave()
            self._meter.add("wait", began)
            raise
        if not size:
            return 0.0, 0
        self._seq += 1
        return self._meter.add("exchange", began, self._seq, size) - began, size

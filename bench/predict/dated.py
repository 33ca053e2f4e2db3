"""Simulates ranks that date their reports of steps themselves, as real ranks do."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace

from ddp.core.coordinator import Output
from ddp.core.messages.events import Event, Progress, RankEvent
from ddp.sim import Simulation


class DatedSimulation(Simulation):
    """Simulates ranks, and records a report of steps with the time at which its rank sent it. Over links with jitter, two
    reports may arrive closer together than the steps between them took. Not for averages inside steps: there the core
    dates what was trained by the report's arrival."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._sent = defaultdict[int, deque[float]](deque)
        """Rank -> when it sent the reports that have not arrived; they arrive in this order."""

    def _send(self, event: RankEvent) -> None:
        if isinstance(event, Progress):
            self._sent[event.rank].append(self.now)
        super()._send(event)

    def _record(self, record: Event | Output) -> None:
        if isinstance(record, Progress):
            record = replace(record, at=self._sent[record.rank].popleft())
        super()._record(record)

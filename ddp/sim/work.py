"""The interface for training for real in virtual time. Knows no tensors; implementations do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ddp.core.messages.commands import Reduce
from ddp.core.messages.events import RankEvent
from ddp.core.worker import Action, Step


class RankWork(Protocol):
    """The real training of simulated ranks. It returns events, whose times the simulation fills in."""

    def ready(self, rank: int) -> Sequence[RankEvent]:
        """Return the rank's events at its start."""
        ...

    def begin(self, rank: int, step: Step) -> None:
        """Note that the rank begins a step on its own, computed with its replica as of now."""
        ...

    def act(self, rank: int, action: Action) -> Sequence[RankEvent]:
        """Do what the rank does alone. For a step: complete the first one that has begun."""
        ...

    def together(self, actions: Mapping[int, Action]) -> Mapping[int, Sequence[RankEvent]]:
        """Do what ranks do together, in a collective."""
        ...

    def report(self, rank: int) -> Sequence[RankEvent]:
        """Report what the rank has trained since its last report."""
        ...

    def reduce(self, order: Reduce) -> int:
        """Average snapshots; return the bytes read and written."""
        ...

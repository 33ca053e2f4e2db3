"""What simulated ranks really do, where something is trained in virtual time. Knows no tensors: whoever does it does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from ddp.core.commands import Reduce
from ddp.core.events import RankEvent
from ddp.core.worker import Action, Step


class RankWork(Protocol):
    """The ranks' work. What it gives are the events of ranks, whose times are the simulation's."""

    def ready(self, rank: int) -> Sequence[RankEvent]:
        """Return how the rank reports that it is there."""
        ...

    def begin(self, rank: int, step: Step) -> None:
        """Note that a step begins that the rank does alone: what it computes with is the replica of now."""
        ...

    def act(self, rank: int, action: Action) -> Sequence[RankEvent]:
        """Do what the rank does alone; a step: end the first one that has begun."""
        ...

    def together(self, actions: Mapping[int, Action]) -> Mapping[int, Sequence[RankEvent]]:
        """Do what ranks do together, in a collective."""
        ...

    def report(self, rank: int) -> Sequence[RankEvent]:
        """Report what the rank has trained since its last report."""
        ...

    def reduce(self, order: Reduce) -> int:
        """Average snapshots; return the bytes that were read and written."""
        ...

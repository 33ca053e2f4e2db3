"""The cohort: everything that the coordinator knows of its ranks, as one frozen value.

Owns the bookkeeping of what each rank holds, has trained and owes. Decides nothing: `dispatch` and `rounds` do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddp.core.ledger import Ledger
from ddp.core.spans import Chunk, Spans, union
from ddp.core.world import World

Trained = tuple[tuple[int, Spans], ...]
"""Spans by epoch."""


@dataclass(frozen=True, slots=True)
class RankState:
    """One rank, as the coordinator sees it."""

    alive: bool = True
    digest: str = ""
    """sha256 of its initial parameters; empty until it is ready."""
    finished: bool = False
    last_seen: float = 0.0
    queue: tuple[Chunk, ...] = ()
    """Granted and not reported as trained."""
    trained: Trained = ()
    """Reported as trained since its last contribution to an average."""
    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0
    """The three since its last contribution."""

    @property
    def queued(self) -> int:
        """Steps granted and not reported."""
        return sum(chunk.steps for chunk in self.queue)

    def contribute(self) -> RankState:
        """After its training has gone into an average."""
        return replace(self, trained=(), steps=0, samples=0, busy_s=0.0)


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a rank brought into a round."""

    rank: int
    trained: Trained
    steps: int
    samples: int
    busy_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """One averaging of replicas, from the order to the last acknowledgement."""

    index: int
    members: tuple[int, ...]
    stage: str
    """`collect` (collective or snapshots under way), `reduce` (snapshots being averaged), `apply` (update under way)."""
    waiting: tuple[int, ...]
    """Ranks that owe an answer in this stage."""
    closes: tuple[int, ...]
    """Epochs that are complete with this round."""
    contributions: tuple[Contribution, ...] = ()
    seconds: tuple[tuple[int, float], ...] = ()
    """(rank, from entering the collective to its end); of a non-blocking backend (-1, averaging the snapshots)."""
    divergence: tuple[tuple[int, float], ...] = ()
    """(rank, how far it was from the average)."""
    starved: tuple[int, ...] = ()
    """Ranks that stood still for lack of work when the round opened."""
    failed: tuple[int, ...] = ()
    """Ranks on which the collective broke."""
    error: str = ""
    """What the last of them said."""
    since: float = 0.0
    """When this stage began."""

    def without(self, rank: int) -> Round:
        """`rank` has answered, or never will."""
        return replace(self, waiting=tuple(r for r in self.waiting if r != rank))


@dataclass(frozen=True, slots=True)
class Cohort:
    """All ranks and the work of the epochs in progress."""

    world: World
    ranks: tuple[RankState, ...]
    ledgers: tuple[Ledger, ...] = ()
    """Epochs begun and not complete, oldest first."""
    begun: int = 0
    """Epochs begun."""
    round: Round | None = None
    rounds: int = 0
    """Rounds opened."""
    window: tuple[int, ...] = ()
    """Steps of each rank in the window in progress: the plan's counts, fitted to the epoch."""
    evaluating: tuple[tuple[int, int], ...] = ()
    """(epoch, rank) that owe an evaluation."""
    broken: tuple[int, ...] = ()
    """Ranks whose exchange of gradients inside a step broke."""
    stopping: bool = False
    samples: int = 0
    """Samples trained by all, as reported."""

    @property
    def live(self) -> tuple[int, ...]:
        """Ranks that are not lost."""
        return tuple(r for r, state in enumerate(self.ranks) if state.alive)

    @property
    def ready(self) -> bool:
        """Every live rank has its model, data and transport."""
        return all(self.ranks[r].digest for r in self.live)

    def owes(self, rank: int) -> bool:
        """Whether the rank has something to report, so that its silence means something."""
        state = self.ranks[rank]
        if not state.alive or state.finished:
            return False
        waited = self.round is not None and rank in self.round.waiting
        evaluates = any(r == rank for _, r in self.evaluating)
        return bool(state.queue) or not state.digest or waited or evaluates or self.stopping

    def with_rank(self, rank: int, state: RankState) -> Cohort:
        """The cohort with one rank's state replaced."""
        return replace(self, ranks=(*self.ranks[:rank], state, *self.ranks[rank + 1 :]))

    def with_ledger(self, ledger: Ledger) -> Cohort:
        """The cohort with one epoch's ledger replaced."""
        return replace(self, ledgers=tuple(ledger if old.epoch == ledger.epoch else old for old in self.ledgers))

    def ledger(self, epoch: int) -> Ledger:
        """The ledger of an epoch in progress."""
        return next(ledger for ledger in self.ledgers if ledger.epoch == epoch)

    def fully_trained(self, epoch: int) -> bool:
        """No sample of `epoch` is free or being trained; all are trained, in the model or on their way into it."""
        pending = any(chunk.epoch == epoch for rank in self.ranks for chunk in rank.queue)
        return not pending and self.ledger(epoch).free == 0


def add(trained: Trained, epoch: int, spans: Spans) -> Trained:
    """`trained` with more spans of an epoch."""
    if not spans:
        return trained
    by_epoch = dict(trained)
    by_epoch[epoch] = union(by_epoch.get(epoch, ()), spans)
    return tuple(sorted(by_epoch.items()))

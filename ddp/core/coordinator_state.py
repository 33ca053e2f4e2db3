"""Everything that the coordinator knows of its ranks, as one frozen value.

Owns the bookkeeping of what each rank was granted, has trained and owes. Decides nothing: `dispatch` and `rounds` do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from ddp.core.commands import CoordinatorCheckpoint
from ddp.core.errors import ProtocolError
from ddp.core.event_parts import Files
from ddp.core.events import Averaged, AverageFailed, Reduced, Shared, Snapshot
from ddp.core.ledger import Ledger
from ddp.core.phases import Phase
from ddp.core.spans import Chunk, Spans, measure, union
from ddp.core.values import replace
from ddp.core.world import World

Trained = tuple[tuple[int, Spans], ...]
"""Spans by epoch."""


@dataclass(frozen=True)
class RankState:
    """One rank, as the coordinator sees it."""

    rank: int = -1
    alive: bool = True
    digest: str = ""
    """sha256 of its initial parameters; empty until it is ready."""
    finished: bool = False
    last_seen: float = 0.0
    reported: float = 0.0
    """When it last reported work: trained, averaged, evaluated."""
    queue: tuple[Chunk, ...] = ()
    """Granted and not reported as trained."""
    course: tuple[tuple[float, float], ...] = ()
    """Of each grant in `queue` that is not shared: the samples that all have seen when its next step begins, and those that
    are trained for each of its own, as the rank knows them."""
    trained: Trained = ()
    """Reported as trained since its last contribution to an average."""
    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0
    loss_sum: float = 0.0
    """The four since its last contribution; inside steps: of the grant in progress."""
    lr: float = 0.0
    """Learning rate of the last step that it reported."""
    before: int = 0
    """Steps of `queue` that come before the order to average."""
    after: int = -1
    """The last round that it brought its training into."""

    @property
    def queued(self) -> int:
        """The steps granted and not reported."""
        return sum([chunk.steps for chunk in self.queue])

    def contribute(self) -> RankState:
        """Return the rank after its training has gone into an average."""
        return replace(self, trained=(), steps=0, samples=0, busy_s=0.0, loss_sum=0.0, before=0)


@dataclass(frozen=True)
class Owed:
    """A part of an evaluation that a rank owes."""

    epoch: int
    rank: int
    part: int
    parts: int


@dataclass(frozen=True)
class Round:
    """One averaging of replicas, from the order to the last acknowledgement."""

    index: int
    members: tuple[int, ...]
    phase: Phase
    waiting: tuple[int, ...]
    """Ranks that owe an answer in this phase."""
    closes: tuple[int, ...]
    """Epochs that end with this round."""
    contributions: tuple[RankState, ...] = ()
    """Ranks as they were when their training entered the average."""
    reduce_s: float = 0.0
    """Seconds that averaging the snapshots took."""
    answers: tuple[Averaged, ...] = ()
    """Of the ranks that have the average."""
    starved: tuple[int, ...] = ()
    """Ranks that had run short of work when the round opened."""
    failed: tuple[int, ...] = ()
    """Ranks on which the collective broke: they miss what came out of it."""
    since: float = 0.0
    """When this phase began."""

    def gathers(self, rank: int) -> bool:
        """Return whether `rank` has still to enter the collective, or to copy its replica."""
        return self.phase in (Phase.COLLECTIVE, Phase.SNAPSHOTS) and rank in self.waiting

    def expects(self, event: Snapshot | Reduced | Averaged | AverageFailed | Shared) -> bool:
        """Return whether `event` is of this round, and of a rank that owes it."""
        return event.round == self.index and (isinstance(event, Reduced) or event.rank in self.waiting)

    def awaited(self, rank: int) -> tuple[int, ...]:
        """Return who is waited for besides `rank`."""
        return tuple(r for r in self.waiting if r != rank)


@dataclass(frozen=True)
class Mark:
    """When a checkpoint was made."""

    at: float = 0.0
    epochs: int = 0
    averages: int = 0
    """The two complete since the start of the run."""


@dataclass(frozen=True)
class Saving:
    """A checkpoint in the making."""

    index: int
    members: tuple[int, ...]
    waiting: tuple[int, ...]
    """Ranks that owe their part."""
    mark: Mark
    books: CoordinatorCheckpoint | None = None
    """None until the average is there that it is a checkpoint of."""
    files: Files = ()


@dataclass(frozen=True)
class Raised:
    """A rank was lost because it raised, with `round` the next to be opened."""

    rank: int
    origin: str
    round: int
    generation: int


@dataclass(frozen=True)
class CoordinatorState:
    """All ranks and the work of the epochs in progress."""

    world: World
    ranks: tuple[RankState, ...]
    ledgers: tuple[Ledger, ...] = ()
    begun: int = 0
    """Epochs begun and not complete, oldest first; and how many have begun."""
    round: Round | None = None
    rounds: int = 0
    opened: float = 0.0
    """When the first round was opened."""
    window: tuple[int, ...] = ()
    """Steps of each rank in the window in progress: the plan's counts, fitted to the epoch."""
    reserve: int = 0
    """Steps of the window in progress that are no rank's yet."""
    milestones: tuple[int, ...] = ()
    """Steps of the window after which each rank reports how far it is, while some of it is in reserve."""
    evaluating: tuple[Owed, ...] = ()
    orphaned: tuple[Owed, ...] = ()
    """Evaluations owed, and those owed by ranks that are lost."""
    shares: tuple[tuple[int, Chunk], ...] = ()
    """Where gradients are averaged inside the step: the slice of every global batch that each rank was granted."""
    group: tuple[int, ...] = ()
    generation: int = -1
    """Ranks that can meet in a collective; and groups formed, less one."""
    broken: tuple[int, ...] = ()
    cause: str = ""
    """Ranks on which a collective broke since the group was formed, which stand still; and the error of the last of them."""
    retries: int = 0
    """Collectives that broke in a row though no rank was lost."""
    raised: tuple[Raised, ...] = ()
    """Ranks that raised since the others last met."""
    moved: float = 0.0
    """When a rank last said more than that it lives, or was last given an order."""
    savings: tuple[Saving, ...] = ()
    """Checkpoints in the making, oldest first."""
    saves: int = 0
    saved: Mark = Mark()
    """The last checkpoint, or the start."""
    stopping: bool = False
    samples: int = 0
    """Samples trained by all, as reported, less what was lost with a rank."""

    @property
    def current(self) -> Round:
        """The round in flight; there is one."""
        assert self.round is not None
        return self.round

    def with_round(self, **changes: Any) -> CoordinatorState:
        """Return the state with other fields of the round in flight."""
        return replace(self, round=replace(self.current, **changes))

    def heard(self, at: float) -> CoordinatorState:
        """Return the state in which silence of all ranks, standing still and averaging count from `at`."""
        current = None if self.round is None else replace(self.round, since=at)
        ranks = tuple(replace(state, last_seen=at) for state in self.ranks)
        return replace(self, moved=at, round=current, ranks=ranks)

    @property
    def live(self) -> tuple[int, ...]:
        """The ranks that are not lost."""
        return tuple([r for r, state in enumerate(self.ranks) if state.alive])

    @property
    def ready(self) -> bool:
        """Whether every live rank has its model, data and transport."""
        return all(state.digest for state in self.ranks if state.alive)

    @property
    def complete(self) -> int:
        """How many epochs are complete, with those that are with the round in flight."""
        return self.begun - len(self.ledgers) + (0 if self.round is None else len(self.round.closes))

    def owes(self, rank: int) -> bool:
        """Return whether the rank has something to report, so that its silence means something."""
        state = self.ranks[rank]
        if not state.alive or state.finished:
            return False
        waited = self.round is not None and rank in self.round.waiting
        waited |= any(rank in saving.waiting for saving in self.savings)
        works = bool(state.queue) or any(owed.rank == rank for owed in self.evaluating)
        return waited or not state.digest or self.stopping or (works and rank not in self.broken)

    def with_rank(self, rank: int, state: RankState) -> CoordinatorState:
        """Return the state with one rank's replaced."""
        return replace(self, ranks=(*self.ranks[:rank], state, *self.ranks[rank + 1 :]))

    def with_ledger(self, ledger: Ledger) -> CoordinatorState:
        """Return the state with one epoch's ledger replaced."""
        return replace(self, ledgers=tuple(ledger if old.epoch == ledger.epoch else old for old in self.ledgers))

    def ledger(self, epoch: int) -> Ledger:
        """Return the ledger of an epoch in progress."""
        return next(ledger for ledger in self.ledgers if ledger.epoch == epoch)

    def first_epochs(self, done: Callable[[Ledger], bool]) -> tuple[int, ...]:
        """Return the epochs in progress up to the first that is not `done`.

        Epochs end in their order: the evaluation of one is of a model that has seen all of it and of those before.
        """
        return tuple(ledger.epoch for ledger in takewhile(done, self.ledgers))

    def in_work(self, epoch: int) -> int:
        """Return how many steps of `epoch` are granted and not done."""
        return sum(chunk.steps for rank in self.ranks for chunk in rank.queue if chunk.epoch == epoch)

    def fully_trained(self, epoch: int) -> bool:
        """Return whether all samples of `epoch` are trained: in the model, or on their way into it."""
        return self.ledger(epoch).free == 0 and not self.in_work(epoch)


def book(cohort: CoordinatorState, rank: int, steps: int) -> CoordinatorState:
    """Enter that `rank` has done the next `steps` of what it was granted. Raises ProtocolError if it was granted less."""
    state = cohort.ranks[rank]
    if steps > state.queued:
        raise ProtocolError(f"rank {rank} says that it did {steps} steps more, it was granted {state.queue}")
    queue, course, trained, samples, left = list(state.queue), list(state.course), state.trained, 0, steps
    while left:
        chunk = queue.pop(0)
        done = min(left, chunk.steps)
        spans = chunk.spans(done)
        samples += measure(spans)
        begun = course.pop(0) if course else None
        if not cohort.shares:  # else it is known at the end of the grant what went into every replica
            trained = add(trained, chunk.epoch, spans)
        if done < chunk.steps:
            queue.insert(0, chunk.advance(done))
            if begun is not None:
                course.insert(0, (begun[0] + begun[1] * measure(spans), begun[1]))
        left -= done
    state = replace(
        state,
        queue=tuple(queue),
        course=tuple(course),
        trained=trained,
        steps=state.steps + steps,
        samples=state.samples + samples,
        before=max(state.before - steps, 0),
    )
    return replace(cohort.with_rank(rank, state), samples=cohort.samples + samples)


def add(trained: Trained, epoch: int, spans: Spans) -> Trained:
    """Return `trained` with more spans of an epoch."""
    if not spans:
        return trained
    by_epoch = dict(trained)
    by_epoch[epoch] = union(by_epoch.get(epoch, ()), spans)
    return tuple(sorted(by_epoch.items()))

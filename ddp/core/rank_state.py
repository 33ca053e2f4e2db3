"""One rank, as the coordinator sees it: what it was granted, has trained and owes; and how many ranks are in which state.

Owns the books of a single rank. Knows no other rank, no round and no plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from ddp.core.errors import ProtocolError
from ddp.core.spans import Chunk, Spans, measure, union
from ddp.core.values import replace

Trained = tuple[tuple[int, Spans], ...]
"""Spans by epoch."""


class Coming(StrEnum):
    """How far a lost rank is on its way back."""

    NOT = ""
    STARTING = "starting"
    READY = "ready"
    """It has all but the others' state."""


@dataclass(frozen=True)
class Owed:
    """A part of an evaluation that a rank owes."""

    epoch: int
    rank: int
    part: int
    parts: int


@dataclass(frozen=True)
class RankState:
    """One rank, as the coordinator sees it."""

    rank: int = -1
    alive: bool = True
    life: int = 0
    """How often it was started again."""
    coming: Coming = Coming.NOT
    """Of a rank that is lost: how far it is on its way back."""
    failures: int = 0
    """Starts in a row after which it did not come back."""
    digest: str = ""
    """sha256 of its initial parameters; empty until it is ready."""
    finished: bool = False
    last_seen: float = 0.0
    reported: float = 0.0
    """When it last reported work: trained, averaged, evaluated."""
    queue: tuple[Chunk, ...] = ()
    """Granted and not reported as trained."""
    queued: int = 0
    """The steps of these."""
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
    owed: tuple[Owed, ...] = ()
    """Parts of evaluations that it owes."""

    def contribute(self) -> RankState:
        """Return the rank after its training has gone into an average."""
        return replace(self, trained=(), steps=0, samples=0, busy_s=0.0, loss_sum=0.0, before=0)

    def train(self, steps: int, shared: bool) -> tuple[RankState, int]:
        """Return the rank after the next `steps` of what it was granted, and the samples in them. Raises ProtocolError if it
        was granted less. Of a `shared` grant it is known at its end what went into every replica."""
        if steps > self.queued:
            raise ProtocolError(f"rank {self.rank} says that it did {steps} steps more, it was granted {self.queue}")
        queue, course, trained, samples, left = list(self.queue), list(self.course), self.trained, 0, steps
        while left:
            chunk = queue.pop(0)
            done = min(left, chunk.steps)
            spans = chunk.spans(done)
            trains = measure(spans)
            samples += trains
            begun = course.pop(0) if course else None
            if not shared:
                trained = add(trained, chunk.epoch, spans)
            if done < chunk.steps:
                queue.insert(0, chunk.advance(done))
                if begun is not None:
                    course.insert(0, (begun[0] + begun[1] * trains, begun[1]))
            left -= done
        state = replace(
            self,
            queue=tuple(queue),
            queued=self.queued - steps,
            course=tuple(course),
            trained=trained,
            steps=self.steps + steps,
            samples=self.samples + samples,
            before=max(self.before - steps, 0),
        )
        return state, samples


class Totals(NamedTuple):
    """How many ranks that are not lost are in which state."""

    unready: int = 0
    unfinished: int = 0
    ordered: int = 0
    """With work to do before an order to average."""
    trained: int = 0
    """With steps since their last contribution."""
    working: int = 0
    """With work to do."""
    short: int = 0
    """With work to do, and not done with their steps of the window."""
    idle: int = 0
    """Without work, but with a part in the window."""
    behind: int = 0
    """Not done with their milestone."""
    owed: int = 0
    """Parts of evaluations."""

    def moved(self, old: tuple[int, ...], new: tuple[int, ...]) -> Totals:
        """Return the totals after a rank, which counted as `old`, counts as `new`."""
        return Totals(*[n - a + b for n, a, b in zip(self, old, new, strict=True)])


NONE = Totals()


def count(state: RankState, part: int, milestone: int) -> tuple[int, ...]:
    """Return what a rank adds to `Totals`, of whose window it does `part` steps."""
    if not state.alive:
        return NONE
    steps, owed = state.steps, len(state.owed)
    marks = (not state.digest, not state.finished, state.before > 0, steps > 0)
    if state.queue:
        return (*marks, 1, steps < part, 0, steps < milestone, owed)
    return (*marks, 0, 0, part > 0, steps < milestone, owed)


def add(trained: Trained, epoch: int, spans: Spans) -> Trained:
    """Return `trained` with more spans of an epoch."""
    if not spans:
        return trained
    by_epoch = dict(trained)
    by_epoch[epoch] = union(by_epoch.get(epoch, ()), spans)
    return tuple(sorted(by_epoch.items()))

"""One rank, as the coordinator sees it: what it was granted, has trained and owes; and how many ranks are in which state.

Owns the counts of a single rank. Knows no other rank, no round and no plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from ddp.core.errors import ProtocolError
from ddp.core.spans import Chunk, Spans, measure, union
from ddp.core.values import replace

EpochSpans = tuple[tuple[int, Spans], ...]
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


class LastHeard(NamedTuple):
    """When a rank was heard last. Apart from its state, as every message changes it."""

    seen: float = 0.0
    """Its silence counts from then: a sign of life, or an order to it."""
    reported: float = 0.0
    """When it last reported work: trained, averaged, evaluated."""


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
    queue: tuple[Chunk, ...] = ()
    """Granted and not reported as trained."""
    queued: int = 0
    """The steps of these."""
    course: tuple[tuple[float, float], ...] = ()
    """Of each grant in `queue` that is not shared: the samples that all have seen when its next step begins, and those that
    are trained for each of its own, as the rank knows them."""
    trained: EpochSpans = ()
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

    def contribute(self, after: int | None = None) -> RankState:
        """Return the rank after its training has gone into an average, of round `after` if that is known."""
        index = self.after if after is None else after
        return replace(self, trained=(), steps=0, samples=0, busy_s=0.0, loss_sum=0.0, before=0, after=index)

    def room(self, most: int, ordered: bool) -> int:
        """Return how many steps may still be granted where a window allows `most`. `ordered`: its steps so far are of the
        window before, as it has been ordered to average them."""
        return most - (0 if ordered else self.steps) - self.queued + self.before

    def train(self, steps: int, shared: bool, **others: Any) -> tuple[RankState, int]:
        """Return the rank after the next `steps` of what it was granted, with `others` of its fields, and the samples in
        these steps. Raises ProtocolError if it was granted less. Of a `shared` grant it is known at its end what went into
        every replica."""
        if steps > self.queued:
            raise ProtocolError(f"rank {self.rank} says that it did {steps} steps more, it was granted {self.queue}")
        if steps and steps <= (left := self.queue[0].steps):  # as mostly
            return self._train(steps, left, shared, others)
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
            **others,
        )
        return state, samples

    def _train(self, steps: int, left: int, shared: bool, others: dict[str, Any]) -> tuple[RankState, int]:
        """Do the same within its first grant, of which so many are `left`."""
        first, course = self.queue[0], self.course
        spans = first.spans(steps)
        samples = measure(spans)
        if steps == left:
            queue, course = self.queue[1:], course[1:]
        else:
            queue = (first.advance(steps), *self.queue[1:])
            if course:
                course = ((course[0][0] + course[0][1] * samples, course[0][1]), *course[1:])
        state = replace(
            self,
            queue=queue,
            queued=self.queued - steps,
            course=course,
            trained=self.trained if shared else add(self.trained, first.epoch, spans),
            steps=self.steps + steps,
            samples=self.samples + samples,
            before=max(self.before - steps, 0),
            **others,
        )
        return state, samples


LANE = 40
"""Bits of each count in `Totals`."""
UNREADY, UNFINISHED, ORDERED, TRAINED, WORKING, SHORT, IDLE, BEHIND, OWED = (1 << LANE * place for place in range(9))
"""One of each count."""


class Totals(NamedTuple):
    """How many ranks that are not lost are in which state: all counts in one number, as every event changes some."""

    bits: int = 0

    @property
    def unready(self) -> int:
        """Those that have not said what they begin with."""
        return self._of(UNREADY)

    @property
    def unfinished(self) -> int:
        """Those that have not stopped."""
        return self._of(UNFINISHED)

    @property
    def ordered(self) -> int:
        """With work to do before an order to average."""
        return self._of(ORDERED)

    @property
    def trained(self) -> int:
        """With steps since their last contribution."""
        return self._of(TRAINED)

    @property
    def working(self) -> int:
        """With work to do."""
        return self._of(WORKING)

    @property
    def short(self) -> int:
        """With work to do, and not done with their steps of the window."""
        return self._of(SHORT)

    @property
    def idle(self) -> int:
        """Without work, but with a part in the window."""
        return self._of(IDLE)

    @property
    def behind(self) -> int:
        """Not done with their milestone."""
        return self._of(BEHIND)

    @property
    def owed(self) -> int:
        """Parts of evaluations."""
        return self._of(OWED)

    def _of(self, unit: int) -> int:
        return self.bits // unit & (1 << LANE) - 1


NONE = Totals()


def count(state: RankState, part: int, milestone: int) -> int:
    """Return what a rank adds to `Totals`, of whose window it does `part` steps."""
    if not state.alive:
        return 0
    steps = state.steps
    bits = 0 if state.finished else UNFINISHED
    if not state.digest:
        bits += UNREADY
    if state.before > 0:
        bits += ORDERED
    if steps > 0:
        bits += TRAINED
    if state.queue:
        bits += WORKING + SHORT if steps < part else WORKING
    elif part > 0:
        bits += IDLE
    if steps < milestone:
        bits += BEHIND
    return bits + OWED * len(state.owed) if state.owed else bits


def add(trained: EpochSpans, epoch: int, spans: Spans) -> EpochSpans:
    """Return `trained` with more spans of an epoch."""
    if not spans:
        return trained
    if not trained:
        return ((epoch, spans if len(spans) == 1 else union((), spans)),)
    by_epoch = dict(trained)
    by_epoch[epoch] = union(by_epoch.get(epoch, ()), spans)
    return tuple(sorted(by_epoch.items()))

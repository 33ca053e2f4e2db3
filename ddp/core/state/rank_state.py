"""One rank as the coordinator sees it: what it was granted, has trained and owes.

Owns the counts of a single rank. Knows no other rank, no round and no plan."""

from __future__ import annotations

from enum import StrEnum

from ddp.core.errors import ProtocolError
from ddp.core.samples.spans import Chunk, Spans, measure, union
from ddp.core.values.frozen import replace, value

EpochSpans = tuple[tuple[int, Spans], ...]
"""(epoch, spans) of several epochs."""
Course = tuple[tuple[float, float], ...]
"""For each unshared grant in a queue, as the rank knows them: samples that all ranks have seen when its next step begins,
and samples that all train for each of its own."""


class Coming(StrEnum):
    """How far a lost rank is on its way back."""

    NOT = ""
    STARTING = "starting"
    READY = "ready"
    """It is ready, and needs the others' state."""


@value(frozen=True)
class Owed:
    """A part of an evaluation that a rank owes."""

    epoch: int
    rank: int
    part: int
    parts: int


@value(frozen=True)
class LastHeard:
    """When a rank was last heard. Separate from its state, as every message changes it."""

    seen: float = 0.0
    """Time from which its silence is measured: its last message, or an order to it."""
    reported: float = 0.0
    """When it last reported work: training, an average, an evaluation."""


@value(frozen=True)
class RankState:
    """One rank as the coordinator sees it."""

    rank: int = -1
    alive: bool = True
    life: int = 0
    """Number of restarts."""
    coming: Coming = Coming.NOT
    """How far a lost rank is on its way back."""
    failures: int = 0
    """Number of consecutive starts after which it did not join."""
    digest: str = ""
    """sha256 of its initial parameters; empty until it is ready."""
    finished: bool = False
    queue: tuple[Chunk, ...] = ()
    """Grants not yet reported as trained."""
    queued: int = 0
    """Number of steps in `queue`."""
    course: Course = ()
    trained: EpochSpans = ()
    """Spans reported as trained since its last contribution to an average."""
    steps: int = 0
    samples: int = 0
    busy_s: float = 0.0
    loss_sum: float = 0.0
    """`steps`, `samples`, `busy_s`, `loss_sum`: since its last contribution; with a shared grant, since the grant."""
    lr: float = 0.0
    """Learning rate of the last reported step."""
    before: int = 0
    """Number of steps in `queue` that come before the order to average."""
    after: int = -1
    """The last round that it contributed to."""
    owed: tuple[Owed, ...] = ()
    """Parts of evaluations that it owes."""
    offered: int = 0
    """How many of its restarts were in offered processes, which no setting limits."""

    def contribute(self, after: int | None = None) -> RankState:
        """Return the state after the rank's training entered an average, of round `after` if known."""
        index = self.after if after is None else after
        return replace(self, trained=(), steps=0, samples=0, busy_s=0.0, loss_sum=0.0, before=0, after=index)

    def grant(self, chunk: Chunk, steps: int, seen: int, pace: float) -> RankState:
        """Return the state after a grant of `steps`, which begins when all ranks have seen `seen` samples."""
        course = (*self.course, (float(seen), pace))
        return replace(self, queue=(*self.queue, chunk), queued=self.queued + steps, course=course)

    def order(self) -> RankState:
        """Return the state after an order to average behind all work of the queue."""
        return replace(self, before=self.queued)

    def room(self, most: int, ordered: bool) -> int:
        """Return how many more steps may be granted if a window allows `most`. `ordered`: the rank was ordered to average,
        so that its steps so far belong to the window before."""
        return most - (0 if ordered else self.steps) - self.queued + self.before

    def train(
        self, steps: int, shared: bool, busy_s: float = 0.0, loss_sum: float = 0.0, lr: float | None = None
    ) -> tuple[RankState, int]:
        """Return the state after the next `steps` of the rank's grants, with what they add to its sums, and their samples.
        Raises ProtocolError if it was granted less. Spans of a `shared` grant are entered at its end, when it is known
        which steps are in every replica."""
        queue, course, trained = self.queue, self.course, self.trained
        if queue and 0 < steps <= (left := queue[0].steps):  # the usual case
            first = queue[0]
            spans = first.spans(steps)
            samples = measure(spans)
            if not shared:
                trained = add(trained, first.epoch, spans)
            if steps == left:
                queue, course = queue[1:], course[1:]
            else:
                queue = (first.advance(steps), *queue[1:])
                course = ((course[0][0] + course[0][1] * samples, course[0][1]), *course[1:]) if course else ()
        else:
            queue, course, trained, samples = self._train_across(steps, shared)
        before = self.before - steps
        state = replace(
            self,
            queue=queue,
            queued=self.queued - steps,
            course=course,
            trained=trained,
            steps=self.steps + steps,
            samples=self.samples + samples,
            busy_s=self.busy_s + busy_s,
            loss_sum=self.loss_sum + loss_sum,
            lr=self.lr if lr is None else lr,
            before=before if before > 0 else 0,
        )
        return state, samples

    def _train_across(self, steps: int, shared: bool) -> tuple[tuple[Chunk, ...], Course, EpochSpans, int]:
        """Return queue, course and trained spans after steps of several grants, and their samples."""
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
        return tuple(queue), tuple(course), trained, samples


def add(trained: EpochSpans, epoch: int, spans: Spans) -> EpochSpans:
    """Return `trained` with `spans` of `epoch` added."""
    if not spans:
        return trained
    if not trained:
        return ((epoch, spans if len(spans) == 1 else union((), spans)),)
    by_epoch = dict(trained)
    by_epoch[epoch] = union(by_epoch.get(epoch, ()), spans)
    return tuple(sorted(by_epoch.items()))

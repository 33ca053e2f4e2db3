"""The fold of records into the figures of epochs: means over samples and calls, on a clock that stands still for evaluation.

Owns what the figures of an epoch are: `Trainer`, the terminal, the live page, loggers and `metrics.json` take them from
here, so that no two of them can differ. Sums are exact, so the order in which records arrive does not change them. Memory
is bounded by the number of ranks. Knows nothing of files, nor of who shows a figure.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ddp.core.commands import Drop, Evaluate
from ddp.core.events import Evaluated, Failed, Lost, Progress, Ready, Resumed
from ddp.core.exact_means import Mean, Scalars, means
from ddp.core.join_events import Joined
from ddp.core.training_clock import Evaluation, TrainingClock

MOST_OPEN = 64
"""Epochs in progress at once, far more than a run has: an older one is given out as it is."""
RECENT = 4096
"""Reports and evaluations that are looked at again, far more than a run needs."""


@dataclass(frozen=True)
class EpochFigures:
    """One epoch of all ranks: whole, or so far. A figure is None where it is not finite, or there is none."""

    epoch: int
    """From 0."""
    loss: float | None
    """Mean training loss over the samples of the epoch."""
    eval: float | None
    """Mean of the evaluation metric over the test set; like `eval_loss` None until all of it was evaluated."""
    eval_loss: float | None
    eval_samples: int
    evaluated: bool
    """Whether all of the test set was evaluated."""
    lr: float
    """Learning rate of the last step."""
    samples: int
    """Samples of the epoch, by the reports of the ranks."""
    seen: int
    """Samples that the run had trained when the epoch was evaluated, else when it ended."""
    at: float
    """When its training ended, on the clock of the records: when its evaluation first began, or with the last report of it
    if that was later. (Not when the last rank began to evaluate: where others train on meanwhile, that may be when the
    next epoch is over.)"""
    seconds: float
    """Training time from the start of the run until then."""
    scalars: Scalars
    rank_scalars: Mapping[int, Scalars]
    rank_samples: Mapping[int, int]
    rank_steps: Mapping[int, int]


class _Answer(NamedTuple):
    """What came of one part of an evaluation."""

    rank: int
    begun: float
    trained: int
    """Samples that the rank had trained in the run by then: it trains nothing while it evaluates."""
    samples: int
    loss_sum: float | None
    metric_sum: float | None


@dataclass
class _EpochSums:
    """One epoch in progress."""

    loss: Mean = field(default_factory=Mean)
    lr: float = 0.0
    reported: float = -math.inf
    """The latest report of training."""
    seconds: float = 0.0
    """The training clock then; known only if the run was resumed since."""
    samples: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    steps: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    scalars: defaultdict[int, defaultdict[str, Mean]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Mean))
    )
    parts: int | None = None
    """Parts that its evaluation is split into; None: nobody is ordered, each rank does its own."""
    owed: set[int] = field(default_factory=set)
    """Ranks whose evaluation was ordered and is not in."""
    answers: dict[int, _Answer] = field(default_factory=dict)
    """Part -> what came of it last: a lost rank may have answered, and a survivor again."""

    def add(self, event: Progress) -> None:
        self.loss.add(event.loss_sum, event.samples)
        self.samples[event.rank] += event.samples
        self.steps[event.rank] += event.steps
        if event.at > self.reported:
            self.reported, self.lr = event.at, event.lr
        for name, total, calls in event.scalars:
            self.scalars[event.rank][name].add(total, calls)


class EpochFold:
    """Records in, one by one; the figures of each epoch out, in ascending order, once it is trained and evaluated.

    What a lost rank leaves of the last evaluation a survivor does: so that epoch is held back until it is whole, or the run
    is over. Of earlier epochs the model is gone by then. What a rank says after it was given up is not heard.
    """

    def __init__(self, planned: int = 0) -> None:
        """`planned`: epochs of the run; 0: not known, so the latest one may be the last."""
        self._planned = planned
        self._ready: dict[int, float] = {}
        self._lost: set[int] = set()
        self._epochs: dict[int, _EpochSums] = {}
        """In progress."""
        self._given = -1
        """The last epoch that was given out."""
        self._trained: defaultdict[int, int] = defaultdict(int)
        """Rank -> samples of the run so far."""
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=RECENT)
        """(time, rank, samples) of reports that may be later than the end of the oldest epoch in progress."""
        self._resumed = -math.inf
        """When the run was resumed."""
        self.before = 0.0
        """The training clock by then."""
        self._joined: set[int] = set()
        """Ranks that came later."""
        self._evaluations: list[Evaluation] = []
        """Those that may not be over by the end of the oldest epoch in progress."""
        self._stopped: defaultdict[int, float] = defaultdict(float)
        """Number of ranks -> seconds of all others."""

    def add(self, record: Any) -> list[EpochFigures]:
        """Take note of a record; return the epochs that are complete with it."""
        if isinstance(record, Joined):
            self._lost.discard(record.rank)
            self._joined.add(record.rank)
        if getattr(record, "rank", None) in self._lost:
            return []
        match record:
            case Ready():
                self._ready[record.rank] = record.at
            case Progress():
                return self._progress(record)
            case Evaluate() if record.epoch > self._given:
                sums = self._epochs.setdefault(record.epoch, _EpochSums())
                sums.parts = record.parts
                sums.owed.add(record.rank)
            case Evaluated():
                return self._evaluated(record)
            case Lost() | Failed() | Drop():
                if isinstance(record, Drop):
                    self._lost.add(record.rank)
                for sums in self._epochs.values():
                    sums.owed.discard(record.rank)
                return self._complete()
            case Resumed():
                self._go_on(record.at)
        return []

    def end(self) -> list[EpochFigures]:
        """Return the last epoch if it was held back: there are no more records."""
        return self._complete(over=True)

    def current(self) -> list[EpochFigures]:
        """Return the epochs in progress, as far as they are."""
        return [self._figures(epoch) for epoch in sorted(self._epochs) if self._epochs[epoch].samples]

    def _progress(self, event: Progress) -> list[EpochFigures]:
        self._trained[event.rank] += event.samples
        if event.epoch <= self._given:
            return []
        self._epochs.setdefault(event.epoch, _EpochSums()).add(event)
        if event.epoch == min(self._epochs):  # which does not end before
            while self._recent and self._recent[0][0] <= event.at:
                self._recent.popleft()
        else:
            self._recent.append((event.at, event.rank, event.samples))
        return [self._give(min(self._epochs))] if len(self._epochs) > MOST_OPEN else []

    def _evaluated(self, event: Evaluated) -> list[EpochFigures]:
        ranks = len((self._ready.keys() | self._joined) - self._lost)
        self._evaluations.append(Evaluation(event.at, event.seconds, max(ranks, 1)))
        if len(self._evaluations) > RECENT:
            self._forget(event.at)
        if (sums := self._epochs.get(event.epoch)) is None:
            return []
        part = event.rank if sums.parts is None else event.part
        begun, trained = event.at - event.seconds, self._trained[event.rank]
        sums.answers[part] = _Answer(event.rank, begun, trained, event.samples, event.loss_sum, event.metric_sum)
        sums.owed.discard(event.rank)
        return self._complete()

    def _go_on(self, at: float) -> None:
        """From a checkpoint: ranks are new, and what was lost between the parts of the run does not count as training."""
        for sums in self._epochs.values():
            sums.owed.clear()
            if sums.reported >= self._resumed:
                sums.seconds = self._seconds(sums.reported)
        self.before = self._seconds(at)
        self._resumed = at
        self._ready, self._lost, self._joined = {}, set(), set()
        self._evaluations, self._stopped = [], defaultdict(float)

    def _complete(self, over: bool = False) -> list[EpochFigures]:
        done = []
        while self._epochs and self._is_complete(min(self._epochs), over):
            done.append(self._give(min(self._epochs)))
        return done

    def _is_complete(self, epoch: int, over: bool) -> bool:
        sums = self._epochs[epoch]
        answered = {answer.rank for answer in sums.answers.values()}
        awaited = sums.owed if sums.parts is not None else self._ready.keys() - self._lost - answered
        if not sums.samples or not sums.answers or awaited:
            return False
        last = self._planned - 1 if self._planned else max(self._epochs)
        return over or epoch != last or self._is_whole(sums)

    def _is_whole(self, sums: _EpochSums) -> bool:
        """Return whether every part of the test set has been evaluated."""
        return len(sums.answers) >= (max(len(self._ready), 1) if sums.parts is None else sums.parts)

    def _give(self, epoch: int) -> EpochFigures:
        figures = self._figures(epoch)
        del self._epochs[epoch]
        self._given = epoch
        self._forget(figures.at)
        while self._recent and self._recent[0][0] <= figures.at:
            self._recent.popleft()
        return figures

    def _forget(self, time: float) -> None:
        """Keep of the evaluations that were over by `time` their seconds alone: nothing earlier will be asked for."""
        for each in sorted((each for each in self._evaluations if each.end <= time), key=itemgetter(0)):
            self._stopped[each.ranks] += each.seconds
        self._evaluations = [each for each in self._evaluations if each.end > time]

    def _seconds(self, time: float) -> float:
        if not self._ready:
            return self.before
        begun = max(self._ready.values())
        return self.before + TrainingClock(begun, self._evaluations, self._stopped).at(time)

    def _figures(self, epoch: int) -> EpochFigures:
        sums = self._epochs[epoch]
        whole = self._is_whole(sums)
        answers = list(sums.answers.values()) if whole else []
        at = max(min((answer.begun for answer in answers), default=sums.reported), sums.reported)
        eval_loss, metric = Mean(), Mean()
        for answer in answers:
            eval_loss.add(answer.loss_sum, answer.samples)
            metric.add(answer.metric_sum, answer.samples)
        return EpochFigures(
            epoch=epoch,
            loss=sums.loss.value,
            eval=metric.value,
            eval_loss=eval_loss.value,
            eval_samples=sum(answer.samples for answer in answers),
            evaluated=whole,
            lr=sums.lr,
            samples=sum(sums.samples.values()),
            seen=self._seen(at, {answer.rank: answer.trained for answer in answers}),
            at=at,
            seconds=sums.seconds if at < self._resumed else self._seconds(at),
            scalars=means(sums.scalars.values()),
            rank_scalars={rank: means([own]) for rank, own in sums.scalars.items()},
            rank_samples=dict(sums.samples),
            rank_steps=dict(sums.steps),
        )

    def _seen(self, at: float, evaluated: Mapping[int, int]) -> int:
        """Return the samples of all ranks: of those in `evaluated` what it says, of the others until `at`."""
        others = sum(samples for rank, samples in self._trained.items() if rank not in evaluated)
        later = sum(samples for when, rank, samples in self._recent if when > at and rank not in evaluated)
        return others - later + sum(evaluated.values())

"""Computes the figures of epochs from records: means over samples and calls, on a clock that stops during evaluation.

Owns the figures of an epoch: `Trainer`, the terminal, the live page, loggers and `metrics.json` take them from here, so
they cannot differ. Sums are exact, so the order in which records arrive does not matter. Memory is bounded by the number of
ranks. Knows nothing of files, nor of who shows a figure."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from ddp.core.figures.exact_means import Mean, Scalars, means
from ddp.core.figures.training_clock import Evaluation, TrainingClock
from ddp.core.messages.commands import Drop, Evaluate
from ddp.core.messages.events import Evaluated, Failed, Lost, Progress, Ready, Resumed
from ddp.core.messages.join_events import Joined

MOST_OPEN = 64
"""Most epochs in progress, far more than a run has: beyond that, the oldest is returned incomplete."""
RECENT = 1 << 16
"""Most reports and evaluations kept for later use, far more than a run needs."""


@dataclass(frozen=True)
class EpochFigures:
    """The figures of one epoch over all ranks, complete or so far. A figure is None if it is not finite or not
    available."""

    epoch: int
    """Index from 0."""
    loss: float | None
    """Mean training loss over the samples of the epoch."""
    eval: float | None
    """Mean of the evaluation metric over the test set; like `eval_loss`, None until all of it was evaluated."""
    eval_loss: float | None
    eval_samples: int
    evaluated: bool
    """Whether all of the test set was evaluated."""
    lr: float
    """Learning rate of the last step."""
    samples: int
    """Samples of the epoch, as reported by the ranks."""
    seen: int
    """Samples that the run had trained when the epoch was evaluated, else when it ended."""
    at: float
    """When its training ended, on the clock of the records: when its evaluation first began, or with its last report if
    that was later. (Not when the last rank began to evaluate: where others train on meanwhile, the next epoch may be over
    by then.)"""
    seconds: float
    """Training seconds from the start of the run until `at`."""
    scalars: Scalars
    rank_scalars: Mapping[int, Scalars]
    rank_samples: Mapping[int, int]
    rank_steps: Mapping[int, int]


class _Answer(NamedTuple):
    """The result of one part of an evaluation."""

    rank: int
    begun: float
    trained: int
    """Samples that the rank had trained in the run by then; it trains none while it evaluates."""
    samples: int
    loss_sum: float | None
    metric_sum: float | None


@dataclass
class _EpochSums:
    """The sums of one epoch in progress."""

    loss: Mean = field(default_factory=Mean)
    lr: float = 0.0
    reported: float = -math.inf
    """Time of the latest progress report."""
    seconds: float = 0.0
    """The training clock at `reported`; set only when the run is resumed later."""
    samples: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    steps: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    scalars: defaultdict[int, defaultdict[str, Mean]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(Mean))
    )
    parts: int | None = None
    """Number of parts of its evaluation; None: evaluations are not ordered, each rank does its own part."""
    owed: set[int] = field(default_factory=set)
    """Ranks with an ordered evaluation and no answer yet."""
    unordered: int = 0
    """Parts whose order is not recorded yet: the answer to another part may be, if the coordinator was held up between."""
    answers: dict[int, _Answer] = field(default_factory=dict)
    """Part -> its latest result: a survivor may repeat a lost rank's part."""

    def add(self, event: Progress) -> None:
        self.loss.add(event.loss_sum, event.samples)
        self.samples[event.rank] += event.samples
        self.steps[event.rank] += event.steps
        if event.at > self.reported:
            self.reported, self.lr = event.at, event.lr
        for name, total, calls in event.scalars:
            self.scalars[event.rank][name].add(total, calls)


class EpochFold:
    """Takes records one by one; returns the figures of each epoch, in order, once it is trained and evaluated.

    A survivor evaluates what a lost rank leaves of the last epoch, so that epoch is held back until its evaluation is
    complete or the run is over. The model of an earlier epoch is gone by then. Events of a rank after it was given up are
    ignored."""

    def __init__(self, planned: int = 0) -> None:
        """`planned`: number of epochs of the run; 0: not known, so any latest epoch may be the last."""
        self._planned = planned
        self._ready: dict[int, float] = {}
        self._lost: set[int] = set()
        self._epochs: dict[int, _EpochSums] = {}
        """Epochs in progress."""
        self._given = -1
        """The last epoch that was returned."""
        self._trained: defaultdict[int, int] = defaultdict(int)
        """Rank -> samples trained in the run so far."""
        self._recent: deque[tuple[float, int, int]] = deque(maxlen=RECENT)
        """(time, rank, samples) of reports that may come after the end of the oldest epoch in progress."""
        self._resumed = -math.inf
        """When the run was last resumed."""
        self.before = 0.0
        """The training clock at `_resumed`."""
        self._joined: set[int] = set()
        """Ranks that joined later."""
        self._evaluations: list[Evaluation] = []
        """Evaluations that may end after the oldest epoch in progress."""
        self._stopped: defaultdict[int, float] = defaultdict(float)
        """Number of ranks -> total seconds of all earlier evaluations."""

    @property
    def present(self) -> int:
        """Number of ranks that are ready or have joined and were not given up; at least 1."""
        return max(len((self._ready.keys() | self._joined) - self._lost), 1)

    def add(self, record: Any) -> list[EpochFigures]:
        """Process a record; return the epochs that are complete with it."""
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
                sums.unordered = (record.parts if sums.parts is None else sums.unordered) - 1
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
        """Return the last epoch if it was held back. To be called after the last record."""
        return self._complete(over=True)

    def current(self) -> list[EpochFigures]:
        """Return the figures so far of the epochs in progress."""
        return [self._figures(epoch) for epoch in sorted(self._epochs) if self._epochs[epoch].samples]

    def _progress(self, event: Progress) -> list[EpochFigures]:
        self._trained[event.rank] += event.samples
        if event.epoch <= self._given:
            return []
        self._epochs.setdefault(event.epoch, _EpochSums()).add(event)
        if event.epoch == min(self._epochs):  # no epoch ends before the oldest
            while self._recent and self._recent[0][0] <= event.at:
                self._recent.popleft()
        else:
            self._recent.append((event.at, event.rank, event.samples))
        return [self._give(min(self._epochs))] if len(self._epochs) > MOST_OPEN else []

    def _evaluated(self, event: Evaluated) -> list[EpochFigures]:
        self._evaluations.append(Evaluation(event.at, event.seconds, self.present))
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
        """Continue from a checkpoint: ranks are new, and the time between the two parts of the run is not training."""
        for sums in self._epochs.values():
            sums.owed.clear()
            sums.unordered = 0
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
        if not sums.samples or not sums.answers or awaited or sums.unordered > 0:
            return False
        last = self._planned - 1 if self._planned else max(self._epochs)
        return over or epoch != last or self._is_whole(sums)

    def _is_whole(self, sums: _EpochSums) -> bool:
        """Return whether every part of the test set was evaluated."""
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
        """Reduce evaluations that were over by `time` to their total seconds: no earlier time will be needed."""
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
        """Return the samples trained by all ranks: by those in `evaluated` the given number, by the others until `at`."""
        others = sum(samples for rank, samples in self._trained.items() if rank not in evaluated)
        later = sum(samples for when, rank, samples in self._recent if when > at and rank not in evaluated)
        return others - later + sum(evaluated.values())

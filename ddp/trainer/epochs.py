"""`EpochMetrics`: what a run tells of an epoch, as soon as it is complete. Pure: records in, metrics out."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ddp.core.commands import Drop, Evaluate
from ddp.core.events import Evaluated, Failed, Lost, Progress, Ready
from ddp.core.summary import Scalars, TrainingClock, ended, evaluation, mean_loss, scalar_means, scalars_by_rank


@dataclass(frozen=True)
class EpochMetrics:
    """One epoch of all ranks. Tuples are by rank. A figure is None where it is not finite, or there is none."""

    epoch: int
    """From 0."""
    loss: float | None
    """Mean training loss over the samples of the epoch."""
    eval: float | None
    """Mean of the evaluation metric over the samples of the evaluation data."""
    eval_loss: float | None
    """Mean evaluation loss, where `eval_step` gives one."""
    lr: float
    """Learning rate of the last step."""
    samples: int
    """Samples trained, by the ranks' reports: after a loss, those trained again count again, and what the lost rank did not
    report is missing. The model has each of them once."""
    seconds: float
    """Training time from the end of the epoch before to the end of this one, evaluation not counted."""
    scalars: Scalars
    """What `record_scalar` was given: mean over the calls of all ranks."""
    per_rank_scalars: tuple[Scalars, ...]
    """The same by rank."""
    per_rank_throughput: tuple[float, ...]
    """Samples of the epoch per second of it; 0 where it took no measurable time, as may be when epochs overlap."""
    per_rank_batch_share: tuple[float, ...]
    """Batches trained, as a fraction of all ranks'."""
    devices: tuple[str, ...]


def epoch_metrics(
    trained: Sequence[Progress], parts: Sequence[Evaluated], seconds: float, devices: tuple[str, ...]
) -> EpochMetrics:
    """The metrics of one epoch, of which `trained` are all reports and `parts` the whole evaluation (or nothing)."""
    samples, steps = [0] * len(devices), [0] * len(devices)
    for event in trained:
        samples[event.rank] += event.samples
        steps[event.rank] += event.steps
    whole = sum(steps)
    eval_loss, metric = evaluation(parts)
    last = max(trained, key=lambda event: event.at)
    return EpochMetrics(
        epoch=last.epoch,
        loss=mean_loss(trained),
        eval=metric,
        eval_loss=eval_loss,
        lr=last.lr,
        samples=sum(samples),
        seconds=seconds,
        scalars=scalar_means(trained),
        per_rank_scalars=scalars_by_rank(trained, len(devices)),
        per_rank_throughput=tuple(count / seconds if seconds > 0 else 0.0 for count in samples),
        per_rank_batch_share=tuple(count / whole for count in steps),
        devices=devices,
    )


class EpochBook:
    """Collects the records of a run; gives out each epoch once it is trained and evaluated, in ascending order.

    What a lost rank leaves of the last evaluation a survivor does: so that epoch is held back until it is whole, or the run
    is over. Of earlier epochs the model is gone by then.
    """

    def __init__(self, devices: tuple[str, ...], epochs: int) -> None:
        self._devices, self._last = devices, epochs - 1
        self._ready: list[float] = []
        self._trained: dict[int, list[Progress]] = defaultdict(list)
        self._evaluated: dict[int, dict[tuple[int, int], Evaluated]] = defaultdict(dict)
        """Epoch -> (rank, part) -> what it evaluated."""
        self._parts: dict[int, int] = {}
        """Epoch -> parts that its evaluation is split into."""
        self._owed: set[tuple[int, int]] = set()
        """(epoch, rank) whose evaluation was ordered."""
        self._stopped = 0.0
        """Seconds of evaluations that were over when the last epoch given out ended, all ranks together."""
        self._unfinished: list[Evaluated] = []
        """Of epochs given out, evaluations that were not: they stop the clock for later epochs, as far as these reach."""
        self._seconds = 0.0
        """End of the last epoch given out, on the training clock."""

    def add(self, record: Any) -> list[EpochMetrics]:
        """Take note of a record; the epochs that are complete with it."""
        match record:
            case Ready():
                self._ready.append(record.at)
            case Progress():
                self._trained[record.epoch].append(record)
            case Evaluate():
                self._parts[record.epoch] = record.parts
                self._owed.add((record.epoch, record.rank))
            case Evaluated():
                self._evaluated[record.epoch][record.rank, record.part] = record
                self._owed.discard((record.epoch, record.rank))
                return self._complete()
            case Lost() | Failed() | Drop():
                self._owed = {entry for entry in self._owed if entry[1] != record.rank}
                return self._complete()
        return []

    def end(self) -> list[EpochMetrics]:
        """There are no more records: the last epoch, if it was held back."""
        return self._complete(over=True)

    def _complete(self, over: bool = False) -> list[EpochMetrics]:
        done = []
        while self._trained:
            epoch = min(self._trained)
            if epoch not in self._evaluated or any(entry[0] == epoch for entry in self._owed):
                break
            if epoch == self._last and not (over or self._whole(epoch)):
                break
            done.append(self._close(epoch))
        return done

    def _whole(self, epoch: int) -> bool:
        """Whether every part of the test set has been evaluated."""
        return len({part for _, part in self._evaluated[epoch]}) >= self._parts.get(epoch, 1)

    def _close(self, epoch: int) -> EpochMetrics:
        ranks = len(self._ready)
        whole = self._whole(epoch)
        trained, parts = self._trained.pop(epoch), list(self._evaluated.pop(epoch).values())
        waiting = [part for by_rank in self._evaluated.values() for part in by_rank.values()]
        self._unfinished += parts
        clock = TrainingClock(max(self._ready) + self._stopped / ranks, ranks, [*self._unfinished, *waiting])
        until = ended(trained, parts)
        before, self._seconds = self._seconds, clock.at(until)
        self._stopped += sum(part.seconds for part in self._unfinished if part.at <= until)
        self._unfinished = [part for part in self._unfinished if part.at > until]
        self._parts.pop(epoch, None)
        once = {part.part: part for part in parts} if whole else {}  # a lost rank may have answered after all
        return epoch_metrics(trained, list(once.values()), max(self._seconds - before, 0.0), self._devices)

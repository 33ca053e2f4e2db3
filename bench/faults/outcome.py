"""The outcome of a cell, from the records of its run, which virtual time and processes write alike. Plays nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.faults.meaning import FaultCell, FaultOutcome, documented
from ddp.core.messages.commands import Abort, CoordinatorCheckpoint, Drop
from ddp.core.messages.events import AverageFailed, Failed, Lost, Merged, Progress
from ddp.core.messages.join_events import Joined
from ddp.core.samples.spans import Spans

Timed = Sequence[tuple[float, Any]]
"""(seconds, record) in order of time."""


@dataclass(frozen=True)
class FaultResult:
    """The result of one played cell. Seconds count from the first hit, of a resumed run from its resumption; None: it
    never happened, or does not apply."""

    cell: FaultCell
    world: str
    size: int
    happened: str
    """How the records prove that the fault happened; empty: it did not."""
    outcome: FaultOutcome | None
    notice_s: float | None = None
    """Until the coordinator noticed it."""
    on_s: float | None = None
    """Until ranks that were not hit reported work again; if all were hit, until any rank did."""
    full_s: float | None = None
    """Until every rank that was hit reported work again."""
    repeated: int | None = 0
    """Samples that had to be trained again; None: what was trained is not known, as the coordinator was killed."""
    missing: int = 0
    """Samples of the run that are not in the final model."""
    error: str = ""
    """Why the run ended, or why it has no outcome."""

    @property
    def verdict(self) -> str:
        """Return `as documented`, or what is wrong."""
        if not self.happened:
            return "the fault did not happen"
        if self.outcome is None:
            return "no outcome"
        allowed = documented(self.cell)
        if self.outcome not in allowed:
            return f"{self.outcome.value}, documented: {' or '.join(sorted(each.value for each in allowed))}"
        if self.outcome is not FaultOutcome.ENDED and self.missing:
            return f"{self.missing} samples are missing"
        return "as documented"

    @property
    def good(self) -> bool:
        """Return whether the outcome is documented."""
        return self.verdict == "as documented"


def noticed(records: Timed, hit: Iterable[int], since: float) -> float | None:
    """Return the seconds from `since` until the loss of a hit rank, or a break, was recorded; None: it never was."""
    ranks = set(hit)
    for at, record in records:
        if at < since:
            continue
        if isinstance(record, Failed | Lost | Drop) and record.rank in ranks:
            return at - since
        if isinstance(record, Abort | AverageFailed):
            return at - since
    return None


def went_on(records: Timed, hit: Iterable[int], size: int, since: float) -> float | None:
    """Return the seconds from `since` until a rank that was not hit reports work after the last loss; None: it never
    does."""
    others = set(range(size)) - set(hit) or set(range(size))
    lost = [at for at, record in records if isinstance(record, Drop) and at >= since]
    after = max(lost, default=since)
    works = (at for at, record in records if at > after and isinstance(record, Progress) and record.rank in others)
    at = next(works, None)
    return None if at is None else at - since


def full_strength(records: Timed, hit: Iterable[int], since: float) -> float | None:
    """Return the seconds from `since` until all hit ranks have reported work again, after their loss if they were lost;
    None: one did not."""
    times = [_works(records, rank, since) for rank in hit]
    known = [at for at in times if at is not None]
    return max(known) - since if times and len(known) == len(times) else None


def _works(records: Timed, rank: int, since: float) -> float | None:
    of_rank = [(at, record) for at, record in records if at >= since and getattr(record, "rank", None) == rank]
    begin = since
    if any(isinstance(record, Drop | Lost | Failed) for _, record in of_rank):
        back = [at for at, record in of_rank if isinstance(record, Joined)]
        if not back:
            return None
        begin = back[-1]
    return next((at for at, record in of_rank if at > begin and isinstance(record, Progress) and record.samples), None)


def missing(trained: Iterable[tuple[int, Spans]], samples: int, epochs: int) -> int:
    """Return how many samples of all epochs are not among those trained: (epoch, spans); negative: some are more than
    once."""
    counts = [bytearray(samples) for _ in range(epochs)]
    for epoch, spans in trained:
        for start, stop in spans:
            for position in range(start, stop):
                counts[epoch][position] += 1
    more = sum(count - 1 for epoch in counts for count in epoch if count)
    return -more if more else sum(epoch.count(0) for epoch in counts)


def merged(records: Timed) -> Iterator[tuple[int, Spans]]:
    """Yield (epoch, spans) of what came into the model."""
    return ((record.epoch, record.spans) for _, record in records if isinstance(record, Merged))


def merged_before(saved: CoordinatorCheckpoint) -> Iterator[tuple[int, Spans]]:
    """Yield (epoch, spans) of what is in the model of a checkpoint."""
    begun = {ledger.epoch: ledger.merged for ledger in saved.ledgers}
    return ((epoch, begun.get(epoch, ((0, saved.epoch_samples),))) for epoch in range(saved.begun))


def outcome(records: Timed, status: str) -> FaultOutcome:
    """Return the outcome of a run that was not resumed."""
    if status != "ok":
        return FaultOutcome.ENDED
    return FaultOutcome.LOST if any(isinstance(record, Drop) for _, record in records) else FaultOutcome.UNHURT

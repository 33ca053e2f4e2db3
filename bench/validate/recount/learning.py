"""What a run learned: epochs, final values, the target, the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum, inf

from bench.base.grouping import grouped
from bench.results.schema import Epoch, Metrics
from bench.validate.records.run_records import Records
from bench.validate.recount.figure import Figure
from ddp.core.messages.events import Evaluated, Progress


@dataclass(frozen=True)
class _EpochRecords:
    """The records of one epoch."""

    reports: Sequence[Progress]
    answers: Sequence[Evaluated]
    """The last answer for each part of the test set; empty if a part is missing."""

    @cached_property
    def ended(self) -> float:
        """When training of the epoch ended: at its last report, or at the begin of its evaluation, if that was
        later."""
        reported = max(event.at for event in self.reports)
        return max(reported, min((event.at - event.seconds for event in self.answers), default=reported))

    @cached_property
    def evaluated(self) -> float:
        """When the last part of the test set was evaluated."""
        return max((event.at for event in self.answers), default=self.ended)


def learning(m: Metrics, known: Records, whole: bool = True) -> Iterator[Figure]:
    """Yield the figures of the epochs, and those that follow from them. `whole`: the run lost nobody, so that the ends of
    its epochs and its ledger follow from the reports, too."""
    epochs = _epochs(m, known)
    yield Figure("epochs", [row.epoch for row in m.epochs], sorted(epochs))
    yield Figure("steps", m.steps, sum(event.steps for event in known.progress))
    yield Figure("samples", m.samples, sum(event.samples for event in known.progress))
    for row in m.epochs:
        if row.epoch in epochs:
            yield from _epoch(row, epochs[row.epoch], m.world_size, known)
    yield from _final(m)
    if not whole or known.resumed:
        return
    for row in m.epochs:
        if row.epoch in epochs:
            seconds = trained_until(known, epochs[row.epoch].ended)
            yield Figure(f"epochs.{row.epoch}.seconds", row.seconds, seconds, 1e-3)
    if m.ledger is not None:
        for number, ledger in enumerate(m.ledger.epochs):
            trained = [0] * m.world_size
            for event in epochs[ledger.epoch].reports if ledger.epoch in epochs else ():
                trained[event.rank] += event.samples
            yield Figure(f"ledger.epochs[{number}].by_rank", ledger.by_rank, trained)
            yield Figure(
                f"ledger.epochs[{number}] samples and repeated", ledger.samples + ledger.repeated, sum(trained)
            )
        yield Figure("ledger.samples", m.ledger.samples, known.ready[0].samples)


def _epochs(m: Metrics, known: Records) -> dict[int, _EpochRecords]:
    """Return epoch -> its records. Answers are left out if parts of the test set have none."""
    answers: dict[int, dict[int, Evaluated]] = defaultdict(dict)
    reports = grouped((event.epoch, event) for event in known.progress)
    for answer in known.evaluated:
        answers[answer.epoch][answer.part] = answer
    for row in m.epochs:
        if row.eval is None and len(answers[row.epoch]) < len(known.ready):
            answers[row.epoch] = {}
    return {epoch: _EpochRecords(own, list(answers[epoch].values())) for epoch, own in reports.items()}


def _epoch(row: Epoch, records: _EpochRecords, world_size: int, known: Records) -> Iterator[Figure]:
    name, reports, answers = f"epochs.{row.epoch}", records.reports, records.answers
    yield Figure(f"{name}.train_loss", row.train_loss, _mean([(event.loss_sum, event.samples) for event in reports]))
    if answers:
        yield Figure(f"{name}.eval", row.eval, _mean([(event.metric_sum, event.samples) for event in answers]))
        yield Figure(f"{name}.eval_loss", row.eval_loss, _mean([(event.loss_sum, event.samples) for event in answers]))
    last = max(event.at for event in reports)
    rates = {event.lr for event in reports if event.at == last}
    yield Figure(f"{name}.lr", row.lr, row.lr if row.lr in rates else max(rates))
    least = sum(event.samples for event in known.progress if event.epoch <= row.epoch)
    most = sum(event.samples for event in known.progress if event.at <= max(records.evaluated, records.ended))
    yield Figure(f"{name}.samples", row.samples, min(max(row.samples, least), max(most, least)))
    for rank in range(world_size):
        given = row.scalars_per_rank[rank] if rank < len(row.scalars_per_rank) else {}
        yield Figure(f"{name}.scalars_per_rank.{rank}", given, _scalars(e for e in reports if e.rank == rank))
    yield Figure(f"{name}.scalars", row.scalars, _scalars(reports))


def trained_until(known: Records, time: float) -> float:
    """Return the seconds of training until `time`: since the last rank was ready, less the mean time of an evaluation
    per rank."""
    ready = [event.at for event in known.ready]
    stopped = fsum(min(max(time - (e.at - e.seconds), 0.0), e.seconds) for e in known.evaluated)
    return max(time - max(ready) - stopped / len(ready), 0.0)


def _mean(parts: Sequence[tuple[float | None, int]]) -> float | None:
    sums = [total for total, _ in parts if total is not None]
    count = sum(samples for _, samples in parts)
    return fsum(sums) / count if len(sums) == len(parts) and count else None


def _scalars(reports: Iterator[Progress] | Sequence[Progress]) -> dict[str, float | None]:
    parts: dict[str, list[tuple[float | None, int]]] = defaultdict(list)
    for event in reports:
        for name, total, calls in event.scalars:
            parts[name].append((total, calls))
    return {name: _mean(own) for name, own in sorted(parts.items())}


def _final(m: Metrics) -> Iterator[Figure]:
    """Yield the final values and the target, by the rows of the epochs."""
    sign = 1.0 if m.final.higher_is_better else -1.0
    known = [(row.epoch, row.eval) for row in m.epochs if row.eval is not None]
    best = max((sign * value for _, value in known), default=-inf)
    yield Figure("final.train_loss", m.final.train_loss, m.epochs[-1].train_loss if m.epochs else None)
    yield Figure("final.eval", m.final.eval, known[-1][1] if known else None)
    yield Figure("final.best", m.final.best, sign * best if known else None)
    first = next((epoch for epoch, value in known if sign * value == best), None)
    yield Figure("final.best_epoch", m.final.best_epoch, first)
    value = m.target.value
    reaching = [
        row for row in m.epochs if value is not None and row.eval is not None and sign * (row.eval - value) >= 0
    ]
    yield Figure("target.reached", m.target.reached, bool(reaching))
    yield Figure("target.samples", m.target.samples, reaching[0].samples if reaching else None)
    seconds = reaching[0].seconds if reaching and m.timing else None
    yield Figure("target.seconds", m.target.seconds, seconds)

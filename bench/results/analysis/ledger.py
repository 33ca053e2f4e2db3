"""The proof of law 1: which samples of which epoch are in the model, by rank. Computed from recorded spans. Pure."""

from __future__ import annotations

from bench.base.grouping import grouped, summed
from bench.results.analysis.stream import RunRecords
from bench.results.schema import LedgerRow, LedgerTotals
from ddp.core.messages.events import Merged, Progress
from ddp.core.samples.spans import Span, measure


def ledger(stream: RunRecords, world_size: int, planned: int) -> LedgerTotals:
    """Return the ledger of a run of `planned` epochs. A single rank records no positions, so its samples are only
    counted."""
    samples = next((event.samples for event in stream.ready.values()), None)
    rows = _merged(stream, world_size) if world_size > 1 else _counted(stream, samples or 0)
    whole = [row.epoch for row in rows if row.samples == samples and not row.repeated]
    return LedgerTotals(
        source="merged" if world_size > 1 else "counted",
        samples=samples,
        epochs=rows,
        exactly_once=whole == [row.epoch for row in rows] == list(range(planned)),
    )


def _merged(stream: RunRecords, world_size: int) -> list[LedgerRow]:
    rows = []
    merged = grouped((event.epoch, event) for part in stream.parts_in_turn for event in part.of(Merged))
    for epoch, lines in sorted(merged.items()):
        by_rank = [0] * world_size
        for line in lines:
            by_rank[line.rank] += measure(line.spans)
        covered = _covered([span for line in lines for span in line.spans])
        rows.append(LedgerRow(epoch=epoch, samples=covered, repeated=sum(by_rank) - covered, by_rank=by_rank))
    return rows


def _covered(spans: list[Span]) -> int:
    """Return how many positions lie in any of the spans. Spans may overlap, as a wrong ledger must be described,
    too."""
    covered, end = 0, 0
    for start, stop in sorted(spans):
        covered += max(stop - max(start, end), 0)
        end = max(end, stop)
    return covered


def _counted(stream: RunRecords, samples: int) -> list[LedgerRow]:
    rows = []
    counts = summed((event.epoch, event.samples) for part in stream.parts_in_turn for event in part.of(Progress))
    for epoch, trained in sorted(counts.items()):
        once = min(trained, samples)
        rows.append(LedgerRow(epoch=epoch, samples=once, repeated=trained - once, by_rank=[trained]))
    return rows

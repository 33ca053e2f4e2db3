"""Goodput of a run: the parts of its rank-seconds, and the named measures that follow from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bench.results.analysis.histories import Histories, RankRecord
from bench.results.analysis.rank_seconds import PARTS, rank_seconds, repetition
from bench.results.analysis.stream import RunRecords
from bench.results.schema_goodput import Goodput, RankSeconds
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import AverageFailed, Failed, Lost, Merged, Progress
from ddp.core.messages.run_bounds import Attempt

LOST = ("discarded", "saving", "detecting", "regrouping", "restoring", "starting", "absent")
"""Parts that are no progress. `repeated` counts as progress, as the lost first attempt is in `discarded`."""


def goodput(
    stream: RunRecords, world_size: int, launched: float, ended: float, attempts: Sequence[Attempt] = ()
) -> Goodput | None:
    """Return the goodput of a run, of all its `attempts` if it began anew, or since the checkpoint from which it was
    resumed; None if it has no slices."""
    if not stream.slices.rank.size:
        return None
    histories = histories_of(stream, world_size, launched, ended)
    sums = rank_seconds(stream.slices, histories)
    samples = sum(histories.merged.values()) or sum(histories.trained.values())
    redone = _redone(stream) or (0.0 if stream.resumed else sum(attempt.samples for attempt in attempts))
    sums = repetition(sums, redone * sums["kept"] / samples if samples else 0.0, again=_went_on(stream))
    thrown, until = _before(stream, world_size, launched, attempts)
    return projections(sums | {"discarded": sums["discarded"] + thrown, "starting": sums["starting"] + until})


def histories_of(stream: RunRecords, world_size: int, launched: float, ended: float) -> Histories:
    """Return the histories of all ranks, from launch to the last rank's end."""
    own = {event.rank: event for event in stream.finished.values()}
    end = max((event.at for event in own.values()), default=max(stream.last_at.values(), default=ended))
    histories = Histories(world_size, launched, max(end, launched), buffered=True)
    for rank, event in stream.ready.items():
        histories.ready[rank] = event.at
    histories.finished.update({rank: event.at for rank, event in own.items()})
    records: list[RankRecord] = [*stream.of(Progress), *stream.of(Merged), *stream.of(AverageFailed)]
    for record in records:
        histories.tell(record)
    for at, move in stream.moves:
        histories.move(at, move)
    histories.in_step = any(plan.in_step for _, plan in stream.plans)
    return histories


def projections(seconds: Mapping[str, float]) -> Goodput | None:
    """Return the named measures, given seconds by part; None if these sum to 0."""
    whole = sum(seconds.values())
    if whole <= 0:
        return None
    parts = {part: seconds[part] / whole for part in PARTS}
    ettr = max(1 - sum(parts[part] for part in LOST), 0.0)
    present = 1 - parts["absent"]
    return Goodput(
        rank_seconds=whole,
        parts=RankSeconds(**parts),
        ettr=ettr,
        goodput=(parts["kept"] + parts["repeated"]) / present if present > 0 else 0.0,
        ett=ettr + parts["discarded"] - parts["repeated"],
        ucf=max(ettr - parts["communicating"], 0.0),
    )


def _before(stream: RunRecords, world_size: int, launched: float, attempts: Sequence[Attempt]) -> tuple[float, float]:
    """Return the seconds of all ranks whose work is not kept, before they began again, and until they did."""
    if stream.resumed is not None:
        thrown, starting, ranks = 0.0, 0.0, world_size
        for resumed in reversed(stream.resumptions):
            since, until = resumed.since_s
            starting += ranks * until
            ranks = resumed.ranks or ranks
            thrown += ranks * max(since - until, 0.0)
        return thrown, starting
    trained = sum(attempt.ended - attempt.begun for attempt in attempts)
    until = launched - attempts[0].launched - trained if attempts else 0.0
    return world_size * trained, world_size * until


def _went_on(stream: RunRecords) -> bool:
    """Return whether samples entered the model after the first fault, so that what it had cost was trained again."""
    faults = [at for at, record in stream.trouble if isinstance(record, Failed | Lost | Drop | AverageFailed)]
    return bool(faults) and max((merged.at for merged in stream.of(Merged)), default=0.0) > min(faults)


def _redone(stream: RunRecords) -> float:
    """Return the samples that the run had trained beyond the checkpoint from which this part resumed."""
    if stream.resumed is None or stream.earlier is None:
        return 0.0
    # Earlier versions wrote `again` only after an automatic restart.
    again = sum(resumed.again for resumed in stream.resumptions)
    if stream.resumed.because or again:
        return float(again)
    before = stream.earlier.resumed.samples if stream.earlier.resumed is not None else 0
    trained = sum(event.samples for event in stream.earlier.of(Progress))
    return float(max(before + trained - stream.resumed.samples, 0))

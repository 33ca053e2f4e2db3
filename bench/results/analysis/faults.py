"""What went wrong, and what the run did about it: one row for each lost rank, and for each broken collective that cost
no rank.

A collective breaks on all its ranks. If it broke because a rank was lost, it belongs to the row of that loss. If it
broke because ranks left their group as ordered, so that others can join, it is no fault.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from math import inf

from bench.results.analysis.stream import RunRecords
from bench.results.live.run import Trouble
from bench.results.schema import FaultRow, Metrics
from ddp.core.messages.commands import Abort, Drop, Join, Leave
from ddp.core.messages.event_parts import PastFault
from ddp.core.messages.events import AverageFailed, Failed, Lost, Merged, Progress, Resumed
from ddp.core.messages.join_events import Joined
from ddp.core.messages.run_bounds import Attempt
from ddp.core.rounds.rounds import IN_STEP
from ddp.core.samples.spans import measure
from ddp.process.codec import Record

BEGAN_ANEW = "all ranks began anew"
"""Begin of the warning of a run that began anew after a loss: its records are those of the last attempt."""
_SILENT = re.compile(r"silent for [\d.]+ s")
_ENDED = re.compile(r"rank (\d+)( failed)?: (.*)", re.DOTALL)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*: ")
_OF_RANK = re.compile(r"rank (\d+): (.*)", re.DOTALL)


def of_run(stream: RunRecords, world_size: int, attempts: Sequence[Attempt] = ()) -> list[FaultRow]:
    """Return the faults of all parts of a run, in the order in which they were noticed. `attempts`: those of which no record
    is kept."""
    lines = [row for attempt in attempts for row in _past(attempt.faults, 0.0)]
    lines = [row.model_copy(update={"action": BEGAN_ANEW}) if row.action == _ENDED_IT else row for row in lines]
    for part in stream.parts_in_turn:
        lines = [*map(_as_earlier, lines), *faults(part, world_size)]
    return lines


def past(
    records: Iterable[tuple[float, Record]], zero: float, world_size: int, end: bool = True
) -> tuple[PastFault, ...]:
    """Return the faults noticed after `zero`, for a part of a run whose records are not kept. `end`: with those that ended
    it."""
    trouble = [(at, record) for at, record in records if isinstance(record, Trouble)]
    return tuple(
        PastFault(row.seconds, row.rank, row.kind, row.text, row.action, row.back_s)
        for row in rows(trouble, zero, world_size)
        if row.seconds > 0 and not row.earlier and (end or row.action not in ("", _ENDED_IT))
    )


def faults(stream: RunRecords, world_size: int) -> list[FaultRow]:
    """Return the faults in a part of a run, in the order in which they were noticed, with the samples trained again for
    each."""
    returns = defaultdict[int | None, list[float]](list)
    for at, record in stream.trouble:
        if isinstance(record, Joined):
            returns[record.rank].append(at)
    lost = _lost_samples(stream, returns)
    merged = max((record.at for record in stream.of(Merged)), default=-inf)
    since = sum(resumed.since_s[0] for resumed in stream.resumptions[:-1])
    lines = rows(stream.trouble, stream.zero, len(stream.ready) or world_size, since)
    for index, row in enumerate(lines):
        at = stream.zero + row.seconds
        if not row.earlier and (count := lost.get(_life(returns, row.rank, at))):
            what = "were trained again" if at < merged else "were lost"
            lines[index] = row.model_copy(update={"action": f"{row.action}; {count:,} of its samples {what}"})
    return lines


def rows(trouble: Iterable[tuple[float, Trouble]], zero: float, world_size: int, since: float = 0.0) -> list[FaultRow]:
    """Return the faults in the order in which they were noticed. `trouble`: (seconds on the clock of the records,
    record); `zero`: the launch on that clock; `since`: seconds from the checkpoint from which all ranks began again to the
    last such beginning before."""
    fold = _Faults(zero, world_size, since)
    for at, record in trouble:
        fold.add(at, record)
    fold.end_break()
    return fold.rows


def notes(rows: list[FaultRow]) -> list[str]:
    """Return warnings that a reader of the run's figures needs."""
    return [
        f"the run went on without rank {row.rank} since {row.seconds:.1f} s after launch: {row.text}"
        for row in rows
        if went_on(row) and row.back_s is None and not row.earlier
    ]


def missing(rows: Sequence[FaultRow]) -> set[int]:
    """Return the ranks that were absent when the run ended: lost, and neither returned nor restarted with all
    others."""
    # Earlier versions wrote no `earlier`.
    again = max((place for place, row in enumerate(rows) if row.action.startswith(_ALL_WENT_ON)), default=-1)
    return {row.rank for row in rows[again + 1 :] if row.rank is not None and row.back_s is None and not row.earlier}


def raised(rows: list[FaultRow]) -> list[str]:
    """Return one line for each rank that failed by itself and without which the run went on."""
    return [
        f"rank {row.rank}{' raised' if _EXCEPTION.match(row.text) else ':'} {row.text}, and the run went on without it"
        for row in rows
        if row.kind == "failed" and went_on(row)
    ]


def went_on(row: FaultRow) -> bool:
    """Return whether the run went on without the rank, even if it returned later."""
    return row.action.startswith(_WENT_ON)


def unscripted(metrics: Metrics) -> list[str]:
    """Return those lines of `raised` that are a defect of the program: an exception that no script made. Errors about
    the machine's resources, or about a flipped bit, are none."""
    parts = (fault.partition("@") for fault in metrics.scripted_faults)
    scripted = {rank for rank, _, rest in parts if ":raise" in rest}
    return raised([row for row in metrics.faults if str(row.rank) not in scripted and _EXCEPTION.match(row.text)])


_WENT_ON, _ALL_WENT_ON, _ENDED_IT = "went on with", "all ranks went on", "ended the run"


class _Faults:
    """Folds records into rows."""

    def __init__(self, zero: float, world_size: int, since: float = 0.0) -> None:
        self._zero, self._world_size, self._since = zero, world_size, since
        self._live = list(range(world_size))
        self._rows_by_rank: dict[int, int] = {}
        """Rank that raised or is lost -> index of its row."""
        self._broken: list[AverageFailed] = []
        """The failures of the collective that broke last, until a new group is formed."""
        self._cost_a_rank = self._parting = self._aborted = False
        self.rows: list[FaultRow] = []

    def add(self, at: float, record: Trouble) -> None:
        match record:
            case Failed() if record.of_all:
                self._row(at, None, "failed", f"all ranks: {record.error}", _ENDED_IT)
            case Failed() | Lost():
                # The next command tells whether the run goes on without the rank; without one, this row stands.
                self._row(at, record.rank, _kind(record), _text(record))
            case AverageFailed():
                self._broken.append(record)
            case Drop():
                if record.rank in self._live:  # a rank that was to return may be given up again
                    self._live.remove(record.rank)
                self._cost_a_rank = True
                self._settle(at, record.rank, record.reason, f"{_WENT_ON} {_ranks(self._live)}")
            case Abort():
                self._aborted = True
                if match := _OF_RANK.fullmatch(record.reason):
                    self._cost_a_rank = True
                    self._settle(at, int(match[1]), match[2], _ENDED_IT)
            case Leave():
                self._parting = True
            case Join():
                self.end_break()
            case Joined():
                self._return(at, record.rank)
            case Resumed():  # all ranks are present again
                self.end_break()
                at += self._since
                self.rows = [*map(_as_earlier, self.rows), *_past(record.faults, at - self._zero)]
                if record.because:
                    self._begun_again(at, record)
                self._live = list(range(self._world_size))
                self._rows_by_rank.clear()

    def _settle(self, at: float, rank: int, reason: str, action: str) -> None:
        """Record what was done about a rank, which may not have reported anything itself."""
        if rank not in self._rows_by_rank:
            self._row(at, rank, "silent" if _SILENT.match(reason) else "dropped", reason)
        index = self._rows_by_rank[rank]
        self.rows[index] = self.rows[index].model_copy(update={"action": action})

    def _return(self, at: float, rank: int) -> None:
        """Record that a lost rank has returned."""
        self._live = sorted((*self._live, rank))
        index = self._rows_by_rank.pop(rank, None)
        if index is None:
            return  # it was never present before
        row = self.rows[index]
        back = at - self._zero - row.seconds
        action = f"{row.action}; back {back:.1f} s later"
        self.rows[index] = row.model_copy(update={"action": action, "back_s": back})

    def _begun_again(self, at: float, record: Resumed) -> None:
        """Record what ended all ranks, which then restarted from a checkpoint."""
        match = _ENDED.fullmatch(record.because)
        rank, kind, text = (int(match[1]), match[2], match[3]) if match else (None, "", record.because)
        action = (
            f"{_ALL_WENT_ON} from checkpoint {record.index}, {self._since + record.since_s[0]:.1f} s after it was made"
        )
        action += f"; {record.again:,} samples were trained again" if record.again else ""
        since, until = record.since_s
        self._row(
            at + since - until, rank, "failed" if kind else "silent" if _SILENT.match(text) else "lost", text, action
        )
        self.rows[-1] = _as_earlier(self.rows[-1])

    def _row(self, at: float, rank: int | None, kind: str, text: str, action: str = "") -> None:
        row = {"seconds": at - self._zero, "rank": rank, "kind": kind, "text": text, "action": action}
        if rank is not None:
            self._rows_by_rank.setdefault(rank, len(self.rows))  # until it returns
        self.rows.append(FaultRow.model_validate(row))

    def end_break(self) -> None:
        """Close the broken collective when a new group is formed or the run ends. It becomes a row if it cost no
        rank."""
        broken, self._broken = self._broken, []
        cost_a_rank, self._cost_a_rank = self._cost_a_rank, False
        aborted, self._aborted = self._aborted, False
        parting, self._parting = self._parting and all(event.round == IN_STEP for event in broken), False
        if not broken or cost_a_rank or parting:
            return
        first = broken[0]
        what = "an exchange of gradients" if first.round == IN_STEP else f"round {first.round}"
        on = _ranks(sorted({event.rank for event in broken}))
        action = _ENDED_IT if aborted else "was done again"
        self._row(first.at, None, "average_failed", f"{what} broke on {on}: {first.error}", action)


def _as_earlier(row: FaultRow) -> FaultRow:
    return row.model_copy(update={"earlier": True})


def _past(past: Iterable[PastFault], since: float) -> list[FaultRow]:
    return [FaultRow(**asdict(fault) | {"seconds": since + fault.seconds, "earlier": True}) for fault in past]


def _kind(event: Failed | Lost) -> str:
    return "failed" if isinstance(event, Failed) else "lost"


def _text(event: Failed | Lost) -> str:
    return event.error if isinstance(event, Failed) else event.reason


def _ranks(ranks: list[int]) -> str:
    """Return `rank 0`, `ranks 0 and 2`, `ranks 0, 1 and 2`."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


_Life = tuple[int | None, int]
"""(rank, how often it had returned)."""


_Returns = Mapping[int | None, Sequence[float]]
"""Rank -> when it returned, ascending."""


def _life(returns: _Returns, rank: int | None, at: float) -> _Life:
    return rank, bisect_right(returns.get(rank, ()), at)


def _lost_samples(stream: RunRecords, returns: _Returns) -> dict[_Life, int]:
    """Return life of a lost rank -> its samples that were not kept; without lives whose samples were all kept. Of shared
    steps the last ones enter the model as the rank returns, before it trains again."""
    dropped = {record.rank for _, record in stream.trouble if isinstance(record, Drop)}
    lost, first = defaultdict[_Life, int](int), dict[_Life, float]()
    for event in stream.of(Progress) if dropped else ():
        if event.rank in dropped:
            life = _life(returns, event.rank, event.at)
            lost[life] += event.samples
            first.setdefault(life, event.at)
    for merged in stream.of(Merged) if dropped else ():
        if merged.rank in dropped:
            rank, number = _life(returns, merged.rank, merged.at)
            while number and merged.at < first.get((rank, number), inf):
                number -= 1
            lost[rank, number] -= measure(merged.spans)
    return {life: count for life, count in lost.items() if count > 0}

"""The check `figures` on ranks: who was lost, when each came back, and who became slow."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.results.analysis.slow import slow_ranks as rows_of
from bench.results.schema import Metrics
from bench.validate.records.run_records import Records
from bench.validate.recount import losses as recount
from ddp.core.anomalies import slowness
from ddp.core.anomalies.slowness import SlowFold
from ddp.core.messages import commands, events
from ddp.core.messages.event_parts import WorkSeconds
from ddp.core.messages.join_events import Joined
from tests.bench.results.test_faults import SPEC, bereft
from tests.bench.streams import LAUNCHED, make_metrics, make_spec

HEADERS = cast(Any, [SimpleNamespace(launched=LAUNCHED)])


def lost(rows: list[dict[str, Any]]) -> list[str]:
    """What is wrong with a result of a run that lost a rank, which came back, if its rows say so."""
    every = bereft(events.Lost(0.0, 1, "gone"), "gone")
    (gone,) = [record for record in every if isinstance(record, events.Lost)]
    back = Joined(gone.at + 2.0, 1, 8)
    metrics = make_metrics(SPEC, every)
    changed = [metrics.faults[0].model_copy(update=row) for row in rows]
    drops = [record for record in every if isinstance(record, commands.Drop)]
    known = Records(headers=HEADERS, lost=[gone], drops=drops, joined=[back])
    made = recount.losses(metrics.model_copy(update={"faults": changed}), known)
    return [figure.wrong for figure in made if figure.wrong]


@pytest.mark.parametrize(
    ("rows", "line"),
    [
        ([{"back_s": 2.0}], ""),
        ([{"back_s": None}], "faults[0].back_s is missing"),
        ([{"back_s": 4.0}], "faults[0].back_s is 4"),
        ([{"back_s": 2.0, "seconds": 1.0}], "faults[0].seconds is 1"),
        ([{"back_s": 2.0, "rank": 2}], "faults: ranks is [2], but the records give [1]"),
        ([], "faults: ranks is []"),
    ],
)
def test_losses_are_those_that_were_recorded(rows: list[dict[str, Any]], line: str) -> None:
    found = lost(rows)
    assert bool(found) == bool(line), found
    assert any(each.startswith(line) for each in found) or not line, found


def slow(rest: int = 160) -> tuple[Metrics, Records]:
    """Two ranks, of which one takes four times as long from its step 200 on, and what the result says of it. `rest`: samples
    in ten steps of it from then on."""
    known, fold = Records(headers=HEADERS, plans=cast(Any, [SimpleNamespace(in_step=False)])), SlowFold()
    for window in range(40):
        for rank in (0, 1):
            late = rank and window >= 20
            seconds, samples = 0.2 * (4.0 if late else 1.0), rest if late else 160
            at = LAUNCHED + window + 0.9
            report = events.Progress(at, rank, 0, 10, samples, 0.8, 1.0, 0.1, work=WorkSeconds(0.0, seconds))
            average = events.Averaged(at + 0.01, rank, window, 10, samples, 0.01, 8, 0.0)
            known.progress.append(report)
            known.averaged.append(average)
            fold.add(report)
            fold.add(average)
    metrics = make_metrics(make_spec("nccl_cadence"))
    rows = rows_of(fold, LAUNCHED)
    return metrics.model_copy(update={"slow_ranks": rows, "scripted_faults": ["1@200:slow*4"]}), known


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, ""),
        ({"named_s": 3.0}, "slow_ranks[0].named_s is 3"),
        ({"seconds": 0.5}, "slow_ranks[0].seconds is 0.5"),
        ({"windows": 5}, "slow_ranks[0].windows is 5, but the records give 2"),
        ({"factor": 16.0}, "slow_ranks[0].factor is 16"),
        ({"rank": 0}, "slow_ranks has rank 1, 4 times as slow is False"),
    ],
)
def test_slow_ranks_are_those_that_reports_show(change: dict[str, Any], line: str) -> None:
    metrics, known = slow()
    assert metrics.slow_ranks is not None
    (row,) = metrics.slow_ranks
    metrics = metrics.model_copy(update={"slow_ranks": [row.model_copy(update=change)]})
    found = [figure.wrong for figure in recount.slow_ranks(metrics, known) if figure.wrong]
    assert bool(found) == bool(line), found
    assert any(each.startswith(line) for each in found) or not line, found
    earlier = metrics.model_copy(update={"schema_version": 4})
    assert list(recount.slow_ranks(earlier, known)) == []
    assert list(recount.slow_ranks(metrics, replace(known, headers=[]))) == []


def test_batches_that_become_smaller_make_steps_as_slow_as_their_time() -> None:
    metrics, known = slow(rest=10)
    assert metrics.slow_ranks is not None
    assert [row.factor for row in metrics.slow_ranks] == [4.0], "and not 64"
    assert not [figure.wrong for figure in recount.slow_ranks(metrics, known) if figure.wrong]
    shorter = [replace(each, work=WorkSeconds(0.0, 0.2)) for each in known.progress]
    known = replace(known, progress=shorter)
    assert not [
        each.wrong for each in recount.slow_ranks(metrics.model_copy(update={"slow_ranks": []}), known) if each.wrong
    ]


TICK_S = 1e-7
"""To which reports are rounded."""
PARTS = st.lists(st.tuples(*[st.integers(0, 200_000)] * 4), min_size=1, max_size=8)


@given(PARTS)
def test_a_window_ends_where_work_is_just_enough_whatever_the_order_of_the_sum(parts: list[tuple[int, ...]]) -> None:
    """A clean run was refused: 0.1 s in parts was 0.1 s by one sum and less by the other."""
    left = round(slowness.LEAST_S / TICK_S) - sum(data + compute for data, compute, _, _ in parts)
    known, fold = Records(plans=cast(Any, [SimpleNamespace(in_step=True)])), SlowFold()
    fold._in_step = True
    for number, (data, compute, away, away_data) in enumerate([*parts, (0, max(left, 0), 0, 0)]):
        ticks = data, compute, min(away, compute), min(away_data, data)
        work = WorkSeconds(*(round(tick * TICK_S, 7) for tick in ticks))
        report = events.Progress(LAUNCHED + number, 0, 0, 1, 16, 0.1, 1.0, 0.1, work=work)
        known.progress.append(report)
        fold.add(report)
    assert len(recount._windows(known, 0)) == len(fold._windows[0].past) >= 1

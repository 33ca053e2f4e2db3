"""What the dashboard makes of records: the fold and the view, without files or a server."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.dashboard import view
from bench.dashboard.about import RUNNING, RunCard
from bench.results.live.curves import curves, short
from bench.results.live.history import POINTS, RunHistory
from bench.results.live.series import Series, TimeBin
from bench.results.runfolder import flat
from ddp.core.messages import commands, events, join_events
from ddp.process.codec import Record
from tests.bench.streams import LAUNCHED, closed, make_metrics, make_records, make_spec

SHOWN = (
    *(events.Ready, events.Progress, events.Evaluated, events.Finished, events.Failed, events.Lost, events.Memory),
    *(events.AverageFailed, events.RoundClosed, events.GuardVerdict, events.Resumed, events.Tick, events.Slice),
    *(commands.Evaluate, commands.Plan, commands.Drop, commands.Abort, commands.Join),
)


def folded(records: list[Record]) -> RunHistory:
    history = RunHistory()
    for record in records:
        history.add(record)
    return history


def about(size: int = 2, **changes: object) -> RunCard:
    config = {"model": "mlp", "run_id": "it", "world_size": size, "train": {"epochs": 3}}
    return RunCard("mlp/nccl_cadence/it", RUNNING, config, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "nccl_cadence"])
def test_a_run_is_shown_as_its_result_says(mode: str) -> None:
    spec = make_spec(mode)
    records = make_records(spec)
    state, metrics = folded(records), make_metrics(spec, records)
    shown = view.live(about(spec.world_size), state)
    for ours, theirs in zip(shown["epochs"], metrics.epochs, strict=True):
        assert ours["loss"] == pytest.approx(theirs.train_loss, rel=1e-3)
        assert ours["eval"] == pytest.approx(theirs.eval, rel=1e-3)
        assert (ours["epoch"], ours["samples"], ours["lr"]) == (theirs.epoch, theirs.samples, theirs.lr)
    assert shown["samples"] == metrics.samples
    assert [rank["samples"] for rank in shown["ranks"]] == [metrics.samples // spec.world_size] * spec.world_size
    assert [rank["state"] for rank in shown["ranks"]] == ["finished"] * spec.world_size
    assert shown["parameters"] == metrics.parameters
    row = view.row(about(spec.world_size), state)
    assert (row["progress"], row["epoch"], row["left_s"]) == (1.0, 3, 0.0)
    told = max(record.at for record in records if isinstance(record, events.Progress))
    seconds = told - LAUNCHED - metrics.time_s.startup  # for whoever waits, evaluation takes time
    assert row["samples_per_s"] == pytest.approx(metrics.samples / seconds, rel=0.05)
    finished = view.row(RunCard("x", "ok", metrics=metrics), state)
    assert (finished["eval"], finished["loss"]) == tuple(
        short(value) for value in (metrics.final.eval, metrics.final.train_loss)
    )


def test_half_a_run_knows_how_long_the_rest_takes() -> None:
    records = make_records(make_spec())
    half = view.row(about(), folded(records[: len(records) // 2]))
    assert half["status"] == "running"
    assert 0.4 < half["progress"] < 0.6
    assert half["left_s"] == pytest.approx(half["seconds"] * (1 - half["progress"]) / half["progress"], rel=0.2)


def test_a_slow_rank_is_marked_and_equal_ones_are_not() -> None:
    spec = make_spec(world_size=3)
    state = folded(make_records(spec, step_s=(0.01, 0.02, 0.015)))
    assert [rank["mark"] for rank in view.ranks(state, 3)] == ["fastest", "slowest", None]
    shares = [rank["share"] for rank in view.ranks(state, 3)]
    assert sum(shares) == pytest.approx(1, abs=0.01)
    exact = [events.Progress(LAUNCHED + at, rank, 0, 5, 50, 0.1, 1.0, 0.1) for at in (1, 2) for rank in (0, 1)]
    assert [rank["mark"] for rank in view.ranks(folded(exact), 2)] == [None, None]


def test_a_killed_rank_is_a_fault_at_once_and_takes_part_no_more() -> None:
    records = make_records(make_spec())
    at = next(record.at for record in reversed(records) if isinstance(record, events.Progress))
    trouble = [
        events.Lost(at, 1, "its process is gone (killed by signal 9)"),
        commands.Drop(1, "its process is gone (killed by signal 9)"),
        commands.Join(0, 2, (0,), False, "go on"),
        events.Progress(at + 1, 1, 2, 1, 32, 0.1, 1.0, 0.1),  # what it says later is not heard
    ]
    before = folded(records)
    state = folded([*records, *trouble])
    assert view.live(about(), before)["faults"] == []
    (fault,) = view.live(about(), state)["faults"]
    assert (fault["rank"], fault["kind"], fault["action"]) == (1, "lost", "went on with rank 0")
    assert fault["seconds"] == short(at - before.run.first)
    assert view.row(about(), state)["lost"] == 1
    alive, lost = view.ranks(state, 2)
    assert (lost["state"], lost["share"], alive["share"]) == ("lost", None, 1.0)
    assert state.run.samples == before.run.samples


def test_anchor_and_verdicts_are_kept_with_their_time() -> None:
    said = events.GuardVerdict(LAUNCHED + 3, 7, "level", "nudge", 0.2, 0.2, 0.05, 0.5)
    shown = view.controller(folded([*make_records(make_spec()), said]))
    assert [plan["anchor"] for plan in shown["plans"]] == sorted({plan["anchor"] for plan in shown["plans"]})
    assert shown["plans"][-1]["counts"] == [shown["anchor"]] * 2
    assert (shown["rounds"], len(shown["closed"])) == (18, 18)
    assert [(v["verdict"], v["round"], v["factor"]) for v in shown["verdicts"]] == [("nudge", 7, 0.5)]


def test_a_run_that_was_gone_on_with_counts_its_rest_alone_for_speed() -> None:
    first = [events.Ready(100.0, 0, 1000, 5, "d", "cpu", "none"), events.Progress(110.0, 0, 0, 10, 1000, 9.0, 1.0, 0.1)]
    rest = [events.Resumed(110.0, 0, 1, 1000, "runs/x"), events.Progress(120.0, 0, 1, 10, 500, 9.0, 1.0, 0.1)]
    row = view.row(about(1), folded([*first, *rest]))
    assert (row["samples_per_s"], row["left_s"], row["progress"]) == (50.0, 30.0, 0.5)
    assert "went on from runs/x at 1,000 samples" in view.live(about(1), folded([*first, *rest]))["notes"]


def test_what_was_trained_before_a_resumption_is_no_part_of_a_speed() -> None:
    """Right after it, and in its result, speeds and times were those of both parts together."""
    first = [events.Ready(100.0, 0, 1000, 5, "d", "cpu", "none"), events.Progress(110.0, 0, 0, 10, 1000, 9.0, 1.0, 0.1)]
    rest = [
        events.Resumed(112.0, 0, 1, 1000, "runs/x"),
        events.Ready(114.0, 0, 1000, 5, "d", "cpu", "none"),
        events.Progress(115.0, 0, 1, 10, 100, 0.9, 1.0, 0.1),
    ]
    history = folded([*first, *rest])
    assert view.row(about(1), history)["samples_per_s"] == 100.0
    metrics = make_metrics(make_spec("solo"))
    for known in (None, metrics):
        (shown,) = view.ranks(history, 1, known)
        assert (shown["step_ms"], shown["speed"]) == (90.0, 111.1)


def test_memory_and_processor_are_shown_by_rank() -> None:
    records = [
        events.Ready(100.0, 0, 1000, 5, "d", "cpu", "none"),
        *(events.Memory(100.0 + i, 0, 1000 * i, 0.5 * i) for i in range(1, 5)),
    ]
    (rank,) = view.ranks(folded(records), 1)
    assert (rank["rss_bytes"], rank["peak_rss_bytes"], rank["cpu"]) == (4000, 4000, 0.5)
    assert max(filter(None, curves(folded(records))["ranks"]["0"]["rss_bytes"])) == 4000


def test_a_gpu_is_shown_where_there_is_one() -> None:
    records = [
        *(events.Ready(100.0, rank, 1000, 5, "d", "cuda:0", "none") for rank in (0, 1)),
        *(events.Memory(100.0 + i, 0, 1, 0.1, 70 * i, 0.25) for i in range(1, 5)),
        *(events.Memory(100.0 + i, 1, 1, 0.1) for i in range(1, 5)),
    ]
    lines = curves(folded(records))["ranks"]
    assert set(filter(None, lines["0"]["gpu"])) == {0.25}
    assert max(filter(None, lines["0"]["device_bytes"])) == 280
    assert not any(lines["1"]["gpu"] + lines["1"]["device_bytes"])


def test_a_loss_that_is_not_finite_is_a_gap() -> None:
    records = [events.Progress(101.0 + i, 0, 0, 1, 10, 0.1, None if i == 1 else 5.0, 0.1) for i in range(3)]
    live = view.live(about(1), folded(records))
    assert live["epochs"][0]["loss"] is None
    assert None in live["curves"]["ranks"]["0"]["loss"]
    json.dumps(live, allow_nan=False)


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 1e5), st.floats(0, 100), st.integers(0, 1000)), max_size=60),
)
def test_nothing_is_lost_when_stretches_grow(reports: list[tuple[int, float, float, int]]) -> None:
    series, total = Series(), 0
    for rank, start, seconds, samples in reports:
        series.add(rank, start, start + seconds, TimeBin(seconds, 1, samples))
        total += samples
    for _ in range(2):
        assert series.length <= series.limit
        cells = [cell for column in series.ranks.values() for cell in column]
        assert sum(cell.samples for cell in cells) == pytest.approx(total)
        assert sum(cell.steps for cell in cells) == pytest.approx(len(reports))
        series.halve()


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of(*map(st.builds, SHOWN)), max_size=12), st.integers(0, 5))
def test_no_record_can_break_it(stream: list[Record], size: int) -> None:
    state = folded(stream)
    for status in (RUNNING, "left"):
        one = RunCard("a/b/c", status, {"world_size": size, "train": {"epochs": 2}})
        json.dumps([view.row(one, state), view.live(one, state), view.about(one)], allow_nan=False)


def test_records_that_drop_every_rank_are_shown_all_the_same() -> None:
    lost = [record for rank in (0, 1, 1) for record in (events.Lost(101.0, rank, "gone"), commands.Drop(rank, "gone"))]
    assert [fault["rank"] for fault in view.live(about(), folded(lost))["faults"]] == [0, 1, 1]


def test_ranks_that_are_lost_before_and_after_a_resume_are_all_shown() -> None:
    def lost(at: float, rank: int) -> list[Record]:
        return [events.Lost(at, rank, "gone"), commands.Drop(rank, "its process is gone")]

    stream = [*lost(101.0, 1), events.Resumed(102.0, 0, 1, 8, "runs/before"), *lost(103.0, 0), *lost(104.0, 0)]
    faults = view.live(about(), folded(stream))["faults"]
    assert [(fault["rank"], fault["action"]) for fault in faults] == [
        (1, "went on with rank 0"),
        (0, "went on with rank 1"),
        (0, ""),
    ]


def test_what_is_kept_is_bounded() -> None:
    state = folded([closed(100.0 + i, i, (1, 1), (0.1, 0.1), 0.01, (0.1, math.nan)) for i in range(5 * POINTS)])
    assert len(state.closed) <= POINTS
    assert (state.rounds, state.closed[-1].round, state.closed[0].round) == (5 * POINTS, 5 * POINTS - 1, 0)
    few = folded([closed(100.0 + i, i, (1, 1), (0.1, 0.1), 0.01, (0.1, math.nan)) for i in range(POINTS)])
    assert [point.round for point in few.closed] == list(range(POINTS))


def test_a_configuration_is_shown_as_it_could_be_said() -> None:
    config = {"a": 1, "b": {"c": [1.0, 0.5], "d": None, "e": True, "f": {}}, "g": "x"}
    said = [("a", "1"), ("b.c", "[1.0, 0.5]"), ("b.d", "null"), ("b.e", "true"), ("b.f", "{}"), ("g", "x")]
    assert flat(config) == said


def test_a_rank_that_joins_later_is_absent_until_then() -> None:
    """It was `starting` from the beginning to the end, and had no device."""
    begun = [record for record in make_records(make_spec("nccl_cadence")) if getattr(record, "rank", None) != 1][:8]
    history = folded([*begun, commands.Plan((5, 5), (0, 0), False, 1, False, 5, "it begins")])

    def second() -> tuple[str, str | None]:
        row = view.live(about(), history)["ranks"][1]
        return row["state"], row["device"]

    assert second() == ("absent", None)
    at = history.run.now
    history.add(join_events.Joining(at + 1, 1, 64, "d", 1, "cpu", "memory"))
    assert second() == ("absent", None), "it waits to be let in"
    history.add(join_events.Joined(at + 2, 1, 0))
    assert second() == ("ready", "cpu")
    history.add(events.Progress(at + 3, 1, 0, 1, 10, 0.1, 5.0, 0.1))
    assert second() == ("training", "cpu")
    assert [row["state"] for row in view.live(about(), folded([]))["ranks"]] == ["starting"] * 2

from __future__ import annotations

import json
import math
from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.paths import METRICS_SCHEMA
from bench.results.analyze import analyze
from bench.results.schema import Metrics, RankTime, json_schema
from ddp.core.messages import commands, events
from ddp.process.codec import Record
from tests.bench.streams import LAUNCHED, MODES, closed, make_metrics, make_records, make_spec

FRACTIONS = ("compute", "data", "comm", "wait", "eval", "checkpoint", "other")


def total(rank: RankTime) -> float:
    return sum(getattr(rank, name) for name in FRACTIONS)


def test_exported_schema_is_current() -> None:
    assert METRICS_SCHEMA.read_text() == json_schema(), "run: python -m bench.results.schema"


def test_what_ranks_could_do_alone_is_not_known_where_collectives_hide_in_their_computing() -> None:
    """PyTorch's engines exchange inside the backward pass: what is left of the exchange would be called efficient."""
    spec = make_spec("nccl_sync")
    records = make_records(spec)
    hidden = [record for record in records if getattr(record, "kind", "") != "exchange"]
    assert len(hidden) < len(records)
    seen, unseen = (make_metrics(spec, each) for each in (records, hidden))
    assert seen.throughput.efficiency is not None
    assert (unseen.throughput.efficiency, unseen.throughput.steady) == (None, None)
    assert unseen.throughput.samples_per_s == pytest.approx(seen.throughput.samples_per_s)
    assert any("collectives lie inside" in line for line in unseen.warnings)
    assert not any("collectives lie inside" in line for line in seen.warnings)


def test_every_number_of_the_schema_has_a_description() -> None:
    def bare(node: object, name: str) -> list[str]:
        if not isinstance(node, dict):
            return []
        found = [bare(value, f"{name}.{key}") for key, value in node.get("properties", {}).items()]
        kinds = {option.get("type") for option in node.get("anyOf", [node])}
        mine = [name] if kinds & {"number", "integer"} and not node.get("description") else []
        return mine + [entry for group in found for entry in group]

    schema = json.loads(json_schema())
    nodes = {"Metrics": schema, **schema["$defs"]}
    assert [entry for name, node in nodes.items() for entry in bare(node, name)] == []


@pytest.mark.parametrize("mode", MODES)
def test_metrics_of_every_mode_fit_the_schema_and_sum_to_one(mode: str) -> None:
    metrics = make_metrics(make_spec(mode))
    jsonschema.validate(json.loads(metrics.model_dump_json()), json.loads(json_schema()))
    assert all(total(rank) == pytest.approx(1, abs=1e-9) for rank in metrics.breakdown)
    assert len(metrics.breakdown) == metrics.world_size
    assert Metrics.model_validate_json(metrics.model_dump_json()) == metrics


@pytest.mark.parametrize(("higher", "best", "epoch"), [(True, 0.9, 1), (False, 0.2, 0)])
def test_the_best_value_and_the_first_epoch_that_had_it(higher: bool, best: float, epoch: int) -> None:
    values = (0.2, 0.9, 0.9, 0.5)
    spec = replace(make_spec("solo", epochs=len(values)), higher_is_better=higher)
    records = [
        replace(record, metric_sum=values[record.epoch] * record.samples)
        if isinstance(record, events.Evaluated)
        else record
        for record in make_records(spec)
    ]
    final = make_metrics(spec, records).final
    assert (final.best, final.best_epoch, final.eval) == (pytest.approx(best), epoch, pytest.approx(0.5))


def test_how_each_rank_got_at_its_data_is_told() -> None:
    spec = make_spec("nccl_sync", epochs=1)
    kinds = ("resident", "streaming")
    records = [
        replace(record, loader=kinds[record.rank]) if isinstance(record, events.Ready) else record
        for record in make_records(spec)
    ]
    assert make_metrics(spec, records).loader == ["resident", "streaming"]
    assert make_metrics(spec).loader == [], "a recording older than the field"


def test_schema_refuses_nan_and_strangers() -> None:
    body = make_metrics(make_spec()).model_dump()
    with pytest.raises(ValueError, match="finite"):
        Metrics.model_validate(body | {"lr": math.nan})
    with pytest.raises(ValueError, match="Extra inputs"):
        Metrics.model_validate(body | {"surprise": 1})


def test_time_before_the_last_arrival_is_waiting_and_the_rest_is_on_the_wire() -> None:
    spec = make_spec("nccl_sync", epochs=1)
    records: list[Record] = [
        events.Ready(100.0, 0, 10, 5, "d", "cpu", "gloo"),
        events.Ready(100.0, 1, 10, 5, "d", "cpu", "gloo"),
        events.Slice(100.0, 0, "forward", 2.0),
        events.Slice(100.0, 1, "forward", 7.0),
        events.Slice(102.0, 0, "exchange", 8.0, 1, 64),
        events.Slice(107.0, 1, "exchange", 3.0, 1, 64),
        events.Finished(110.0, 0, "e", 1, 0),
        events.Finished(110.0, 1, "e", 1, 0),
    ]
    metrics = make_metrics(spec, records)
    first, second = metrics.breakdown
    assert (first.compute, first.wait, first.comm) == pytest.approx((0.2, 0.5, 0.3))
    assert (second.compute, second.wait, second.comm) == pytest.approx((0.7, 0.0, 0.3))
    assert (metrics.sync.kind, metrics.sync.count, metrics.sync.bytes) == ("gradients", 1, 128)
    assert metrics.sync.ms_p50 == pytest.approx(3000)


@pytest.mark.parametrize("evaluation", [0.0, 3.0, 50.0])
def test_the_clock_stands_still_during_evaluation(evaluation: float) -> None:
    spec = make_spec("solo", epochs=2)
    records: list[Record] = [events.Ready(101.0, 0, 32, 5, "d", "cpu", "none")]
    now = 101.0
    for epoch in range(2):
        now += 4.0
        records.append(events.Progress(now, 0, epoch, 1, 32, 4.0, 32.0, 0.1))
        now += evaluation
        records.append(events.Evaluated(now, 0, epoch, 10, 10.0, 9.0, evaluation))
    records.append(events.Finished(now, 0, "e", 1, 0))
    metrics = make_metrics(spec, records)
    assert [epoch.seconds for epoch in metrics.epochs] == pytest.approx([4.0, 8.0])
    times = metrics.time_s
    assert (times.startup, times.train, times.eval) == pytest.approx((1.0, 8.0, 2 * evaluation))
    assert times.startup + times.train + times.eval + times.shutdown == pytest.approx(times.total)
    assert metrics.throughput.samples_per_s == pytest.approx(64 / 8)
    assert metrics.throughput.efficiency == pytest.approx(1.0)


def test_throughput_adds_up_and_is_held_against_the_ranks_own_speeds() -> None:
    spec = make_spec("nccl_cadence", 4)
    metrics = make_metrics(spec, make_records(spec, step_s=(0.01, 0.01, 0.02, 0.04)))
    rates = metrics.throughput
    assert sum(rates.per_rank) == pytest.approx(rates.samples_per_s)
    assert rates.efficiency is not None
    assert 0.2 < rates.efficiency < 0.6
    alone = make_metrics(make_spec("solo")).throughput.efficiency
    assert alone is not None
    assert alone > 0.9


def test_epochs_are_weighted_by_samples() -> None:
    spec = make_spec("nccl_cadence", epochs=1)
    records: list[Record] = [
        events.Ready(100.0, 0, 40, 5, "d", "cpu", "gloo"),
        events.Ready(100.0, 1, 40, 5, "d", "cpu", "gloo"),
        events.Progress(101.0, 0, 0, 1, 30, 1.0, 30.0, 0.1),
        events.Progress(101.0, 1, 0, 1, 10, 1.0, 50.0, 0.1),
        events.Evaluated(102.0, 0, 0, 60, 60.0, 50.0, 1.0),
        events.Evaluated(102.0, 1, 0, 40, 140.0, 45.0, 1.0),
    ]
    (epoch,) = make_metrics(spec, records).epochs
    assert (epoch.train_loss, epoch.eval, epoch.eval_loss) == pytest.approx((2.0, 0.95, 2.0))
    assert (epoch.samples, epoch.seconds) == (40, pytest.approx(1.0))
    (part,) = make_metrics(spec, records[:-1]).epochs
    assert part.eval is None, "half of the test set is no evaluation"


def test_recorded_scalars_are_means_over_calls_and_null_where_not_finite() -> None:
    spec = make_spec("nccl_cadence", epochs=1)
    records: list[Record] = [
        events.Ready(100.0, 0, 40, 5, "d", "cpu", "gloo"),
        events.Ready(100.0, 1, 40, 5, "d", "cpu", "gloo"),
        events.Progress(101.0, 0, 0, 3, 24, 1.0, 20.0, 0.1, (("acc", 2.0, 3), ("norm", None, 3))),
        events.Progress(101.5, 0, 0, 1, 8, 1.0, 20.0, 0.1, (("acc", 1.0, 1),)),
        events.Progress(102.0, 1, 0, 1, 8, 1.0, 20.0, 0.1, (("acc", 0.0, 1), ("only", 7.0, 1))),
    ]
    metrics = make_metrics(spec, records)
    (epoch,) = metrics.epochs
    assert epoch.scalars == {"acc": pytest.approx(0.6), "norm": None, "only": 7.0}
    assert epoch.scalars_per_rank == [{"acc": 0.75, "norm": None}, {"acc": 0.0, "only": 7.0}]
    assert metrics.nonfinite == ["epochs.0.scalars.norm", "epochs.0.scalars_per_rank.0.norm"]
    assert Metrics.model_validate_json(metrics.model_dump_json()) == metrics


def test_a_result_from_before_there_were_scalars_is_read() -> None:
    body = make_metrics(make_spec()).model_dump()
    for epoch in body["epochs"]:
        del epoch["scalars"], epoch["scalars_per_rank"]
    assert Metrics.model_validate(body).epochs[0].scalars == {}


def test_a_loss_that_is_not_finite_is_null_flagged_and_diverged() -> None:
    spec = make_spec("solo", epochs=1)
    records = [replace(r, loss_sum=None) if isinstance(r, events.Progress) else r for r in make_records(spec)]
    metrics = make_metrics(spec, records)
    assert (metrics.status, metrics.final.train_loss) == ("diverged", None)
    assert metrics.nonfinite == ["epochs.0.train_loss"]
    assert metrics.error


def test_schedule_is_that_of_the_plans_and_windows() -> None:
    metrics = make_metrics(make_spec("nccl_cadence"))
    assert metrics.elche is not None
    assert (metrics.elche.anchor, metrics.elche.counts) == (10, [10, 10])
    assert [plan.anchor for plan in metrics.elche.plans] == [5, 6, 7, 8, 9, 10]
    assert len(metrics.elche.windows) == 18
    assert metrics.elche.windows[0].ms_per_batch == pytest.approx([10, 10], rel=0.2)
    assert (metrics.sync.kind, metrics.sync.count) == ("parameters", 18)
    assert make_metrics(make_spec("nccl_sync")).elche is None
    assert make_metrics(make_spec("solo")).sync.kind == "none"


@pytest.mark.parametrize("kept", [0, 1, 3, 40, 200])
def test_a_run_cut_short_is_described_as_far_as_it_went(kept: int) -> None:
    spec = make_spec("nccl_cadence")
    records = [*make_records(spec)[:kept], events.Failed(140.0, 1, "boom", "Traceback"), events.Lost(141.0, 0, "gone")]
    metrics = make_metrics(spec, records, status="failed")
    assert [(fault.rank, fault.kind) for fault in metrics.faults] == [(1, "failed"), (0, "lost")]
    assert all(total(rank) == pytest.approx(1) for rank in metrics.breakdown)
    assert metrics.params_sha256 is None


def test_ranks_that_end_differently_are_noted() -> None:
    spec = make_spec("nccl_cadence")
    records = [replace(r, digest=f"d{r.rank}") if isinstance(r, events.Finished) else r for r in make_records(spec)]
    metrics = make_metrics(spec, records)
    assert metrics.params_sha256 is None
    assert any("different parameters" in warning for warning in metrics.warnings)


def test_gross_overlap_is_a_defect() -> None:
    spec = make_spec("solo")
    records = [events.Ready(100.0, 0, 10, 5, "d", "cpu", "none"), *[events.Slice(101.0, 0, "forward", 1.0)] * 2]
    with pytest.raises(AssertionError, match="overlap"):
        make_metrics(spec, records)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["data", "forward", "exchange", "copy", "wait", "evaluate", "slowdown", "checkpoint"]),
            st.floats(0, 5),
            st.floats(0, 1),
            st.integers(0, 3),
        ),
        max_size=30,
    ),
    st.integers(1, 3),
)
def test_breakdown_sums_to_one_whatever_the_slices(parts: list[tuple[str, float, float, int]], world: int) -> None:
    spec = make_spec("nccl_cadence", world)
    records: list[Record] = [events.Ready(100.0, rank, 10, 5, "d", "cpu", "gloo") for rank in range(world)]
    now = [100.0] * world
    for index, (kind, seconds, gap, seq) in enumerate(parts):
        rank = index % world
        records.append(events.Slice(now[rank] + gap, rank, kind, seconds, seq))
        now[rank] += gap + seconds
    metrics = make_metrics(spec, records)
    for rank_time in metrics.breakdown:
        assert total(rank_time) == pytest.approx(1, abs=1e-9)
        assert all(getattr(rank_time, name) >= 0 for name in FRACTIONS)


def test_commands_take_the_time_of_the_event_before_them() -> None:
    spec = make_spec("nccl_cadence")
    plan = commands.Plan((3, 3), (0, 0), False, 1, False, 3, "why")
    records: list[Record] = [events.Tick(104.0), plan]
    metrics = analyze(spec, records, status="killed", launched=LAUNCHED, ended=105.0, env={}, git={})
    assert metrics.elche is not None
    assert metrics.elche.plans[0].seconds == pytest.approx(4.0)


def test_samples_of_an_epoch_are_those_trained_before_its_evaluation() -> None:
    spec = make_spec("cpu_async", epochs=2)
    records: list[Record] = [
        events.Ready(100.0, 0, 40, 5, "d", "cpu", "memory"),
        events.Ready(100.0, 1, 40, 5, "d", "cpu", "memory"),
        events.Progress(101.0, 0, 0, 1, 20, 1.0, 20.0, 0.1),
        events.Progress(101.0, 1, 0, 1, 20, 1.0, 20.0, 0.1),
        events.Progress(101.5, 1, 1, 1, 8, 0.5, 8.0, 0.1),  # ran ahead into the next epoch
        events.Evaluated(102.0, 0, 0, 50, 50.0, 45.0, 0.5),
        events.Evaluated(103.0, 1, 0, 50, 50.0, 45.0, 0.5),
        events.Progress(104.0, 0, 1, 1, 32, 1.0, 32.0, 0.1),
    ]
    first, second = make_metrics(spec, records).epochs
    assert (first.samples, second.samples) == (48, 80)
    assert (first.eval, second.eval) == (pytest.approx(0.9), None)


def test_percentiles_of_the_cost_of_rounds() -> None:
    spec = make_spec("nccl_cadence")
    rounds: list[Record] = [closed(101.0 + n, n, (1, 1), (0.1, 0.1), n / 1000, (0.1, 0.3)) for n in range(101)]
    sync = make_metrics(spec, rounds).sync
    assert (sync.count, sync.ms_p50, sync.ms_p95) == (101, pytest.approx(50.0), pytest.approx(95.0))
    assert sync.divergence_p50 == pytest.approx(0.2)

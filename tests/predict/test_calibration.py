"""What a prediction rests on: what of a run its costs are, what lies outside of it and is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.predict.calibration import Calibration, calibrated
from bench.predict.cells import distance, near
from bench.predict.evidence import metrics_of, own_cell
from bench.predict.grid import anchored
from bench.predict.play import bytes_of, costs_of, play
from bench.predict.predicted_cell import samples_of
from bench.predict.spec import beyond
from bench.results.analysis.stream import sort
from ddp.core.messages.event_parts import StepWork
from ddp.core.messages.events import Finished, Memory, Progress, Ready, Slice
from ddp.core.network.link_costs import meeting_s
from ddp.core.network.links import parse
from tests.bench.streams import LAUNCHED, make_records, make_spec
from tests.predict.test_predict import CONFIG, calibration, repeated


def test_what_lies_outside_is_said() -> None:
    own = calibration()
    cell = own_cell(own)
    assert beyond(cell, own) == []
    far = beyond(replace(cell, ranks=64, policy="cadence", links=parse("ib")), own)
    assert [line.split()[0] for line in far] == ["far", "each", "other", "policy", "13,654"]
    assert [line.split()[0] for line in beyond(replace(cell, ranks=3, cores=2), own)] == ["more", "3"]
    assert [line.split()[0] for line in beyond(replace(cell, ranks=3, cores=3), own)] == ["more"]
    assert beyond(replace(cell, speeds=(1.0, 0.2)), own) == ["slower ranks than the calibrated 1"]


def test_other_speeds_settings_and_far_fewer_ranks_are_said_and_widen_the_interval() -> None:
    own = calibration((0.01, 0.03, 0.01, 0.03, 0.01, 0.03, 0.01, 0.03), mode="nccl_cadence")
    source, cell = repeated(own, 0.0, 0.1), own_cell(own)
    changes = {"speeds": (1.0, 0.9), "settings": (("anchor", 3),), "healed": (1,), "ranks": 2}
    slowed = calibration((0.01, 0.03), mode="nccl_cadence", speeds=(1.0, 0.5))
    for name, value in changes.items():
        base, of = (own_cell(slowed), repeated(slowed, 0.0, 0.1)) if name == "healed" else (cell, source)
        changed = replace(base, **{name: value})  # type: ignore[arg-type]
        assert (near(base, of), near(changed, of)) == (True, False), name
        assert beyond(changed, of.calibration), name
        assert distance(changed, of) >= 1, name


@pytest.mark.parametrize("mode", ["nccl_sync", "nccl_cadence"])
def test_links_are_not_counted_twice(mode: str) -> None:
    """A run over links predicts itself, and links without a delay cost what its collectives took beyond its own."""
    words = ["1ms/1gbit"]
    spec = make_spec(
        mode, 2, config=CONFIG | {"policy": {"name": mode.split("_")[1]}, "cluster": {"speeds": [], "links": words}}
    )
    own = calibrated(sort(make_records(spec, step_s=(0.01, 0.01)), LAUNCHED), spec, LAUNCHED)
    links = parse(words, 2)
    assert links is not None
    cost = meeting_s(links, (0, 1), own.bytes, own.collectives)
    costs = costs_of(own_cell(own), own, 0)
    assert costs.wire is not None
    assert np.mean([costs.wire((0, 1), number) for number in range(200)]) == pytest.approx(0.004, rel=0.1)
    fast = costs_of(replace(own_cell(own), links=parse("nvlink", 2)), own, 0)
    assert fast.wire is not None
    assert np.mean([fast.wire((0, 1), number) for number in range(200)]) == pytest.approx(0.004 - cost, rel=0.1)


def test_buckets_behind_the_backward_pass_are_bytes_too() -> None:
    spec = make_spec("nccl_sync", 2, config=CONFIG)
    stream = sort(make_records(spec, step_s=(0.01, 0.01)), LAUNCHED)
    plain = calibrated(stream, spec, LAUNCHED)
    exchange = stream.slices.where(stream.slices.kind == "exchange")
    hidden = replace(exchange, seq=exchange.seq + 10**6, bytes=7 * exchange.bytes)
    both = calibrated(replace(stream, behind=hidden), spec, LAUNCHED)
    assert (both.bytes, both.collectives, both.per_step) == (8 * plain.bytes, 2 * plain.collectives, plain.per_step)


def test_processor_time_besides_the_work_of_steps_is_measured() -> None:
    """By hand: each step of 10 ms uses 15 ms of processors, as recorded at some steps; nothing is known without records."""
    spec = make_spec("nccl_sync", 2, config=CONFIG)
    records = list(make_records(spec, step_s=(0.01, 0.01)))
    assert calibrated(sort(records, LAUNCHED), spec, LAUNCHED).beside_s == 0.0
    for rank in range(2):
        begins = [
            each.at for each in records if isinstance(each, Slice) and (each.rank, each.kind) == (rank, "forward")
        ]
        records += [Memory(at, rank, 1, 0.015 * step) for step, at in enumerate(begins) if step % 7 == 0]
    stream = sort(sorted(records, key=lambda each: getattr(each, "at", 0.0)), LAUNCHED)
    assert calibrated(stream, spec, LAUNCHED).beside_s == pytest.approx(0.005, rel=0.1)


def test_ranks_that_share_cores_evaluate_longer() -> None:
    """Eight on two cores took four times as long as predicted."""
    own = calibration()
    alone, shared = (costs_of(replace(own_cell(own), ranks=8, cores=cores), own, 0) for cores in (None, 2))
    assert shared.evaluate_s(0) == pytest.approx(4 * alone.evaluate_s(0))


def test_an_epoch_of_twenty_steps_a_rank_is_played_as_it_is() -> None:
    """It was made longer, and a run of two windows, in which speeds are not known yet, was predicted 28 % too fast."""
    own = calibration()
    epochs, batch = own.spec.epochs, own.spec.batch_size
    for steps, played in ((24, 24), (4, 20)):
        short = replace(own, samples=steps * 8 * batch // epochs)
        assert samples_of(replace(own_cell(short), ranks=8), short) == -(-played * 8 * batch // epochs)


def test_more_ranks_of_a_run_by_steps_train_more_samples() -> None:
    """They shared those of the run, so the prediction was shorter than the configuration that it wrote."""
    plain = calibration()
    own = replace(plain, spec=replace(plain.spec, config=plain.spec.config | {"train": {"steps": 60}}))
    cell = replace(own_cell(own), ranks=3)
    assert samples_of(cell, own) == own.samples // 2 * 3
    assert beyond(cell, own) == beyond(cell, plain)
    played = [metrics_of(each, own, play(each, own, 0)).sync.bytes for each in (own_cell(own), cell)]
    assert played[1] == played[0] // 2 * 3


def test_a_policy_that_follows_the_learning_rate_gets_that_of_the_run() -> None:
    """It got one of the simulator's own, which falls from 0.1, so its windows were others than the run's."""
    own = calibration(mode="nccl_cadence")
    assert dict(anchored(replace(own_cell(own), policy="qsr", settings=()), 7).settings) == {"base": 7}
    half = replace(own, rates=(np.array([0.5, 1.0]), np.array([0.02, 0.0])))
    rate = costs_of(own_cell(half), half, 0).rate
    assert [rate(fraction) for fraction in (0.1, 0.5, 0.75, 1.0)] == pytest.approx([0.02, 0.02, 0.01, 0.0])
    assert max(own.rates[1]) == max(record.lr for record in make_records(own.spec) if isinstance(record, Progress))


def half_frozen(mode: str, width: int) -> Calibration:
    """Of a run whose model has 600 parameters that are trained, and 400 that are not."""
    spec = make_spec(mode, 2, config=CONFIG | {"policy": {"name": mode.split("_")[1]}})
    work = StepWork((), parameter_bytes=1000 * width)
    records = [
        replace(record, parameters=1000, frozen=400)
        if isinstance(record, Ready)
        else replace(record, work=work)
        if isinstance(record, Finished)
        else record
        for record in make_records(spec, step_s=(0.01, 0.01))
    ]
    own = calibrated(sort(records, LAUNCHED), spec, LAUNCHED)
    measured = {"nccl_sync": 600 * width, "nccl_cadence": 8000, "cpu_cadence": 1000 * width}
    return replace(own, bytes=measured[mode])


@pytest.mark.parametrize("width", [4, 8])
@pytest.mark.parametrize("policy", ["sync", "cadence", "async", "qsr"])
@pytest.mark.parametrize("mode", ["nccl_sync", "nccl_cadence", "cpu_cadence"])
def test_a_predicted_cell_sends_what_its_policy_sends(mode: str, policy: str, width: int) -> None:
    """Averages were as small as the gradients of the run, and gradients as large as all parameters in four bytes each."""
    own = half_frozen(mode, width)
    cell = replace(own_cell(own), policy=policy, settings=())
    metrics = metrics_of(cell, own, play(cell, own, 0))
    size = 2 * 1000 * width if own.snapshots else 600 * width if policy == "sync" else 8000
    assert metrics.sync.count
    assert metrics.sync.bytes == metrics.sync.count * 2 * size
    assert metrics.frozen == 400


def test_gradients_are_predicted_without_the_collective_of_counters() -> None:
    """Steps over a slow link took twice as long as in real runs, if averages of the calibrated one had two collectives."""
    nothing = {"wires": np.zeros(9), "rounds": np.zeros(9)}
    own, links = replace(half_frozen("nccl_cadence", 4), collectives=2.0, **nothing), parse("wan_1g_30ms", 2)
    assert links is not None
    for policy, count in (("sync", 1), ("async", 2)):
        cell = replace(own_cell(own), policy=policy, settings=(), links=links)
        wire = costs_of(cell, own, 0).wire
        assert wire is not None
        assert wire((0, 1), 7) == pytest.approx(meeting_s(links, (0, 1), bytes_of(cell, own), count, 7))

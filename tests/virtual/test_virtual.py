"""Engine `virtual`: the bits of real processes, rank by rank; the same up to roundings for many ranks at once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bench.config.config_checks import world_size_of
from ddp.core.messages.events import Averaged, Evaluated, Finished, Progress, Trained
from ddp.core.network.link_costs import collective_s
from ddp.core.network.links import parse
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.virtual_time import VirtualTime
from ddp.data.source import TensorSource
from ddp.replica.task import Task
from ddp.tally import MODULUS
from ddp.virtual import engine
from ddp.virtual.eligibility import unfit
from tests.runtime import toy
from tests.runtime.conftest import Play, Played
from tests.runtime.training import controlled
from tests.slow import few, slow
from tests.spread import spread
from tests.virtual.recorded import RecordedRun, evaluations

TOLERANCE = 1e-12
"""Relative, in double precision: of parameters and losses of the vectorised path to those of the sequential one."""


def drawing() -> Task:
    """A model that draws, with statistics of its batches and a last batch that is smaller."""

    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.3), nn.Linear(12, 2))

    return replace(toy.task(optimizer="AdamW", lr=0.01, samples=101), model=net)


def double(optimizer: str, **settings: Any) -> Task:
    def data() -> TensorSource:
        inputs, labels = toy.data()
        return TensorSource(inputs.double(), labels)

    task = replace(toy.task(schedule=lambda seen: 1 - seen / 2), train_data=data, eval_data=data)
    maker = partial(getattr(torch.optim, optimizer), **settings)
    return replace(task, model=lambda: toy.net(norm=False).double(), optimizer=maker)


@pytest.mark.parametrize(("size", "backend"), [*few([1, 2], ["nccl", "cpu"]), *slow((8, "nccl"), (8, "cpu"))])
def test_synchronous_bits_are_those_of_processes(play: Play, backend: str, size: int) -> None:
    real = play("sync", backend, drawing, world_size=size, epochs=1)
    mine = play("sync", backend, drawing, world_size=size, epochs=1, engine=engine)
    assert mine.digests == real.digests
    assert len(mine.digests) == 1
    assert evaluations(mine.records) == evaluations(real.records)


@pytest.mark.parametrize(("policy", "backend"), [("cadence", "nccl"), *slow(("cadence", "cpu")), ("async", "cpu")])
def test_a_recorded_run_is_trained_again_to_its_bits(play: Play, policy: str, backend: str) -> None:
    speeds = (1.0, 0.5, 0.7)
    real = play(policy, backend, drawing, world_size=3, speeds=speeds, keep_state=False)
    begins = {rank: begun(real.job.scratch / f"slices-{rank}.jsonl") for rank in range(3)}
    records = list(zip(real.times, real.records, strict=True))
    scratch = real.job.scratch / "again"
    scratch.mkdir()
    again_job = replace(real.job, scratch=scratch)
    again = RecordedRun(again_job, records, begins)
    assert again.train() == {event.rank: event.digest for event in real.of(Finished)}
    assert evaluations(again.events) == evaluations(real.records)
    with pytest.raises(ValueError, match="less than it says was trained"):
        RecordedRun(
            replace(real.job, scratch=scratch), [r for r in records if type(r[1]).__name__ != "Train"], begins
        ).train()


def begun(path: Path) -> list[float]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return sorted(line["at"] for line in lines if line.get("kind") == "data")


VARIANTS: dict[str, tuple[Callable[[], Task], dict[str, Any]]] = {
    "sgd": (partial(double, "SGD", lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), {}),
    "adamw": (partial(double, "AdamW", lr=0.01), {"max_grad_norm": 0.5}),
    "outer": (
        partial(double, "Adam", lr=0.01, weight_decay=0.1),
        {"averaging": Averaging(outer="nesterov", gamma=0.5)},
    ),
    "elastic": (partial(double, "SGD", lr=0.1), {"averaging": Averaging(elastic=0.5)}),
}


@pytest.mark.parametrize(
    ("cell", "variant"), spread([("sync", "nccl"), ("cadence", "nccl"), ("async", "cpu"), ("qsr", "cpu")], VARIANTS)
)
def test_many_at_once_are_as_one_by_one(play: Play, cell: tuple[str, str], variant: str) -> None:
    (policy, backend), (task, more) = cell, VARIANTS[variant]

    def run(path: str) -> Played:
        virtual = VirtualTime(path=path, steps="lognormal:0.2")
        return play(policy, backend, task, world_size=5, engine=engine, virtual=virtual, **more)

    one, many = run("sequential"), run("vectorised")
    for rank in range(5):
        for name, value in one.state(rank).items():
            torch.testing.assert_close(many.state(rank)[name], value, rtol=TOLERANCE, atol=TOLERANCE)
    assert schedule(one) == schedule(many), "the same happens at the same virtual times"
    for kind in (Progress, Evaluated):
        losses = ([event.loss_sum for event in played.of(kind)] for played in (one, many))
        assert next(losses) == pytest.approx(next(losses), rel=TOLERANCE)
    assert read(one) == read(many)
    for played in (one, many):
        assert lost(played, Trained) == pytest.approx(lost(played, Progress), rel=TOLERANCE)


def lost(played: Played, kind: type[Progress] | type[Trained]) -> dict[tuple[int, int], float]:
    """The sum of the losses of each rank in each epoch."""
    sums = defaultdict[tuple[int, int], float](float)
    for event in played.of(kind):
        assert event.loss_sum is not None
        sums[event.rank, event.epoch] += event.loss_sum
    return dict(sums)


def read(played: Played) -> dict[tuple[int, int], list[int]]:
    """What each rank was given in each epoch, as the record tells it."""
    sums = defaultdict[tuple[int, int], list[int]](lambda: [0] * 4)
    for event in played.of(Trained):
        given = event.samples, event.content, event.placed, event.order
        assert None not in given
        assert (event.content, event.placed) == (event.wanted, event.placed_wanted)
        own = sums[event.rank, event.epoch]
        own[:] = [(before + (more or 0)) % MODULUS for before, more in zip(own, given, strict=True)]
    return dict(sums)


def schedule(played: Played) -> list[tuple[str, int | None, float]]:
    first = played.times[0]
    return [
        (type(record).__name__, getattr(record, "rank", None), round(at - first, 9))
        for at, record in zip(played.times, played.records, strict=True)
    ]


@pytest.mark.parametrize("wire", ["float64", "float32"])
def test_slices_have_the_bytes_that_averages_hand_over(play: Play, wire: str) -> None:
    played = play("cadence", "nccl", world_size=2, engine=engine, averaging=Averaging(wire=wire))
    lines = (played.job.scratch / "slices-1.jsonl").read_text().splitlines()
    sizes = [line["bytes"] for line in map(json.loads, lines) if line["kind"] == "exchange"]
    assert sizes == [event.bytes for event in played.of(Averaged) if event.rank == 1]


def test_speeds_and_links_are_costs_in_virtual_time(play: Play) -> None:
    def seconds(**more: Any) -> float:
        times = play("cadence", "nccl", world_size=4, epochs=1, engine=engine, **more).times
        return times[-1] - times[0]

    plain = seconds()
    assert seconds(speeds=(0.5,) * 4) == pytest.approx(2 * plain, rel=0.05)
    assert seconds(virtual=VirtualTime(step_s=0.1)) == pytest.approx(10 * plain, rel=0.15)


@pytest.mark.parametrize("backend", ["nccl", "cpu"])
def test_links_change_times_and_no_bits(play: Play, backend: str) -> None:
    """Three ranks, two of them on an island: each step waits for the link, and trains what it would have trained."""
    links = parse(["wan_1g_30ms/jitter2ms", "0-1:ib"], 3)

    def run(**more: Any) -> tuple[float, Played]:
        played = play("sync", backend, drawing, world_size=3, epochs=1, engine=engine, **more)
        return played.times[-1] - played.times[0], played

    (near, plain), (far, over) = run(), run(links=links)
    assert over.digests == plain.digests
    assert len(over.digests) == 1
    assert evaluations(over.records) == evaluations(plain.records)
    rounds = max(len(plain.of(Progress)), len(plain.of(Averaged))) // 3
    assert far - near >= rounds * 0.03
    assert run(links=links)[0] == pytest.approx(far)


@pytest.mark.parametrize("path", ["sequential", "vectorised"])
def test_averages_over_links_take_the_time_of_the_bytes_that_they_hand_over(play: Play, path: str) -> None:
    links, task = parse(["1ms/1mbit"], 3), lambda: replace(toy.task(), model=lambda: toy.net(norm=False))
    more: dict[str, Any] = {"links": links, "virtual": VirtualTime(path=path), "engine": engine}
    played = play("cadence", "nccl", task, world_size=3, epochs=1, **more)
    slices = map(json.loads, (played.job.scratch / "slices-1.jsonl").read_text().splitlines())
    took = [(each["seconds"], each["bytes"]) for each in slices if each["kind"] == "exchange"]
    assert took
    for seconds, size in took:
        assert seconds >= collective_s(links, (0, 1, 2), size) * 0.999


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (drawing, "buffers"),
        (partial(double, "RMSprop", lr=0.1), "RMSprop is neither SGD, Adam nor AdamW"),
        (partial(double, "SGD", lr=0.1, momentum=0.9, dampening=0.1), "dampening=0.1"),
        (partial(double, "SGD", lr=0.1), ""),
    ],
)
def test_what_cannot_be_done_for_many_at_once_is_said(play: Play, task: Callable[[], Task], reason: str) -> None:
    job = play("cadence", "nccl", toy.task, engine=engine).job
    assert reason in unfit(replace(job, task=task)) if reason else not unfit(replace(job, task=task))
    if reason:
        with pytest.raises(ValueError, match=r"virtual\.path=vectorised: .*use virtual\.path=sequential"):
            play("cadence", "nccl", task, engine=engine, virtual=VirtualTime(path="vectorised"))


def penalised(model: nn.Module, batch: Any) -> Tensor:
    """The toy's loss with a term of the parameters themselves."""
    return toy.loss(model, batch) + 0.05 * torch.stack([p.pow(2).sum() for p in model.parameters()]).sum()


def dropping(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.dropout(toy.loss(model, batch), 0.5)


def branching(model: nn.Module, batch: Any) -> Tensor:
    loss = toy.loss(model, batch)
    return loss if loss.item() > 0 else 2 * loss


def changed(**parts: Any) -> Task:
    return replace(toy.task(), **parts)


@pytest.mark.parametrize("policy", ["cadence", "sync"])
def test_many_at_once_train_the_terms_of_the_loss_that_read_the_parameters(play: Play, policy: str) -> None:
    """The model that the loss got had none, so a penalty was left out, without a word."""
    ends = []
    for path in ("sequential", "vectorised"):
        task = partial(changed, loss=penalised)
        more: dict[str, Any] = {"virtual": VirtualTime(path=path), "engine": engine}
        played = play(policy, "nccl", task, world_size=3, epochs=1, **more)
        ends.append(torch.cat([value.flatten() for value in played.state().values()]))
    assert torch.allclose(*ends, atol=1e-6)


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        (partial(changed, loss=dropping), "random"),
        (partial(changed, loss=branching), "item"),
        (partial(changed, optimizer=lambda parameters: torch.optim.SGD(parameters[:2], lr=0.1)), "lacks some"),
    ],
)
def test_sixteen_ranks_that_cannot_train_at_once_train_one_after_the_other(
    play: Play, task: Callable[[], Task], reason: str
) -> None:
    """They failed, though fifteen trained."""
    job = play("cadence", "nccl", toy.task, engine=engine).job
    assert reason in unfit(replace(job, task=task))
    assert play("cadence", "nccl", task, world_size=16, epochs=1, engine=engine).of(Finished)


@pytest.mark.parametrize("settings", [{"step_s": 0.0}, {"step_s": float("inf")}, {"step_s": 1e308}, {"path": "quick"}])
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="virtual"):
        VirtualTime(**settings)


def test_one_rank_is_enough() -> None:
    assert world_size_of(1, "virtual") == 1


def test_a_step_that_records_scalars_is_not_done_for_many_at_once(play: Play) -> None:
    job = play("cadence", "nccl", toy.task, engine=engine).job
    assert unfit(replace(job, task=controlled.recording)) == "a step calls record_scalar"


def test_trial_passes_that_fail_say_it(play: Play) -> None:
    """An error without a text was one of the trial itself, and so was one of the data."""
    job = play("cadence", "nccl", toy.task, engine=engine).job
    calls: list[int] = []

    def once(model: nn.Module, batch: Any) -> Tensor:
        calls.append(1)
        if len(calls) > 1:
            raise AssertionError
        return toy.loss(model, batch)

    def broken() -> Any:
        source = toy.task().train_data()
        source.batch = lambda indices: 1 / 0
        return source

    assert "AssertionError" in unfit(replace(job, task=partial(changed, loss=once)))
    assert unfit(replace(job, task=partial(changed, train_data=broken))).startswith("a step fails (ZeroDivisionError")

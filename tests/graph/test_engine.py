"""The engine `graph` in the harness's terms: the laws, solo and the ranks' engine as references, and records like theirs."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bench.results.analyze import analyze
from ddp.core.errors import Diverged, RankFailed
from ddp.core.messages.commands import Plan, Publish
from ddp.core.messages.events import Finished, Merged, Progress, Ready, RoundClosed
from ddp.core.policies import POLICIES
from ddp.core.samples.spans import measure
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.steps import StepSettings
from ddp.data.epoch_order import order
from ddp.engine import elche
from ddp.graph import engine
from ddp.process.codec import decode
from ddp.replica.task import Job, Task
from tests.bench.streams import make_spec
from tests.runtime import toy
from tests.runtime.conftest import Played
from tests.slow import few, slow

EVEN = 10**6
"""Steps until the balancer looks for the first time: shards stay equal."""


@pytest.fixture
def play(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Played]:
    def run(policy: str, task: Callable[[], Task] = toy.task, **fields: Any) -> Played:
        which, parallel = fields.pop("engine", engine), fields.pop("parallel", True)
        options = fields.pop("options", {})
        common = {"epochs": 2, "batch_size": 8, "seed": 3, "world_size": 2, "deadline_s": 60.0, "keep_state": True}
        fields = {"scratch": tmp_path_factory.mktemp("scratch")} | common | fields
        job = Job(task=task, policy=POLICIES[policy](**options), backend="nccl", **fields)
        played, threads = Played(job, []), set(threading.enumerate())
        more = {} if which is elche else {"parallel": parallel}
        which.run(job, lambda record, at: played.records.append(record), **more)
        assert set(threading.enumerate()) <= threads, "no thread is left"
        return played

    return run


@pytest.fixture
def even(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp.graph.balance.CALIBRATION", EVEN)


def with_dropout(norm: bool = False) -> Task:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.3), nn.Tanh(), nn.Linear(12, 2))

    return replace(toy.task(norm=norm), model=net)


class Block(nn.Sequential):
    """Draws its random numbers a second time in the backward pass, and gives other threads time to draw between."""

    def __init__(self, again: bool) -> None:
        super().__init__(nn.Linear(6, 6), nn.Dropout(0.5))
        self.again = again

    def slow(self, inputs: Tensor) -> Tensor:
        time.sleep(1e-3)
        return super().forward(inputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return checkpoint(self.slow, inputs, use_reentrant=False) if self.again else self.slow(inputs)  # type: ignore[no-any-return]


def checkpointed(again: bool) -> Task:
    return replace(toy.task(), model=lambda: nn.Sequential(Block(again), nn.Tanh(), Block(again), nn.Linear(6, 2)))


TASKS = {"plain": toy.task, "norm": partial(toy.task, norm=True), "dropout": with_dropout}


@pytest.mark.parametrize("optimizer", ["SGD", *slow("AdamW")])
def test_two_replicas_are_two_ranks_that_exchange_gradients_bit_for_bit(
    play: Callable[..., Played], even: None, optimizer: str
) -> None:
    """A sum of two has no order: the collective's result is this one."""
    task = partial(toy.task, norm=True, optimizer=optimizer, lr=0.02, samples=200)
    assert play("sync", task).digests == play("sync", task, engine=elche).digests


@pytest.mark.parametrize(("cell", "task"), few([("sync", 2), ("sync", 3), ("cadence", 3)], TASKS))
def test_threads_or_one_after_the_other_is_the_same(
    play: Callable[..., Played], even: None, cell: tuple[str, int], task: str
) -> None:
    policy, size = cell
    options = {} if policy == "sync" else {"anchor": 2, "max_anchor": 2, "partition_ratios": (0.5, 0.3, 0.2)[:size]}
    runs = [play(policy, TASKS[task], world_size=size, options=options, parallel=p) for p in (True, True, False)]
    assert len(set.union(*(run.digests for run in runs))) == 1


def test_activations_that_are_computed_again_draw_the_same_numbers(play: Callable[..., Played], even: None) -> None:
    """Dropout in a checkpointed block drew another replica's numbers in the backward pass."""
    once, again = (play("sync", partial(checkpointed, again), epochs=1).digests for again in (False, True))
    assert once == again


def test_one_replica_is_solo(play: Callable[..., Played]) -> None:
    alone = play("sync", partial(toy.task, norm=True), world_size=1, engine=elche)
    assert play("cadence", partial(toy.task, norm=True), world_size=1).digests == alone.digests


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_every_sample_is_trained_once_and_the_records_say_so(
    play: Callable[..., Played], policy: str, size: int
) -> None:
    speeds = (1.0, 0.3, 0.6, 0.5)[:size]
    played = play(policy, partial(toy.task, norm=True), world_size=size, speeds=speeds)
    for epoch in range(2):
        merged = [event for event in played.of(Merged) if event.epoch == epoch]
        covered = Counter(i for event in merged for start, stop in event.spans for i in range(start, stop))
        assert covered == Counter(range(toy.SAMPLES))
        trained = dict.fromkeys(range(size), 0)
        for event in played.of(Progress):
            trained[event.rank] += event.samples if event.epoch == epoch else 0
        assert trained == {event.rank: measure(event.spans) for event in merged}
    assert len(played.of(Ready)) == len(played.of(Finished)) == size
    assert len(played.digests) == 1
    assert len({event.digest for event in played.of(Ready)}) == 1
    assert bool(played.of(RoundClosed)) == (policy == "cadence")
    assert played.accuracy() > 0.6


def test_a_window_is_the_mean_gradient_over_its_samples(play: Callable[..., Played]) -> None:
    """Unequal counts and an uneven last batch, played again in one process by plain SGD."""
    options = {"anchor": 3, "max_anchor": 3, "partition_ratios": (0.75, 0.25)}
    samples = 61
    played = play("cadence", partial(toy.task, samples=samples), epochs=1, options=options)
    assert len({sum(window.steps) for window in played.of(RoundClosed)}) >= 1
    setup, positions = toy.task(samples=samples), order(3, 0, samples)
    inputs, targets = toy.data(samples)
    model = setup.model()
    begin = play("sync", partial(toy.task, samples=samples, lr=0.0), world_size=1, epochs=1)
    model.load_state_dict(begin.state())
    optimizer, first = setup.optimizer(model.parameters()), 0
    for window in played.of(RoundClosed):
        assert window.steps[0] >= window.steps[1]
        stop = min(first + 8 * sum(window.steps), samples)
        chosen = positions[first:stop]
        optimizer.zero_grad()
        setup.loss(model, (inputs[chosen], targets[chosen])).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        first = stop
    assert first == samples
    for name, value in model.state_dict().items():
        torch.testing.assert_close(played.state()[name], value, rtol=0, atol=1e-6)


def clearing(set_to_none: bool, model: nn.Module, batch: Any) -> torch.Tensor:
    model.zero_grad(set_to_none)
    return toy.loss(model, batch)


@pytest.mark.parametrize(("policy", "set_to_none"), few(["sync", "cadence"], [True, False]))
def test_a_loss_that_clears_gradients_leaves_those_of_the_windows_other_batches(
    play: Callable[..., Played], even: None, policy: str, set_to_none: bool
) -> None:
    options = {} if policy == "sync" else {"anchor": 3, "max_anchor": 3, "partition_ratios": (0.6, 0.4)}
    own = replace(toy.task(), loss=partial(clearing, set_to_none))
    assert play(policy, lambda: own, options=options).digests == play(policy, options=options).digests


def half(model: nn.Module, batch: Any) -> torch.Tensor:
    loss = toy.loss(model, batch) / 2
    loss.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    return loss


@pytest.mark.parametrize("task", [toy.task, toy.summed])
def test_a_backward_pass_inside_the_loss_weighs_as_much_as_its_batch(
    play: Callable[..., Played], even: None, task: Callable[[], Task]
) -> None:
    options = {"anchor": 3, "max_anchor": 3, "partition_ratios": (0.6, 0.4)}
    mine, plain = (play("cadence", each, options=options) for each in (lambda: replace(task(), loss=half), task))
    for name, value in plain.state().items():
        torch.testing.assert_close(mine.state()[name], value, rtol=0, atol=1e-6)


def laborious(model: nn.Module, batch: Any) -> torch.Tensor:
    """A step in proportion to its samples, and long beside what a busy machine adds: of microseconds, all is jitter."""
    time.sleep(0.0005 * len(batch[1]))
    return toy.loss(model, batch)


def work(samples: int) -> Task:
    return replace(toy.task(samples=samples), loss=laborious)


def test_shards_follow_the_speeds(play: Callable[..., Played]) -> None:
    """A slow replica gets less, from the first look at the speeds on."""
    played = play("sync", partial(work, 400), speeds=(1.0, 0.1), batch_size=16)
    last = [e for e in played.of(Merged) if e.epoch == 1]
    fast, slow = (measure(next(e.spans for e in last if e.rank == rank)) for rank in range(2))
    assert fast > 2 * slow
    assert played.of(Plan)[0].in_step


def test_no_micro_batch_of_a_large_share_is_too_large(play: Callable[..., Played]) -> None:
    """A fast replica has more of them."""
    sizes: list[int] = []

    def noting(model: nn.Module, batch: Any) -> torch.Tensor:
        sizes.append(len(batch[1]))
        return laborious(model, batch)

    step = StepSettings(accumulate=4)
    played = play(
        "sync", lambda: replace(work(400), loss=noting), speeds=(1.0, 0.1), batch_size=16, epochs=1, step=step
    )
    fast, slow = (sum(e.samples for e in played.of(Progress) if e.rank == rank) for rank in range(2))
    assert fast > slow + 16
    assert max(sizes) == 4


def test_el_che_gives_the_fast_replica_more_batches(play: Callable[..., Played]) -> None:
    played = play("cadence", partial(work, 400), speeds=(1.0, 0.2), options={"anchor": 1, "max_anchor": 2})
    first, *later = (plan.counts for plan in played.of(Plan))
    assert first == (1, 1)
    assert any(counts[0] >= 2 * counts[1] for counts in later), "on a busy machine not in every window"


def failing(model: nn.Module, batch: Any) -> torch.Tensor:
    raise RuntimeError("the toy is broken")


def not_finite(model: nn.Module, batch: Any) -> torch.Tensor:
    return toy.loss(model, batch) * float("nan")


def test_what_goes_wrong_is_said_and_nothing_is_left(play: Callable[..., Played]) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(RankFailed, match="the toy is broken") as caught:
        play("sync", lambda: replace(toy.task(), loss=failing))
    assert caught.value.rank == 0
    assert "in failing" in caught.value.traceback
    with pytest.raises(Diverged, match=r"lower train\.lr"):
        play("sync", lambda: replace(toy.task(), loss=not_finite))
    assert set(threading.enumerate()) <= threads, "no thread is left"


@pytest.mark.parametrize(("policy", "unit"), few(["sync", "cadence"], ["epochs", "averages"]))
def test_a_run_goes_on_from_a_checkpoint(
    play: Callable[..., Played], even: None, tmp_path: Path, policy: str, unit: str
) -> None:
    settings = Checkpointing(every=1 if unit == "epochs" else 5, unit=unit, spacing_s=0.0)
    options = {} if policy == "sync" else {"anchor": 2, "max_anchor": 2, "partition_ratios": (0.6, 0.4)}
    same = {"task": partial(toy.task, norm=True, optimizer="AdamW", lr=0.01), "options": options, "epochs": 3}
    whole = play(policy, checkpoints=settings, checkpoint_folder=tmp_path, **same)
    saved = whole.of(Publish)
    assert saved
    place = tmp_path / f"{saved[-1].index:06}"
    rest = play(policy, checkpoints=settings, checkpoint_folder=tmp_path / "again", resume=place, **same)
    assert rest.digests == whole.digests
    trained = sum(event.samples for event in rest.of(Progress))
    assert trained + saved[-1].coordinator.samples == 3 * toy.SAMPLES


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_analysis_takes_its_records_like_any_others(play: Callable[..., Played], policy: str) -> None:
    played = play(policy, partial(toy.task, norm=True))
    lines = [line for path in played.job.scratch.glob("slices-*.jsonl") for line in path.read_text().splitlines()]
    said = [r for r in played.records if hasattr(r, "at")]
    records = sorted([*said, *map(decode, lines)], key=lambda record: record.at)
    begun, ended = records[0].at - 0.1, records[-1].at + 0.1
    spec = replace(make_spec(f"nccl_{policy}", 2, epochs=2), mode=f"graph_{policy}", engine="graph", backend=None)
    commands = [record for record in played.records if not hasattr(record, "at")]
    found = analyze(spec, [*commands, *records], status="ok", launched=begun, ended=ended, env={}, git={})
    assert found.ledger.exactly_once
    assert found.ledger.source == "merged"
    assert found.params_sha256 in played.digests
    assert [row.samples for row in found.epochs] == [toy.SAMPLES, 2 * toy.SAMPLES]
    assert found.transport == "memory"
    assert (found.elche is not None) == (policy == "cadence")
    assert (found.sync.kind, found.sync.divergence_p50) == ("gradients", None)
    assert found.sync.bytes > 0
    assert all(row.compute > 0 and row.comm > 0 for row in found.breakdown)

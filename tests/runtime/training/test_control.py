"""Training control, in all modes: gradient norm, learning rate, callbacks."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp import WorkerHandle
from ddp.backends import paired_backends
from ddp.core.errors import RankFailed
from ddp.core.messages.events import Progress
from ddp.core.policies import POLICIES
from ddp.data.epoch_order import order
from ddp.engine import loop
from ddp.process import meter, slowdown
from ddp.replica.optim.learning_rates import Rates
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.training import controlled
from tests.slow import few

pytestmark = pytest.mark.usefixtures("in_process")

CELLS = [(policy, backend) for policy in POLICIES for backend in paired_backends()]


def by_hand(initial: dict[str, torch.Tensor], samples: int, size: int, limit: float) -> dict[str, torch.Tensor]:
    """The training loop that one would write for one epoch on one device."""
    setup = controlled.steep(samples)
    inputs, targets = toy.data(samples)
    model = setup.model()
    model.load_state_dict(initial)
    optimizer = setup.optimizer(model.parameters())
    for chosen in order(3, 0, samples).split(size):
        optimizer.zero_grad()
        setup.loss(model, (inputs[chosen], targets[chosen])).backward()  # type: ignore[no-untyped-call]
        assert torch.nn.utils.clip_grad_norm_(model.parameters(), limit) > limit, "else it tests nothing"
        optimizer.step()
    return model.state_dict()


def test_gradients_are_clipped_as_in_a_loop_written_by_hand(play: Play) -> None:
    """Alone: the same bits. Averaged inside the step, they are clipped after that: the same within float tolerance."""
    task = partial(controlled.steep, 64)
    initial = play("sync", "nccl", partial(toy.task, lr=0.0), world_size=1, epochs=1).state()
    alone = play("sync", "nccl", task, world_size=1, epochs=1, batch_size=16, max_grad_norm=0.5)
    expected = by_hand(initial, 64, 16, 0.5)
    assert all(torch.equal(value, expected[name]) for name, value in alone.state().items())
    both = play("sync", "nccl", task, epochs=1, batch_size=8, max_grad_norm=0.5)
    assert len(both.digests) == 1, "ranks clip to identical bits"
    for name, value in both.state().items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)


def alone(play: Play, part: Any, callback: Any = None) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Steep steps of one rank whose optimizer has `part` of the model, with a limit: initial and final state."""
    first = play("sync", "nccl", partial(toy.task, lr=0.0), world_size=1, epochs=1).state()
    setup = controlled.steep(64)

    def task() -> Any:
        def optimizer(parameters: Any) -> torch.optim.Optimizer:
            return torch.optim.SGD(part(list(parameters)), lr=0.1)

        return replace(setup, optimizer=optimizer, epoch_callback=callback)

    return first, play("sync", "nccl", task, world_size=1, epochs=1, batch_size=16, max_grad_norm=0.5).state()


def test_the_limit_is_on_what_the_optimizer_moves(play: Play) -> None:
    """Gradients of the rest neither count nor pile up."""
    first, final = alone(play, lambda parameters: parameters[:2])
    model = controlled.steep(64).model()
    model.load_state_dict(first)
    optimizer = torch.optim.SGD(list(model.parameters())[:2], lr=0.1)
    inputs, targets = toy.data(64)
    for chosen in order(3, 0, 64).split(16):
        model.zero_grad()
        controlled.steep(64).loss(model, (inputs[chosen], targets[chosen])).backward()  # type: ignore[no-untyped-call]
        assert torch.nn.utils.clip_grad_norm_(list(model.parameters())[:2], 0.5) > 0.5
        optimizer.step()
    assert all(torch.equal(value, final[name]) for name, value in model.state_dict().items())


def test_the_limit_is_also_on_what_is_unfrozen_later(play: Play) -> None:
    """Alone, a callback may unfreeze: that is trained, and counts."""
    setup = controlled.steep(64)

    def frozen() -> torch.nn.Module:
        model = setup.model()
        model[0].requires_grad_(False)  # type: ignore[index]
        return model

    def thaw(epoch: int, worker: WorkerHandle) -> None:
        worker.model.requires_grad_(True)

    fields = {"world_size": 1, "epochs": 1, "batch_size": 16, "max_grad_norm": 0.5}
    late = play("sync", "nccl", lambda: replace(setup, model=frozen, epoch_callback=thaw), **fields).state()
    never = play("sync", "nccl", lambda: setup, **fields).state()
    assert all(torch.equal(value, never[name]) for name, value in late.items())


@pytest.mark.parametrize(("policy", "backend"), [cell for cell in CELLS if cell != ("sync", "nccl")])
def test_every_rank_clips_its_own_steps(play: Play, policy: str, backend: str) -> None:
    """A step moves by no more than rate x limit, and so does the average: 26 steps, all together."""
    task = partial(controlled.steep, toy.SAMPLES, 1e4)
    initial = play("sync", "nccl", partial(toy.task, lr=0.0), world_size=1, epochs=1).state()
    final = play(policy, backend, task, epochs=1, max_grad_norm=0.01).state()
    moved = sum(float((final[name] - initial[name]).detach().norm()) ** 2 for name in final) ** 0.5
    assert 0 < moved <= 26 * 0.1 * 0.01 * 1.001


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_every_rank_is_called_back_once_an_epoch(
    play: Play, tmp_path: Path, policy: str, backend: str, world_size: int
) -> None:
    played = play(policy, backend, partial(controlled.noting, tmp_path), epochs=3, world_size=world_size)
    assert len(played.digests) == 1
    for rank in range(world_size):
        seen = [json.loads(line) for line in (tmp_path / f"seen-{rank}.jsonl").read_text().splitlines()]
        epochs = [entry["epoch"] for entry in seen]
        assert epochs == list(range(len(epochs))), "none is left out, none comes twice"
        assert len(epochs) == 3 or world_size > 1, "only a rank that trains nothing more is not called"
        assert [entry["same"] for entry in seen] == epochs
        assert {(entry["rank"], entry["world_size"]) for entry in seen} == {(rank, world_size)}
        assert {(entry["device"], entry["lr"], entry["parameters"]) for entry in seen} == {("cpu", 0.1, 110)}
        assert (seen[0]["step"], seen[0]["version"]) == (0, 0)
        for entry in seen:
            mine = [e for e in played.of(Progress) if e.rank == rank and e.epoch < entry["epoch"]]
            assert entry["step"] == sum(e.steps for e in mine)
        versions = [entry["version"] for entry in seen]
        assert versions == sorted(versions)
        if world_size == 1:
            assert versions[-1] == 0, "alone there is nothing to average"
        elif backend == "nccl" and len(epochs) == 3:
            assert versions[-1] >= 1, "at most one epoch is begun before the average that ends another"


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_rates_that_a_callback_sets_hold_in_that_epoch(play: Play, policy: str, backend: str, world_size: int) -> None:
    played = play(policy, backend, controlled.rates, epochs=4, world_size=world_size, lr_scale=2.0)
    by_epoch = [{event.lr for event in played.of(Progress) if event.epoch == epoch} for epoch in range(4)]
    assert by_epoch[:2] == [{0.5}, {0.125}]
    assert [pytest.approx(0.6)] == list(by_epoch[2]), "own rate x scale x the new schedule"
    assert [pytest.approx(0.3)] == list(by_epoch[3])


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, paired_backends()))
def test_a_callback_that_raises_is_a_failure_of_its_rank(
    play: Play, policy: str, backend: str, world_size: int
) -> None:
    with pytest.raises(RankFailed, match=r"rank [01] failed: LookupError: no such epoch in my table") as caught:
        play(policy, backend, controlled.failing, world_size=world_size)
    assert "controlled.py" in caught.value.traceback


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("name", "shape"), [("head", (2, 2)), ("0", (6, 12))])
def test_parameters_that_a_callback_adds_are_refused_unless_nothing_trains_them(
    play: Play, frozen: bool, name: str, shape: tuple[int, int]
) -> None:
    """Nothing would train them, and nothing said so; nor of those that are put in place of others."""

    def grow(epoch: int, worker: WorkerHandle) -> None:
        worker.model.add_module(name, torch.nn.Linear(*shape).requires_grad_(not frozen))

    task = replace(toy.task(), epoch_callback=grow)
    if frozen:
        play("sync", "nccl", lambda: task, world_size=1)
        return
    with pytest.raises(RankFailed, match=rf"parameter {name}\.weight was added .* make it where the model is made"):
        play("sync", "nccl", lambda: task, world_size=1)


def test_the_time_of_a_callback_is_nobodys_computing(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that ticks whenever it is read, and leaps in the callback."""
    time = 0.0

    def tick() -> float:
        nonlocal time
        time += 1e-3
        return time

    def leap(epoch: int, worker: WorkerHandle) -> None:
        nonlocal time
        time += 1000.0

    for module in (loop, meter, slowdown):
        monkeypatch.setattr(module, "now", tick)
    played = play("sync", "nccl", lambda: replace(toy.task(), epoch_callback=leap), world_size=1)
    slices = [line for line in (played.job.scratch / "slices-0.jsonl").read_text().splitlines() if '"Slice"' in line]
    assert time > 2000
    assert 0 < sum(event.busy_s for event in played.of(Progress)) < 2
    assert 0 < sum(json.loads(line)["seconds"] for line in slices) < 2


def two_groups(first: float, second: float) -> torch.optim.Optimizer:
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    return torch.optim.SGD([{"params": weights[:1], "lr": first}, {"params": weights[1:], "lr": second}])


def test_groups_keep_their_proportion_to_the_first() -> None:
    optimizer = two_groups(0.2, 0.02)
    rates = Rates(optimizer, lambda fraction: 1.0 - fraction, 2.0)
    assert (rates.apply(0.5), [group["lr"] for group in optimizer.param_groups]) == (0.2, [0.2, 0.02])
    rates.fix(1.0)
    rates.multiply(0.5)
    rates.apply(0.9)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, pytest.approx(0.05)]
    frozen = two_groups(0.0, 0.1)
    rates = Rates(frozen, lambda fraction: 1.0, 1.0)
    rates.fix(0.3)
    rates.apply(0.0)
    assert [group["lr"] for group in frozen.param_groups] == [0.3, 0.3]


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_rates_that_cannot_be_are_refused(value: float) -> None:
    rates = Rates(two_groups(0.1, 0.1), lambda fraction: 1.0, 1.0)
    for change in (rates.fix, rates.multiply, rates.rescale):
        with pytest.raises(ValueError, match="must be a finite number of 0 or more"):
            change(value)
    with pytest.raises(ValueError, match="a schedule is a function"):
        rates.follow(0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [-0.1, float("nan"), float("inf"), None, "high", torch.zeros(2)])
def test_what_a_schedule_gives_is_a_factor(given: Any) -> None:
    """A negative one would train uphill."""
    rates = Rates(two_groups(0.1, 0.1), lambda fraction: given if fraction else 1.0, 1.0)
    assert rates.apply(0.0) == 0.1
    with pytest.raises(ValueError, match=r"the schedule gives for the fraction 0\.25 .* must be a finite number"):
        rates.apply(0.25)


def test_a_schedule_may_end_at_zero_but_for_rounding() -> None:
    rates = Rates(two_groups(0.1, 0.1), lambda fraction: 1.0 - 1.2 * fraction - 0.6 * fraction, 1.0)
    assert rates.apply(1 / 1.8 + 1e-12) == 0.0


def test_an_optimizer_without_a_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="the learning rate of the optimizer must be"):
        Rates(two_groups(0.1, float("nan")), lambda fraction: 1.0, 1.0)


def test_the_scale_of_another_number_of_ranks_is_its_own_unless_a_callback_set_it() -> None:
    before, now = (Rates(two_groups(0.1, 0.1), lambda fraction: 1.0, scale) for scale in (4.0, 2.0))
    now.restore(before.capture())
    assert now.apply(0.0) == pytest.approx(0.2)
    before.rescale(3.0)
    now.restore(before.capture())
    assert now.apply(0.0) == pytest.approx(0.3)
    assert now.capture() == before.capture()

"""The correctness laws: the first in real processes, the others on ranks of this one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from ddp.backends import paired_backends, snapshot
from ddp.backends.snapshot import average
from ddp.core.messages.commands import Average, Evaluate, Reduce
from ddp.core.messages.events import Alive, Averaged, Progress, RankEvent, RoundClosed
from ddp.core.policies import POLICIES
from ddp.data.epoch_order import order
from ddp.engine import solo
from ddp.engine.loop import TrainingLoop
from ddp.gradients.step_gradients import StepGradients
from ddp.replica.memory.flat import FlatState
from ddp.replica.task import Job
from tests.runtime import toy
from tests.runtime.averaging.scripted_ranks import OWN
from tests.runtime.conftest import Play, spying
from tests.slow import few, slow

CELLS = [(policy, backend) for policy in POLICIES for backend in paired_backends()]


@pytest.mark.parametrize("speeds", [*slow(((),)), (1.0, 0.3)], ids=["equal", "unequal"])
@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_every_sample_is_trained_exactly_once(
    play: Play, tmp_path: Path, policy: str, backend: str, speeds: tuple[float, ...]
) -> None:
    """Law 1, and the tail of law 5: the global step is the batches consumed."""
    played = play(policy, backend, spying(tmp_path), speeds=speeds)
    served = [line.split() for path in tmp_path.glob("served-*.txt") for line in path.read_text().splitlines()]
    counts = Counter(int(index) for batch in served for index in batch)
    assert counts == Counter(dict.fromkeys(range(toy.SAMPLES), 2))
    progress = played.of(Progress)
    assert sum(event.samples for event in progress) == 2 * toy.SAMPLES
    steps = sum(event.steps for event in progress)
    assert steps == len(served)
    assert len(played.digests) == 1, "all ranks end with the same bits"
    assert played.accuracy() > 0.6


@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, OWN))
def test_the_average_of_identical_replicas_is_those_replicas(play: Play, policy: str, backend: str) -> None:
    """Law 3: without learning all replicas stay what they were, bit for bit, whatever the weights of the ranks."""
    played = play(policy, backend, partial(toy.task, lr=0.0), speeds=(1.0, 0.35), epochs=1)
    before = play("sync", "nccl", partial(toy.task, lr=0.0), world_size=1, epochs=1)
    assert played.digests == before.digests


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_one_rank_is_solo(play: Play, policy: str, backend: str) -> None:
    """Law 4: no coordinator, no channel, and the same bits whatever the policy and backend."""
    solo_run = play("sync", "nccl", partial(toy.task, norm=True), world_size=1, engine=solo)
    again = play(policy, backend, partial(toy.task, norm=True), world_size=1)
    assert solo_run.digests == again.digests


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("world_size", [2, 4])
def test_synchronous_gradients_equal_solo_on_the_same_global_batch(play: Play, world_size: int, optimizer: str) -> None:
    """Law 4: 20 steps, the last one on a smaller batch; every parameter within 1e-5, ranks bit for bit."""
    task = partial(
        toy.task, samples=16 * world_size * 10 - 5, optimizer=optimizer, lr=0.05, schedule=toy.rising_schedule
    )
    alone = play("sync", "nccl", task, world_size=1, batch_size=16 * world_size)
    sync = play("sync", "nccl", task, world_size=world_size, batch_size=16)
    assert sum(event.steps for event in alone.of(Progress)) == 20
    assert sync.of(Progress)[-1].lr == alone.of(Progress)[-1].lr, "law 5: the same rate at the same samples"
    assert len(sync.digests) == 1
    for name, value in alone.state().items():
        torch.testing.assert_close(sync.state()[name], value, rtol=0, atol=1e-5)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("backend", paired_backends())
def test_a_window_is_averaged_by_the_samples_of_each_rank(play: Play, backend: str) -> None:
    """Law 2: one window of unequal work by plain SGD, played again in one process."""
    samples, size = 8 * 11 + 3, 8
    task = partial(toy.task, samples=samples)
    played = play("cadence", backend, task, epochs=1, batch_size=size, options={"anchor": 7})
    assert len(played.of(RoundClosed)) == 1
    shares = [sum(e.samples for e in played.of(Progress) if e.rank == rank) for rank in range(2)]
    assert sum(shares) == samples
    assert shares[0] != shares[1]
    setup = task()
    inputs, targets = toy.data(samples)
    positions = order(3, 0, samples)
    mean: dict[str, torch.Tensor] = {}
    for rank, start in ((0, 0), (1, shares[0])):
        torch.manual_seed(0)
        model = setup.model()
        model.load_state_dict(play("sync", "nccl", partial(task, lr=0.0), world_size=1, epochs=1).state())
        optimizer = setup.optimizer(model.parameters())
        for first in range(start, start + shares[rank], size):
            chosen = positions[first : min(first + size, start + shares[rank])]
            optimizer.zero_grad()
            setup.loss(model, (inputs[chosen], targets[chosen])).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for name, value in model.state_dict().items():
            mean[name] = mean.get(name, 0.0) + value * shares[rank] / samples
    for name, value in played.state().items():
        torch.testing.assert_close(value, mean[name], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("in_process")
def test_buffers_are_averaged_and_counters_take_the_maximum(play: Play) -> None:
    """Law 7."""
    for backend in paired_backends():
        played = play("cadence", backend, partial(toy.task, norm=True), options={"anchor": 3})
        states = [played.state(rank) for rank in range(2)]
        assert len(played.digests) == 1
        assert 1 < int(states[0]["1.num_batches_tracked"]) < 52
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
        assert played.of(Averaged)[-1].divergence < 1.0


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("seed", [0, 1])
def test_the_same_seed_gives_the_same_bits(play: Play, seed: int) -> None:
    runs = [play("sync", "nccl", partial(toy.task, norm=True), seed=seed) for _ in range(2)]
    assert runs[0].digests == runs[1].digests
    assert play("sync", "nccl", partial(toy.task, norm=True), seed=seed + 7).digests != runs[0].digests


def test_averaging_in_pieces_weighs_by_samples() -> None:
    """The reducer against the formula, and law 3 for weights that are no powers of two."""
    replicas = [torch.randn(100_003) for _ in range(3)]
    mean = torch.empty(100_003)
    average(mean, replicas, (25, 10, 0))
    torch.testing.assert_close(mean, (replicas[0] * 25 + replicas[1] * 10) / 35)
    average(mean, [replicas[0]] * 3, (31, 7, 3))
    assert torch.equal(mean, replicas[0])
    counter = torch.empty(2, dtype=torch.int64)
    average(counter, [torch.tensor([3, 9]), torch.tensor([4, 1])], (1, 1))
    assert counter.tolist() == [4, 9]
    average(mean, [torch.full_like(mean, -0.0), torch.full_like(mean, float("inf"))], (3, 0))
    assert torch.equal(mean.signbit(), torch.ones_like(mean, dtype=torch.bool)), "an idle rank weighs nothing"


@pytest.mark.parametrize(("policy", "backend"), few(POLICIES, OWN))
def test_what_a_model_may_also_hold(play: Play, policy: str, backend: str) -> None:
    """Masks keep their infinities, tables their bits; what no rank uses is not touched; replaced buffers are taken back."""
    played = play(policy, backend, toy.odd_task, speeds=(1.0, 0.4))
    alone = play("sync", "nccl", toy.odd_task, world_size=1)
    assert len(played.digests) == 1
    for rank in range(2):
        state = played.state(rank)
        for name in ("mask", "table", "places", "flag", "idle.weight"):
            assert torch.equal(state[name], alone.state()[name]), name
        assert float(state["ema"]) == float(played.state(0)["ema"]) != 0.0


class Rig:
    """A rank's side of the `cpu` backend, two of them in this process."""

    def __init__(self, tmp_path: Path, rank: int) -> None:
        job = Job(toy.task, 1, 8, 0, 2, POLICIES["async"](), "cpu", tmp_path)
        self.loop = TrainingLoop(job, rank, lambda event: None)
        self.reducer = snapshot.Reducer(job, lambda event: None)
        self.backend = snapshot.Backend(job, rank, self.loop)
        self.state = self.loop.replica.state

    def train(self, amount: float) -> torch.Tensor:
        self.state.tensors[0].add_(amount)
        return self.state.tensors[0].clone()


def test_training_done_while_an_average_was_in_flight_is_kept(tmp_path: Path) -> None:
    """Law 6; and an evaluation sees the average, not the replica that ran on."""
    rigs = [Rig(tmp_path, rank) for rank in range(2)]
    laid = [rig.train(0.25 * (1 + rank)) for rank, rig in enumerate(rigs)]
    for rig in rigs:
        rig.backend.snapshot(Average(0, 0, (), False, "a test"))
    rigs[0].train(0.125)
    rigs[0].reducer._reduce(Reduce(0, (0, 1), (1, 3), ""))
    mean = (laid[0] + 3 * laid[1]) / 4
    changes = [rig.backend.apply(0, exact=rank == 1) for rank, rig in enumerate(rigs)]
    assert all(change.divergence is not None and change.divergence > 0 for change in changes)
    torch.testing.assert_close(rigs[0].state.tensors[0], mean + 0.125)
    torch.testing.assert_close(rigs[1].state.tensors[0], mean)
    before = rigs[0].state.tensors[0].clone()
    with rigs[0].backend.averaged_weights(exact=False):
        torch.testing.assert_close(rigs[0].state.tensors[0], mean)
    assert torch.equal(rigs[0].state.tensors[0], before)


def test_a_parameter_that_is_replaced_is_an_error_that_names_it() -> None:
    model = toy.net(norm=True)
    state = FlatState(model)
    model[0].weight.data = model[0].weight.data.clamp(-1, 1).clone()  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"Linear\.weight was replaced during training"):
        state.gather()


def test_exchanged_gradients_of_several_types_keep_to_themselves() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).double())
    gradients = StepGradients(FlatState(model))
    gradients.clear()
    (model[0](torch.ones(1, 2)).sum() + model[1](torch.ones(1, 2).double()).sum()).backward()
    gradients.pack(0.5)
    gradients.unpack()
    assert [flat.dtype for flat in gradients.flats] == [torch.float32, torch.float64]
    assert all(float(p.grad.sum()) != 0 for p in model.parameters() if p.grad is not None)
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.usefixtures("in_process")
def test_an_evaluation_leaves_the_modes_of_modules_as_they_were(play: Play, tmp_path: Path) -> None:
    loop = TrainingLoop(
        Job(partial(toy.task, norm=True), 1, 8, 0, 1, POLICIES["sync"](), "nccl", tmp_path), 0, lambda event: None
    )
    modules = list(loop.replica.model.modules())
    modules[2].eval()
    modes = [module.training for module in modules]
    loop.replica.evaluate(0, 1, lambda: None)
    assert [module.training for module in modules] == modes


@pytest.mark.parametrize(("deadline_s", "signs"), [(0.5, 9), (60.0, 1)])
def test_the_shorter_the_deadline_the_more_signs_of_life_in_an_evaluation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline_s: float, signs: int
) -> None:
    """They came every second: with a deadline of half a second, sound ranks were given up."""
    clock, sent = [0.0], list[RankEvent]()
    monkeypatch.setattr("ddp.engine.loop.now", lambda: clock[0])
    job = Job(toy.task, 1, 8, 0, 2, POLICIES["async"](), "cpu", tmp_path, deadline_s=deadline_s)
    loop = TrainingLoop(job, 0, sent.append)

    def evaluate(part: int, parts: int, heartbeat: Callable[[], None]) -> tuple[int, float, float, float]:
        for _ in range(9):
            clock[0] += 0.12
            heartbeat()
        return 1, 0.0, 0.0, 0.0

    monkeypatch.setattr(loop.replica, "evaluate", evaluate)
    loop.evaluate(Evaluate(0, 0, 0, 1, in_turn=False, reason=""))
    assert sum(isinstance(event, Alive) for event in sent) == signs


class Merging(torch.nn.Linear):
    """Adds a part of its own to its weights in evaluation mode, as layers of LoRA do."""

    def train(self, mode: bool = True) -> Merging:
        with torch.no_grad():
            self.weight += (float(self.training) - float(mode)) / 3
        return super().train(mode)


class MergingInside(torch.nn.Module):
    """The same with the weights in a module inside, as a convolution of LoRA has them."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.inside = torch.nn.Linear(inputs, outputs)

    @property
    def weight(self) -> torch.nn.Parameter:
        return self.inside.weight

    def train(self, mode: bool = True) -> MergingInside:
        with torch.no_grad():
            self.inside.weight += (float(self.training) - float(mode)) / 3
        return super().train(mode)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.inside(inputs))


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("kind", [Merging, MergingInside])
def test_an_evaluation_ends_by_the_own_train_of_modules(tmp_path: Path, kind: type[torch.nn.Module]) -> None:
    """LoRA trained on merged weights after the first evaluation."""
    model = torch.nn.Sequential(kind(6, 4), kind(4, 2))
    task = replace(toy.task(), model=lambda: model)
    job = Job(lambda: task, 1, 8, 0, 1, POLICIES["sync"](), "nccl", tmp_path)
    replica = TrainingLoop(job, 0, lambda event: None).replica
    model[1].eval()
    before = [layer.weight.detach().clone() for layer in model]
    replica.evaluate(0, 1, lambda: None)
    for layer, weight in zip(model, before, strict=True):
        assert torch.equal(layer.weight, weight)
    assert [layer.training for layer in model] == [True, False]

"""What a round does to the replicas: scripted ranks on both backends against hand-written oracles, and whole runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddp.core.averaging import Averaging
from ddp.core.commands import Average, Join, Reduce
from ddp.core.events import Averaged, Evaluated, Reduced
from ddp.core.policies import POLICIES
from ddp.core.spans import Batch
from ddp.core.worker import Step
from ddp.runtime.backends import BACKENDS
from ddp.runtime.backends.base import load
from ddp.runtime.backends.cpu import Reducer
from ddp.runtime.loop import Loop
from ddp.runtime.mean import average
from ddp.runtime.task import Job, Task, Tensors
from tests.processes import exit_codes
from tests.runtime import toy
from tests.runtime.conftest import Play

CELLS = [(policy, backend) for policy in POLICIES for backend in BACKENDS]
PLAIN_OUTER = Averaging(outer="momentum", outer_lr=1.0, outer_momentum=0.0)


# Ranks that follow a script. `act(rank, loop, round)` trains and returns the samples that count.

Act = Callable[[int, Loop, int], int]
Seen = dict[str, Any]


class Actor:
    """A rank of either backend that does what a script says between rounds."""

    def __init__(self, job: Job, rank: int, act: Act) -> None:
        self.loop, self.rank, self.act = Loop(job, rank, lambda event: None), rank, act
        self.backend = load(job.backend).Backend(job, rank, self.loop)

    def train(self, index: int) -> int:
        samples = self.act(self.rank, self.loop, index)
        self.loop.contribute(index)
        return samples

    def see(self, divergence: float | None) -> Seen:
        with self.backend.consensus(exact=True):
            mean = self.parameters.clone()
        return {"own": self.parameters.clone(), "mean": mean, "divergence": divergence, "inner": inner(self.loop)}

    @property
    def parameters(self) -> Tensor:
        return self.loop.replica.state.sections[0].values


def inner(loop: Loop) -> list[Tensor]:
    """All floating-point state of the rank's own optimizer."""
    state = loop.replica.optimizer.state
    values = [value for parameter in loop.replica.state.parameters for value in state.get(parameter, {}).values()]
    return [value.clone() for value in values if isinstance(value, Tensor) and value.is_floating_point()]


def collective(job: Job, rank: int, act: Act, rounds: int) -> None:
    """A rank's process of the blocking backend."""
    actor = Actor(job, rank, act)
    members = tuple(range(job.world_size))
    actor.backend.join(Join(rank, 0, members, False, ""))
    seen = []
    for index in range(rounds):
        samples = actor.train(index)
        change = actor.backend.average(Average(rank, index, members, True, ""), samples)
        seen.append(actor.see(change.divergence))
    actor.backend.settle()
    seen.append(actor.see(None))
    torch.save(seen, job.scratch / f"seen-{rank}.pt")
    actor.backend.close()


def snapshots(job: Job, act: Act, rounds: int) -> list[list[Seen]]:
    """The ranks of the other backend, one after the other."""
    done: list[Reduced | Exception] = []
    actors = [Actor(job, rank, act) for rank in range(job.world_size)]
    seen: list[list[Seen]] = [[] for _ in actors]
    with Reducer(job, done.append) as reducer:
        for index in range(rounds):
            samples = tuple(actor.train(index) for actor in actors)
            for actor in actors:
                actor.backend.snapshot(0)
            reducer._reduce(Reduce(index, tuple(range(job.world_size)), samples, ""))  # type: ignore[attr-defined]
            assert isinstance(done[-1], Reduced), done[-1]
            for actor, saw in zip(actors, seen, strict=True):
                saw.append(actor.see(actor.backend.apply(0, exact=True).divergence))
    for actor, saw in zip(actors, seen, strict=True):
        actor.backend.settle()
        saw.append(actor.see(None))
    return seen


def in_processes(rank: Callable[[Job, int], None], job: Job) -> None:
    """Run every rank in a process of its own."""
    assert exit_codes(rank, [(job, index) for index in range(job.world_size)]) == [0] * job.world_size


def play_rounds(job: Job, act: Act, rounds: int) -> list[list[Seen]]:
    """What every rank saw after each round, and after it has settled."""
    if job.backend == "cpu":
        return snapshots(job, act, rounds)
    in_processes(partial(collective, act=act, rounds=rounds), job)
    return [torch.load(job.scratch / f"seen-{rank}.pt") for rank in range(job.world_size)]


def job(folder: Path, backend: str, averaging: Averaging, **fields: Any) -> Job:
    task = fields.pop("task", toy.task)
    return replace(Job(task, 1, 8, 3, 2, POLICIES["cadence"](), backend, folder, averaging=averaging), **fields)


def move(rank: int, index: int, size: int) -> Tensor:
    return 0.1 * torch.randn(size, generator=torch.Generator().manual_seed(10 * index + rank))


def wander(samples: tuple[int, ...], rank: int, loop: Loop, index: int) -> int:
    own = loop.replica.state.sections[0].values
    own.add_(move(rank, index, own.numel()))
    return samples[rank]


def start(folder: Path) -> np.ndarray[Any, Any]:
    loop = Loop(job(folder, "cpu", Averaging()), 0, lambda event: None)
    return loop.replica.state.sections[0].values.double().numpy().copy()


def moved(at: np.ndarray[Any, Any], rank: int, index: int) -> np.ndarray[Any, Any]:
    return at + move(rank, index, at.size).double().numpy()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_ranks_weigh_their_samples_to_the_power_of_gamma(tmp_path: Path, backend: str, gamma: float) -> None:
    """Law 2, and an idle rank weighs nothing for every gamma. The divergence is ||own - average|| / ||average||."""
    samples = (25, 9, 0)
    seen = play_rounds(job(tmp_path, backend, Averaging(gamma=gamma), world_size=3), partial(wander, samples), 2)
    center = start(tmp_path)
    weights = np.array([25.0**gamma, 9.0**gamma, 0.0]) / (25.0**gamma + 9.0**gamma)
    for index in range(2):
        replicas = np.array([moved(center, rank, index) for rank in range(3)])
        center = weights @ replicas
        for rank in range(3):
            np.testing.assert_allclose(seen[rank][index]["own"].numpy(), center, atol=1e-6)
            apart = np.linalg.norm(replicas[rank] - center) / np.linalg.norm(center)
            assert seen[rank][index]["divergence"] == pytest.approx(apart, rel=1e-4)
    assert torch.equal(seen[0][1]["own"], seen[1][1]["own"])


@pytest.mark.parametrize("outer", ["momentum", "nesterov"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_outer_optimizer_follows_its_formula(tmp_path: Path, backend: str, outer: str) -> None:
    seen = play_rounds(job(tmp_path, backend, Averaging(outer=outer)), partial(wander, (3, 1)), 5)
    center = start(tmp_path)
    lr, velocity = (1.0 if outer == "momentum" else 0.7), np.zeros_like(center)
    for index in range(5):
        mean = (3 * moved(center, 0, index) + moved(center, 1, index)) / 4
        gradient = center - mean
        velocity = 0.9 * velocity + gradient
        center = center - lr * (gradient + 0.9 * velocity if outer == "nesterov" else velocity)
        for rank in range(2):
            np.testing.assert_allclose(seen[rank][index]["own"].numpy(), center, atol=3e-6)
    assert torch.equal(seen[0][-1]["own"], seen[1][-1]["own"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_outer_sgd_of_rate_1_is_plain_averaging(tmp_path: Path, backend: str) -> None:
    """Bit for bit, after several rounds."""
    ends = []
    for name, averaging in (("plain", Averaging()), ("outer", PLAIN_OUTER)):
        (tmp_path / name).mkdir()
        seen = play_rounds(job(tmp_path / name, backend, averaging), partial(wander, (31, 7)), 3)
        ends.append(seen[0][-1]["own"])
    assert torch.equal(ends[0].view(torch.int32), ends[1].view(torch.int32))


@pytest.mark.parametrize("backend", BACKENDS)
def test_elastic_replicas_move_part_of_the_way(tmp_path: Path, backend: str) -> None:
    """EASGD's blend; evaluations see the average, and in the end every rank is the average."""
    seen = play_rounds(job(tmp_path, backend, Averaging(elastic=0.25)), partial(wander, (3, 1)), 4)
    replicas = [start(tmp_path)] * 2
    for index in range(4):
        replicas = [moved(replica, rank, index) for rank, replica in enumerate(replicas)]
        mean = (3 * replicas[0] + replicas[1]) / 4
        replicas = [0.75 * replica + 0.25 * mean for replica in replicas]
        for rank in range(2):
            np.testing.assert_allclose(seen[rank][index]["own"].numpy(), replicas[rank], atol=2e-6)
            np.testing.assert_allclose(seen[rank][index]["mean"].numpy(), mean, atol=2e-6)
    assert not torch.equal(seen[0][-2]["own"], seen[1][-2]["own"])
    assert torch.equal(seen[0][-1]["own"], seen[1][-1]["own"])
    np.testing.assert_allclose(seen[0][-1]["own"].numpy(), mean, atol=2e-6)


def train_some(rank: int, loop: Loop, index: int) -> int:
    """Rank 1 trains in every other round only, so it has no state in the first."""
    steps = 2 if rank == 0 else 3 * (index % 2)
    for step in range(steps):
        loop.train(Step(Batch(0, 8 * step + 64 * rank, 8 * step + 64 * rank + 8, 8), 0.0, last=False))
    return loop.samples


OPTIMIZERS = {"adam": torch.optim.Adam, "momentum": partial(torch.optim.SGD, momentum=0.9)}


def optimized(name: str) -> Task:
    return replace(toy.task(), optimizer=partial(OPTIMIZERS[name], lr=0.01))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_state_of_the_optimizers_is_averaged(tmp_path: Path, backend: str, name: str) -> None:
    """All ranks hold the same, also one that had no state yet; it is the weighted mean, as a second round shows."""
    averaging = Averaging(optimizer_state=True)
    seen = play_rounds(job(tmp_path, backend, averaging, task=partial(optimized, name)), train_some, 3)
    for index in range(3):
        first, second = (seen[rank][index]["inner"] for rank in range(2))
        assert len(first) == len(second) > 0
        assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
        assert any(float(value.abs().sum()) > 0 for value in first)
    if name == "adam":  # the count of steps tells the weights: 2, then (2 + 2 by 16 samples, 2 + 3 by 24), then 2 more
        counts = [float(seen[0][index]["inner"][0]) for index in range(3)]
        assert counts == pytest.approx([2.0, (4 * 16 + 5 * 24) / 40, (4 * 16 + 5 * 24) / 40 + 2.0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_diloco_begins_the_inner_optimizers_anew(tmp_path: Path, backend: str) -> None:
    seen = play_rounds(
        job(tmp_path, backend, Averaging(outer="nesterov"), task=partial(optimized, "adam")), train_some, 2
    )
    assert all(saw["inner"] == [] for rank in seen for saw in rank)


@pytest.mark.parametrize(("wire", "ulp"), [("float32", 2.0**-24), ("bfloat16", 2.0**-8)])
def test_a_narrow_wire_is_off_by_its_rounding_of_the_differences(tmp_path: Path, wire: str, ulp: float) -> None:
    """And all ranks hold the same bits."""
    seen = play_rounds(job(tmp_path, "nccl", Averaging(wire=wire)), partial(wander, (25, 9)), 6)
    center = start(tmp_path)
    for index in range(6):
        own = [saw[index]["own"] for saw in seen]
        assert torch.equal(own[0].view(torch.int32), own[1].view(torch.int32))
        exact = (25 * moved(center, 0, index) + 9 * moved(center, 1, index)) / 34
        most = max(float(move(rank, index, center.size).abs().max()) for rank in range(2))
        error = np.abs(own[0].double().numpy() - exact).max()
        assert error <= 3 * ulp * most + 3e-7
        assert wire == "float32" or error > 0
        center = own[0].double().numpy()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_averaging_right_after_an_average_changes_nothing(tmp_path: Path, backend: str, gamma: float) -> None:
    """Law 3 for every weighting: replicas that are one, as after a synchronous step, stay so bit for bit."""
    task = partial(toy.task, norm=True)
    seen = play_rounds(job(tmp_path, backend, Averaging(gamma=gamma), task=task), partial(once, (5, 3)), 3)
    for rank in range(2):
        for index in range(1, 3):
            assert torch.equal(seen[rank][index]["own"].view(torch.int32), seen[0][0]["own"].view(torch.int32))
            assert seen[rank][index]["divergence"] == 0.0


def once(samples: tuple[int, ...], rank: int, loop: Loop, index: int) -> int:
    return wander(samples, rank, loop, index) if index == 0 else samples[rank]


def exchanged(job: Job, rank: int) -> None:
    """A synchronous step with its exchange of gradients, then an average."""
    loop = Loop(job, rank, lambda event: None)
    backend = load(job.backend).Backend(job, rank, loop)
    backend.join(Join(rank, 0, (0, 1), False, ""))
    loop.replica.in_step = backend.in_step(loop.replica)
    batch = (Batch(0, 0, 8, 13), Batch(0, 8, 13, 13))[rank]
    for _ in range(3):
        loop.train(Step(batch, 0.0, last=False))
    before = loop.replica.state.digest()
    change = backend.average(Average(rank, 0, (0, 1), True, ""), loop.samples)
    after = loop.replica.state.digest()
    (job.scratch / f"digests-{rank}.txt").write_text(f"{before} {after} {change.divergence}")
    backend.close()


def test_averaging_right_after_a_synchronous_step_changes_nothing(tmp_path: Path) -> None:
    """Bit for bit, statistics and counters too."""
    in_processes(exchanged, job(tmp_path, "nccl", Averaging(), task=partial(toy.task, norm=True)))
    said = {(tmp_path / f"digests-{rank}.txt").read_text() for rank in range(2)}
    before, after, divergence = said.pop().split()
    assert not said, "both ranks hold the same"
    assert (before, divergence) == (after, "0.0")


# Whole runs.


class Scalar(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([3.0], dtype=torch.float64))


CURVATURE, MINIMUM, STEPS, LR = (1.0, 0.5), (0.0, 4.0), (1, 4), 0.1


def parabola(rank: int, model: nn.Module, batch: Tensors) -> Tensor:
    """f(x) = a/2 (x - b)^2, whatever the samples: deterministic full-batch gradients."""
    assert isinstance(model, Scalar)
    return (CURVATURE[rank] / 2 * (model.x - MINIMUM[rank]) ** 2).sum()


def quadratic(rank: int = 0) -> Task:
    return replace(toy.task(), model=Scalar, optimizer=partial(torch.optim.SGD, lr=LR), loss=partial(parabola, rank))


def descend(rank: int, loop: Loop, index: int) -> int:
    """Rank 0 does one local step, rank 1 four."""
    loop.replica.task = quadratic(rank)
    for step in range(STEPS[rank]):
        loop.train(Step(Batch(0, 8 * step, 8 * step + 8, 8), 0.0, last=False))
    return loop.samples


@pytest.mark.parametrize("gamma", [0.0, 1.0])
@pytest.mark.parametrize("backend", BACKENDS)
def test_unequal_local_steps_end_at_the_fixed_point_of_the_closed_form(
    tmp_path: Path, backend: str, gamma: float
) -> None:
    """FedNova, arXiv:2007.07481: tau steps of rate lr take x - b to (1 - lr a)^tau (x - b), so the fixed point solves
    sum_i w_i (1 - (1 - lr a_i)^tau_i) (x - b_i) = 0. `docs/averaging.md` says which objective that is."""
    seen = play_rounds(job(tmp_path, backend, Averaging(gamma=gamma), task=quadratic), descend, 160)
    weights = [(8.0 * steps) ** gamma for steps in STEPS]
    pull = [w * (1 - (1 - LR * a) ** tau) for w, a, tau in zip(weights, CURVATURE, STEPS, strict=True)]
    fixed = sum(p * b for p, b in zip(pull, MINIMUM, strict=True)) / sum(pull)
    assert [float(saw[-1]["own"]) for saw in seen] == pytest.approx([fixed] * 2, abs=1e-9)
    objective = [w * tau * a for w, tau, a in zip(weights, STEPS, CURVATURE, strict=True)]
    small_rate = objective[1] * MINIMUM[1] / sum(objective)
    assert fixed == pytest.approx(small_rate, rel=0.1), "near the minimum of sum_i w_i tau_i f_i"
    asked = CURVATURE[1] * MINIMUM[1] / sum(CURVATURE)
    assert abs(fixed - asked) > 0.5, "which is not the minimum of the plain sum"


def shrink(model: nn.Module, batch: Tensors) -> Tensor:
    """Whoever gets which samples, the gradient is the same."""
    return torch.stack([(parameter.sin() ** 2).sum() for parameter in model.parameters()]).sum()


def shrinking() -> Task:
    return replace(toy.task(samples=192), loss=shrink)


@pytest.mark.parametrize("backend", BACKENDS)
def test_outer_sgd_of_rate_1_leaves_a_whole_run_as_it_is(play: Play, backend: str) -> None:
    """The same bits at the end, by all ranks."""
    policy, options = "cadence", {"anchor": 4, "max_anchor": 4, "max_batch_diff": 0}
    if backend == "cpu":  # where a cadence trains on while an average is in flight
        policy, options = "sync", {}
    runs = [play(policy, backend, shrinking, options=options, averaging=how) for how in (Averaging(), PLAIN_OUTER)]
    assert all(len(run.of(Averaged)) >= 2 * 4 for run in runs)
    assert runs[0].digests == runs[1].digests
    assert len(runs[0].digests) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_cadence_of_one_step_by_plain_sgd_is_nccl_sync(play: Play, backend: str) -> None:
    task = partial(toy.task, samples=16 * 12)
    sync = play("sync", "nccl", task)
    policy, options = "cadence", {"anchor": 1, "max_anchor": 1, "max_batch_diff": 0}
    if backend == "cpu":  # where a cadence trains on while an average is in flight
        policy, options = "sync", {}
    cadence = play(policy, backend, task, options=options)
    assert len(cadence.of(Averaged)) == 2 * 24
    for name, value in sync.state().items():
        torch.testing.assert_close(cadence.state()[name], value, rtol=0, atol=1e-5)


EVERYTHING = Averaging(gamma=0.5, elastic=0.5, outer="momentum", outer_momentum=0.3, optimizer_state=True)


@pytest.mark.parametrize(("policy", "backend"), CELLS)
def test_a_run_with_every_option_ends_as_one_model(play: Play, policy: str, backend: str) -> None:
    task = partial(toy.task, norm=True, optimizer="Adam", lr=0.01)
    wire = "bfloat16" if backend == "nccl" else "float64"
    played = play(policy, backend, task, averaging=replace(EVERYTHING, wire=wire), speeds=(1.0, 0.4), epochs=4)
    assert len(played.digests) == 1
    assert played.accuracy() > 0.6


class Wide(nn.Module):
    """Two million equal parameters; every gradient is the same for all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2_000_000))


def uniform(model: nn.Module, batch: Tensors) -> Tensor:
    assert isinstance(model, Wide)
    low, high = torch.aminmax(model.weight.detach())
    if low != high:
        raise RuntimeError(f"torn: parameters between {float(low)} and {float(high)}")
    return model.weight.sum() * batch[0].mean()


def uniform_metric(model: nn.Module, batch: Tensors) -> tuple[Tensor, Tensor]:
    loss = uniform(model, batch).detach()
    return loss, loss


def wide() -> Task:
    return replace(toy.task(), model=Wide, loss=uniform, evaluate=uniform_metric)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("elastic", [None, 0.5])
def test_a_snapshot_is_never_torn(play: Play, policy: str, elastic: float | None) -> None:
    """Law 7: ranks write snapshots of one value each while rounds go on; so are all averages that anyone ever sees."""
    options = {} if policy == "sync" else {"anchor": 2, "max_anchor": 2}
    averaging = Averaging(elastic=elastic)
    played = play(policy, "cpu", wide, options=options, speeds=(1.0, 0.5), epochs=3, averaging=averaging)
    assert len(played.of(Averaged)) >= 2 * 3  # how many there are is a matter of time
    assert len(played.of(Evaluated)) == 2 * 3
    assert len(played.digests) == 1
    assert played.state()["weight"].unique().numel() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_equal_keeps_its_bits(dtype: torch.dtype) -> None:
    """Law 3 in the reducer: zeros of both signs, infinities, subnormal numbers, whatever the weights; and no excess."""
    values = torch.randn(300_001, generator=torch.Generator().manual_seed(0)).to(dtype)
    special = [-0.0, 0.0, float("inf"), -float("inf"), torch.finfo(dtype).smallest_normal / 4]
    for place, value in enumerate(special):
        values[place::11] = value
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for weights in [(1, 1), (31, 7, 3), (0, 5, 0.3), (1000, 1), (1, 1000), (3, 0), (0, 0), tuple(range(1, 9))]:
        mean, replicas = torch.empty_like(values), [values.clone() for _ in weights]
        average(mean, replicas, weights, blend=1.0)
        assert torch.equal(mean.view(bits), values.view(bits))
        for excess in replicas:
            assert torch.equal((values - excess).view(bits), values.view(bits))


def test_the_mean_is_good_to_a_few_units_in_the_last_place() -> None:
    replicas = [torch.randn(100_003, generator=torch.Generator().manual_seed(k)) for k in range(8)]
    weights, mean = (3, 1, 4, 1, 5, 9, 2, 6), torch.empty(100_003)
    own = [replica.clone() for replica in replicas]
    norm, changes = average(mean, own, weights, blend=0.5, measure=True)
    exact = sum(w * replica.double() for w, replica in zip(weights, replicas, strict=True)) / sum(weights)
    largest = torch.stack(replicas).abs().amax(dim=0).double()
    assert float(((mean - exact).abs() / (largest * 2.0**-23)).max()) < 2.0
    for replica, excess, change in zip(replicas, own, changes, strict=True):
        torch.testing.assert_close(excess, 0.5 * (replica - mean), rtol=0, atol=1e-7)
        assert change == pytest.approx(float((replica - mean).double().norm()) ** 2, rel=1e-5)
    assert norm == pytest.approx(float(mean.double().norm()) ** 2, rel=1e-5)

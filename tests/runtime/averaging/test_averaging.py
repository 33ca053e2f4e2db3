"""What a round does to the replicas: scripted ranks on both backends against hand-written oracles."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from ddp.core.samples.spans import Batch
from ddp.core.settings.averaging import Averaging
from ddp.core.worker import Step
from ddp.engine.loop import TrainingLoop
from ddp.replica.task import Task, Tensors
from tests.runtime import toy
from tests.runtime.averaging.scripted_ranks import OWN, Actor, job, moved, play_rounds, start, wander
from tests.slow import few


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("backend", OWN)
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
@pytest.mark.parametrize("backend", OWN)
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


@pytest.mark.parametrize("backend", OWN)
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


@pytest.mark.parametrize("backend", OWN)
def test_before_the_first_average_the_replica_is_what_is_evaluated(tmp_path: Path, backend: str) -> None:
    """So it is in a run that goes on from a checkpoint behind the last step of an epoch, where nothing was averaged yet."""
    actor = Actor(job(tmp_path, backend, Averaging(elastic=0.5), world_size=1), 0, partial(wander, (3,)))
    assert np.array_equal(actor.see(None)["mean"].double().numpy(), start(tmp_path))


def test_before_the_first_average_the_velocities_of_a_resumed_run_are_passed_on(tmp_path: Path) -> None:
    """A rank that came back then kept zeros, and the replicas came apart."""
    made = job(tmp_path, "nccl", Averaging(outer="momentum"), world_size=1)
    sender, joiner = (Actor(made, 0, partial(wander, (3,))).backend for _ in range(2))
    for velocity in sender.average_state():
        velocity.fill_(7.0)
    joiner.load_state_dict(sender.state_dict())
    assert [velocity.unique().tolist() for velocity in joiner.average_state()] == [[7.0]]


def train_some(rank: int, loop: TrainingLoop, index: int) -> int:
    """Rank 1 trains in every other round only, so it has no state in the first."""
    steps = 2 if rank == 0 else 3 * (index % 2)
    for step in range(steps):
        loop.train(Step(Batch(0, 8 * step + 64 * rank, 8 * step + 64 * rank + 8, 8), 0.0, last=False))
    return loop.samples


OPTIMIZERS = {"adam": torch.optim.Adam, "momentum": partial(torch.optim.SGD, momentum=0.9)}


def optimized(name: str) -> Task:
    return replace(toy.task(), optimizer=partial(OPTIMIZERS[name], lr=0.01))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("backend", OWN)
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


@pytest.mark.parametrize("backend", OWN)
def test_diloco_begins_the_inner_optimizers_anew(tmp_path: Path, backend: str) -> None:
    seen = play_rounds(
        job(tmp_path, backend, Averaging(outer="nesterov"), task=partial(optimized, "adam")), train_some, 2
    )
    assert all(saw["inner"] == [] for rank in seen for saw in rank)


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


def descend(rank: int, loop: TrainingLoop, index: int) -> int:
    """Rank 0 does one local step, rank 1 four."""
    loop.replica.task = quadratic(rank)
    for step in range(STEPS[rank]):
        loop.train(Step(Batch(0, 8 * step, 8 * step + 8, 8), 0.0, last=False))
    return loop.samples


@pytest.mark.parametrize(("backend", "gamma"), few(OWN, [0.0, 1.0]))
def test_unequal_local_steps_end_at_the_fixed_point_of_the_closed_form(
    tmp_path: Path, backend: str, gamma: float
) -> None:
    """FedNova, arXiv:2007.07481: tau steps of rate lr take x - b to (1 - lr a)^tau (x - b), so the fixed point solves
    sum_i w_i (1 - (1 - lr a_i)^tau_i) (x - b_i) = 0. `docs/explanation/averaging.md` says which objective that is."""
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

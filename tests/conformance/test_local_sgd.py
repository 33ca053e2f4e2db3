"""`torch_local_sgd` is not synchronous: it is held to its closed form, played in one process."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bench.prove.oracle import OracleCourse
from ddp.data.epoch_order import order
from ddp.permutation import derive
from tests.conformance import entrants
from tests.conformance.entrants import TORCH, Entrant, course
from tests.conformance.test_oracle import CLOSE, distance, truth

EVERY_STEP = Entrant("torch_local_sgd", "gloo", TORCH, 0, "tests.conformance.every_step")
EVERY_THIRD = Entrant("torch_local_sgd", "gloo", TORCH, 0, "tests.conformance.local")


def alone(course: OracleCourse, warmup: int, period: int) -> dict[str, Tensor]:
    """The mean of replicas that train by plain SGD: together for the warm-up, then each for itself."""
    torch.manual_seed(derive(course.seed, "init"))
    task = course.task()
    model, data, ranks = task.model(), task.train_data(), course.world_size
    replicas = [copy.deepcopy(model) for _ in range(ranks)]
    rate, positions = task.optimizer(model.parameters()).param_groups[0]["lr"], order(course.seed, 0, len(data))
    for step in range(course.steps):
        now = rate * task.schedule(course.seen(step) / len(data))
        gradients = []
        for replica, batch in zip(replicas, course.batches(step), strict=True):
            loss = (
                task.loss(replica, data.batch(positions[batch.start : batch.stop]))
                * batch.samples
                * ranks
                / batch.total
            )
            gradients.append(torch.autograd.grad(loss, list(replica.parameters())))
        if step < warmup:
            gradients = [tuple(torch.stack(part).mean(dim=0) for part in zip(*gradients, strict=True))] * ranks
        with torch.no_grad():
            for replica, own in zip(replicas, gradients, strict=True):
                for parameter, gradient in zip(replica.parameters(), own, strict=True):
                    parameter -= now * gradient
            if step >= warmup and (step - warmup) % period == 0:
                _average(replicas)
    _average(replicas)
    return replicas[0].state_dict()


@torch.no_grad()
def _average(replicas: list[torch.nn.Module]) -> None:
    for same in zip(*(replica.parameters() for replica in replicas), strict=True):
        mean = torch.stack(same).mean(dim=0)
        for parameter in same:
            parameter.copy_(mean)


@pytest.mark.timeout(300)
def test_post_local_sgd_is_its_closed_form(tmp_path: Path) -> None:
    data = entrants.save_data(tmp_path)
    run = course("mlp", "SGD", 3, data)
    entrants.train([(EVERY_STEP, run), (EVERY_THIRD, run)], tmp_path)
    every_step, every_third = (entrants.trained(number, 3, tmp_path) for number in range(2))
    for found in (every_step, every_third):
        assert all(digests == found.digests[0] for digests in found.digests), "what is evaluated is the same everywhere"
    assert distance(every_step, truth(run, TORCH)) <= CLOSE, "period 1 is torch_ddp"
    for name, value in alone(run, warmup=2, period=3).items():
        torch.testing.assert_close(every_third.state[name], value, rtol=0, atol=CLOSE)
    assert distance(every_third, truth(run, TORCH)) > CLOSE, "it is not the same as averaging gradients"

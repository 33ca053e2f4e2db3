"""Whole runs and what they record: sound ones raise no alarm, whatever averages them; each defect is named by its check."""

from __future__ import annotations

import importlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ddp.backends import BACKENDS, paired_backends
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.graph import engine as graph_engine
from ddp.replica.task import Task
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.sketches.judged import failures, judged
from tests.spread import spread

pytestmark = pytest.mark.usefixtures("in_process", "every_step")

CELLS = [(policy, backend) for policy in POLICIES for backend in paired_backends()]
AVERAGINGS = {
    "plain": Averaging(),
    "alike": Averaging(gamma=0.0),
    "elastic": Averaging(elastic=0.5),
    "momentum": Averaging(outer="momentum"),
    "nesterov": Averaging(outer="nesterov", outer_lr=0.5, outer_momentum=0.5),
    "state": Averaging(optimizer_state=True),
    "reset": Averaging(optimizer_reset=True),
    "all": Averaging(gamma=0.5, elastic=0.5, outer="momentum", outer_momentum=0.3, optimizer_state=True),
    "float32": Averaging(wire="float32"),
    "bfloat16": Averaging(wire="bfloat16"),
}


class Mixed(nn.Module):
    """Statistics of batches, dropout, a bias that a norm takes away again, a frozen layer and one that no step uses."""

    def __init__(self, unused: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(0.2), nn.Linear(12, 12), nn.Tanh())
        self.body[3].requires_grad_(False)
        self.head = nn.Linear(12, 2)
        if unused:
            self.unused = nn.Linear(3, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.body(inputs)))


def task(optimizer: str = "SGD", samples: int = 101, unused: bool = True) -> Task:
    settings = {"lr": 0.05, "momentum": 0.9} if optimizer == "SGD" else {"lr": 0.01}
    made = partial(getattr(torch.optim, optimizer), **settings)
    return replace(toy.task(samples=samples), model=partial(Mixed, unused), optimizer=made)


@pytest.mark.parametrize(("cell", "averaging"), spread(CELLS, AVERAGINGS))
def test_sound_runs_raise_no_alarm(play: Play, tmp_path: Path, cell: tuple[str, str], averaging: str) -> None:
    policy, backend = cell
    how = AVERAGINGS[averaging]
    if averaging in ("float32", "bfloat16") and backend == "cpu":
        pytest.skip("it has no wire")
    if backend == "torchft" and (how.elastic is not None or how.optimizer_state or how.wire != "float64"):
        pytest.skip("it averages parameters whole")
    if policy == "sync" and backend == "nccl" and averaging != "plain":
        pytest.skip("it averages inside steps")
    optimizer = {"state": "AdamW", "reset": "Adam"}.get(averaging, "SGD")
    played = play(policy, backend, partial(task, optimizer), averaging=how, options=toy.short_windows(policy))
    verdicts = judged(tmp_path, played, policy)
    assert {name: v.line for name, v in verdicts.items() if v.name != "PASS"} == {}
    assert verdicts.keys() >= {"average", "agreement", "idle", "evaluation"}


@pytest.mark.parametrize(("backend", "method"), [("nccl", "average"), ("cpu", "snapshot"), ("cpu", "apply")])
@pytest.mark.parametrize("averaging", ["plain", "elastic"])
def test_a_backend_does_not_vouch_for_itself(
    play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, method: str, averaging: str
) -> None:
    """What it does to a replica or an average behind its own back, in rounds that nobody looks at as it believes."""
    owner = importlib.import_module(BACKENDS[backend].module).Backend
    sound = getattr(owner, method)

    def broken(self: Any, order: Any, *about: Any, **how: Any) -> Any:
        outcome = sound(self, order, *about, **how)
        seen = getattr(order, "sketched", False)
        own = self._snapshot if method == "snapshot" else [s.values for s in self._sections if s.kind == "parameters"]
        for values in () if seen else own:
            if values.is_floating_point():
                values.copy_(values.bfloat16())
        return outcome

    monkeypatch.setattr(owner, method, broken)
    options = toy.short_windows("cadence")
    played = play("cadence", backend, task, averaging=AVERAGINGS[averaging], options=options)
    assert "average" in failures(tmp_path, played, "cadence")


@pytest.mark.parametrize("size", [1, 3, 8])
def test_any_number_of_ranks(play: Play, tmp_path: Path, size: int) -> None:
    played = play("cadence", "nccl", task, world_size=size, options=toy.short_windows("cadence"))
    assert failures(tmp_path, played, "cadence") == {}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("backend", ["nccl", "zero1", "zero2", "zero3"])
def test_gradients_of_steps_are_the_mean_of_all_ranks(play: Play, tmp_path: Path, backend: str, size: int) -> None:
    """With a last batch that not every rank has a sample of."""
    played = play("sync", backend, partial(task, samples=16 * size + 2), epochs=3, world_size=size)
    verdicts = judged(tmp_path, played, "sync")
    assert {name: v.line for name, v in verdicts.items() if v.name != "PASS"} == {}
    assert "average" in verdicts


@pytest.mark.parametrize("policy", ["sync", "cadence"])
def test_gradients_of_replicas_in_one_process(play: Play, tmp_path: Path, policy: str) -> None:
    played = play(policy, "nccl", task, engine=graph_engine, options=toy.short_windows(policy))
    verdicts = judged(tmp_path, played, policy, engine="graph")
    assert {name: v.line for name, v in verdicts.items() if v.name != "PASS"} == {}
    assert verdicts.keys() >= {"average", "agreement", "idle", "evaluation"}


@pytest.mark.parametrize("backend", ["torch_ddp", "torch_local_sgd"])
def test_engines_of_pytorch(play: Play, tmp_path: Path, backend: str) -> None:
    played = play("sync", backend, partial(task, samples=34, unused=False), deadline_s=60.0)
    verdicts = judged(tmp_path, played, "sync")
    assert {name: v.line for name, v in verdicts.items() if v.name != "PASS"} == {}
    assert "average" in verdicts

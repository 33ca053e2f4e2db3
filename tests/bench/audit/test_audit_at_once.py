"""The audit of virtual ranks that train in one operation: their steps are done again, and what breaks in them is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ddp.core.policies import POLICIES
from ddp.core.settings.virtual_time import VirtualTime
from ddp.replica.task import Job, Task
from ddp.virtual import engine
from ddp.virtual.eligibility import unfit
from ddp.virtual.rows import ReplicaRows
from ddp.virtual.vectorised import VectorisedRanks
from tests.bench.audit.audit_breaks import Break, wrapped
from tests.bench.audit.audited import audited, different
from tests.runtime import toy

RATED: Callable[[], Task] = partial(toy.task, lr=0.01, optimizer="Adam", schedule=toy.rising_schedule)


def train_at_once(folder: Path, policy: str, backend: str, task: Callable[[], Task], **fields: Any) -> Any:
    """A job on five virtual ranks, two of them slow, and its records."""
    given: dict[str, Any] = {"epochs": 2, "batch_size": 8, "seed": 3, "world_size": 5, "audit": "w5-s3-test"}
    given |= {"virtual": VirtualTime(path="vectorised"), "speeds": (1.0, 0.5, 1.0, 0.5, 1.0), "scratch": folder}
    job = Job(task=task, policy=POLICIES[policy](), backend=backend, **(given | fields))
    records: list[Any] = []
    engine.run(job, lambda record, at: records.append(record))
    return job, records


def decaying(**settings: Any) -> Task:
    return replace(toy.task(), optimizer=partial(torch.optim.Adam, lr=0.01, weight_decay=0.1, **settings))


CLEAN: list[tuple[str, str, Callable[[], Task]]] = [
    ("sync", "nccl", RATED),
    ("cadence", "nccl", RATED),
    ("async", "cpu", partial(decaying, decoupled_weight_decay=True)),
    ("cadence", "nccl", decaying),
]


@pytest.mark.parametrize(("policy", "backend", "task"), CLEAN)
def test_steps_of_many_ranks_are_done_again(
    tmp_path: Path, policy: str, backend: str, task: Callable[[], Task]
) -> None:
    report = audited(*train_at_once(tmp_path, policy, backend, task))
    assert different(report) == []
    assert report.count("equal", "step") >= 10
    assert report.count("equal", "evaluation") >= 2
    assert not [item.line for item in report.items if item.outcome == "skipped"]


def lost_moments(step: Any, self: ReplicaRows, ranks: Any, steps: Any) -> Any:
    dense = ranks == list(range(ranks[0], ranks[0] + len(ranks)))
    before = [state[ranks].clone() for state in self.optimizer.states]
    losses = step(ranks, steps)
    for state, own in zip(self.optimizer.states, before, strict=True):
        state[ranks] = state[ranks] if dense else own
    return losses


def rolled(given: Any, self: ReplicaRows, ranks: Any, steps: Any) -> Any:
    inputs, labels = given(ranks, steps)
    for place, rank in enumerate(ranks):
        if rank == 3:
            labels[place] = labels[place].roll(1)
    return inputs, labels


def forgotten(evaluate: Any, self: VectorisedRanks, rank: int, order: Any) -> Any:
    done = evaluate(rank, order)
    if rank > 2:
        for state in self._rows.optimizer.states:
            state[rank].zero_()
    return done


BREAKS: list[tuple[str, str, Break, str]] = [
    ("cadence", "nccl", wrapped(ReplicaRows, "_step", lost_moments), "exp_avg"),
    ("cadence", "nccl", wrapped(ReplicaRows, "_given", rolled), "rank 3"),
    ("sync", "nccl", wrapped(ReplicaRows, "_given", rolled), "loss of rank 3"),
    ("async", "cpu", wrapped(VectorisedRanks, "_evaluate", forgotten), "exp_avg changed after the evaluation"),
]


@pytest.mark.parametrize(("policy", "backend", "breaks", "what"), BREAKS)
def test_what_breaks_in_steps_of_many_ranks_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, policy: str, backend: str, breaks: Break, what: str
) -> None:
    breaks(monkeypatch)
    job, records = train_at_once(tmp_path, policy, backend, RATED)
    monkeypatch.undo()
    assert any(what in line for line in different(audited(job, records)))


def test_a_parameter_without_gradient_is_not_trained_for_many_at_once(tmp_path: Path) -> None:
    def net() -> nn.Module:
        model = toy.net(norm=False)
        model.unused = nn.Parameter(torch.ones(2))  # type: ignore[assignment]
        return model

    job, _ = train_at_once(tmp_path, "cadence", "nccl", toy.task)
    assert "has no gradient" in unfit(replace(job, task=lambda: replace(toy.task(), model=net)))

"""Proves engines that have a loop of their own: runs one on a few samples and reads its replicas afterwards."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.prove.oracle import OracleCourse, State, limited
from ddp.core.messages.events import Progress
from ddp.core.policies import Policy
from ddp.engine import ENGINES
from ddp.registries import member
from ddp.replica.task import Job, Task


@dataclass(frozen=True)
class EngineEnd:
    """The final state of an engine's run."""

    course: OracleCourse
    """The course that it trained."""
    states: list[State]
    """Final state of each replica."""
    loss: float
    """Mean over all trained samples."""


def run_engine(engine: str, policy: Policy, course: OracleCourse) -> EngineEnd:
    """Run an engine for the steps of a course, in this process. Raises what the engine raises."""
    samples = course.batch * course.world_size * course.steps
    short = replace(course, task=partial(_short, course.task, samples))
    records: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="bench-prove-", ignore_cleanup_errors=True) as scratch:
        job = Job(
            short.task, 1, course.batch, course.seed, course.world_size, policy, "nccl", Path(scratch),
            device="cpu", keep_state=True, step=course.how,
        )  # fmt: skip
        member("engine", engine, ENGINES[engine].module, "run")(job, lambda record, at: records.append(record))
        paths = [Path(scratch) / f"state-{rank}.pt" for rank in range(course.world_size)]
        loaded = [torch.load(path, weights_only=False) for path in paths]
    states = [{name: value.detach() for name, value in state.items()} for state in loaded]
    progress = [record for record in records if isinstance(record, Progress)]
    total = sum(record.loss_sum or 0.0 for record in progress)
    return EngineEnd(short, states, total / max(sum(record.samples for record in progress), 1))


def _short(make: Any, samples: int) -> Task:
    task: Task = make()
    train, test = task.train_data, task.eval_data
    return replace(task, train_data=lambda: limited(train(), samples), eval_data=lambda: limited(test(), samples))

"""Ranks that follow a script on either backend: what they do between averages, and what they see after each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ddp.backends import paired_backends
from ddp.backends.base import load
from ddp.backends.snapshot import Reducer
from ddp.core.messages.commands import Average, Join, Reduce
from ddp.core.messages.events import Reduced
from ddp.core.policies import POLICIES
from ddp.core.settings.averaging import Averaging
from ddp.engine.loop import TrainingLoop
from ddp.replica.task import Job
from tests.processes import exit_codes
from tests.runtime import toy

OWN = paired_backends(virtual=True)
"""Backends whose averages are ours. torchft adds up in float32, refuses `elastic`, `optimizer_state` and narrow wires, and
needs its server; its averages are held to closed forms in tests/conformance."""
PLAIN_OUTER = Averaging(outer="momentum", outer_lr=1.0, outer_momentum=0.0)

# `act(rank, loop, round)` trains and returns the samples that count.
Act = Callable[[int, TrainingLoop, int], int]
Seen = dict[str, Any]


class Actor:
    """A rank of either backend that does what a script says between rounds."""

    def __init__(self, job: Job, rank: int, act: Act) -> None:
        self.loop, self.rank, self.act = TrainingLoop(job, rank, lambda event: None), rank, act
        self.backend = load(job.backend)(job, rank, self.loop)

    def train(self, index: int) -> int:
        samples = self.act(self.rank, self.loop, index)
        self.loop.contribute(index)
        return samples

    def see(self, divergence: float | None) -> Seen:
        with self.backend.averaged_weights(exact=True):
            mean = self.parameters.clone()
        return {"own": self.parameters.clone(), "mean": mean, "divergence": divergence, "inner": inner(self.loop)}

    @property
    def parameters(self) -> Tensor:
        return self.loop.replica.state.sections[0].values


def inner(loop: TrainingLoop) -> list[Tensor]:
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
    actor.backend.finish()
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
                actor.backend.snapshot(Average(0, 0, (), False, "a test"))
            reducer._reduce(Reduce(index, tuple(range(job.world_size)), samples, ""))
            assert isinstance(done[-1], Reduced), done[-1]
            for actor, saw in zip(actors, seen, strict=True):
                saw.append(actor.see(actor.backend.apply(0, exact=True).divergence))
    for actor, saw in zip(actors, seen, strict=True):
        actor.backend.finish()
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


def wander(samples: tuple[int, ...], rank: int, loop: TrainingLoop, index: int) -> int:
    own = loop.replica.state.sections[0].values
    own.add_(move(rank, index, own.numel()))
    return samples[rank]


def start(folder: Path) -> np.ndarray[Any, Any]:
    loop = TrainingLoop(job(folder, "cpu", Averaging()), 0, lambda event: None)
    return loop.replica.state.sections[0].values.double().numpy().copy()


def moved(at: np.ndarray[Any, Any], rank: int, index: int) -> np.ndarray[Any, Any]:
    return at + move(rank, index, at.size).double().numpy()

"""What tests with real processes share: running a job in a private folder, and the promise that nothing is left.
And, for tests without processes, a connection over TCP."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from ddp.backends import BACKENDS, is_torch_native
from ddp.core.messages.events import Evaluated, Finished
from ddp.core.policies import POLICIES
from ddp.engine import elche
from ddp.engine.in_process import KILLING, InProcessRanks
from ddp.engine.ranks import RankProcesses
from ddp.replica.evidence import step_sketches
from ddp.replica.task import Job, Task
from tests.runtime import toy


@dataclass
class Played:
    """A run and its records."""

    job: Job
    records: list[Any]
    times: list[float] = field(default_factory=list)

    @property
    def digests(self) -> set[str]:
        return {event.digest for event in self.of(Finished)}

    def of(self, kind: type) -> list[Any]:
        return [record for record in self.records if isinstance(record, kind)]

    def state(self, rank: int = 0) -> dict[str, torch.Tensor]:
        return torch.load(self.job.scratch / f"state-{rank}.pt")

    def accuracy(self) -> float:
        last = [event for event in self.of(Evaluated) if event.epoch == self.job.epochs - 1]
        return sum(event.metric_sum for event in last) / sum(event.samples for event in last)


Play = Callable[..., Played]


@pytest.fixture
def play(tmp_path_factory: pytest.TempPathFactory) -> Play:
    """Run a job: policy and backend by name, other fields of Job as keywords. `records`: a list for the records of a run
    that does not end."""

    def run(policy: str, backend: str, task: Callable[[], Task] = toy.task, **fields: Any) -> Played:
        options = fields.pop("options", {})
        defaults: dict[str, Any] = {"epochs": 2, "batch_size": 8, "seed": 3, "world_size": 2, "deadline_s": 30.0}
        defaults |= {"keep_state": True, "scratch": tmp_path_factory.mktemp("scratch")}
        engine, records = fields.pop("engine", elche), fields.pop("records", [])
        job = Job(task=task, policy=POLICIES[policy](**options), backend=backend, **{**defaults, **fields})
        played = Played(job, records)

        def emit(record: Any, at: float) -> None:
            played.records.append(record)
            played.times.append(at)

        engine.run(job, emit)
        return played

    return run


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks are threads of this process, resumed in turn. Some still have processes: those of PyTorch and torchft, which
    need a process group each, and those whose faults end or stop one. Not for tasks that do that themselves."""
    processes = elche.RankProcesses

    def provide(job: Job) -> InProcessRanks | RankProcesses:
        deadly = any(fault.kind in KILLING for fault in job.faults)
        apart = is_torch_native(job.backend) or bool(BACKENDS[job.backend].service)
        return (processes if deadly or apart else InProcessRanks)(job)

    monkeypatch.setattr(elche, "RankProcesses", provide)


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is sketched: runs of tests are short."""
    monkeypatch.setattr(step_sketches, "MOST", 1.0)


def ranks_alive() -> list[psutil.Process]:
    """Processes forked by the fork server that still live, but for what it runs itself while it imports."""
    alive = []
    for process in psutil.Process().children(recursive=True):
        parent = process.parent()
        if parent is None or parent.pid == psutil.Process().pid or process.status() == psutil.STATUS_ZOMBIE:
            continue
        if process.name() != "ldconfig":
            alive.append(process)
    return alive


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    yield
    assert ranks_alive() == []


@pytest.fixture
def lines() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection over TCP."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    with ours, theirs:
        yield ours, theirs


def spying(folder: Path, **options: Any) -> Callable[[], Task]:
    return partial(toy.task, folder=folder, **options)

"""Which GPU a rank takes on its host, however a launcher has dealt ranks to hosts. No GPUs, no processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ddp.engine.loop import device_of_rank
from ddp.launcher.environment import Placement
from ddp.remote import agent, job_message, launched_process
from ddp.remote.agent import HostClock, NodeAgent, RankAssignment
from ddp.replica.task import Job
from tests.runtime.remote.test_remote_file_mirror import CATALOGUE
from tests.runtime.remote.test_remote_file_mirror import job as sent_job


def received(sent: Job, node: int, local_rank: int, host_ranks: int, monkeypatch: pytest.MonkeyPatch) -> Job:
    """The job as a node agent gives it to its rank."""
    monkeypatch.setattr(agent, "Link", lambda wire, name: SimpleNamespace(expect=lambda deadline_s: None))
    wire: Any = None
    own = RankAssignment(("first", 1), b"", b"", 1, node, CATALOGUE, local_rank, host_ranks)
    there = NodeAgent(own, wire, HostClock(0.0, 0.0))
    there._prepare(job_message.read(job_message.encode(sent, CATALOGUE, here=False)))
    assert there._job is not None
    return there._job


@pytest.mark.parametrize(
    ("places", "first_host_ranks"),
    [
        ([(rank % 2, rank // 2) for rank in range(8)], 4),  # dealt out in turn, as by srun -m cyclic
        ([(rank // 4, rank % 4) for rank in range(8)], 4),
        ([(0, 0), (1, 0), (1, 1), (1, 2), (1, 3)], 1),  # more on one host than on the other
    ],
)
def test_each_rank_of_a_host_has_a_gpu_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[tuple[int, int]], first_host_ranks: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    sent = replace(sent_job(tmp_path), world_size=len(places), host_ranks=first_host_ranks, speeds=(), faults=())
    taken = {(0, device_of_rank(sent, 0).index)}
    for rank, (node, local) in enumerate(places[1:], 1):
        beside = sum(each == node for each, _ in places)
        own = received(sent, node, local, beside, monkeypatch)
        assert own.host_ranks == beside
        taken.add((node, device_of_rank(own, rank).index))
    assert len(taken) == len(places)


def test_the_place_on_the_host_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launched_process, "candidates", lambda *_: None)
    monkeypatch.setattr(launched_process, "reachable", lambda *_, **__: "first")
    placement = Placement("slurm", 6, 8, 3, 4, 0, 2, ("n1", "n2"), "41")
    assert launched_process.process_of(placement, {}).local_rank == 3

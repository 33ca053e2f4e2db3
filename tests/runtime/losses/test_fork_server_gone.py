"""A fork server that is killed takes all its ranks along: their losses are known at once, before anything is started."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, cast

import pytest

from ddp.core.coordinator import Coordinator
from ddp.core.errors import RankLost
from ddp.core.messages.events import Event, Lost, Ready
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.engine import elche, ranks
from ddp.process import forkserver
from ddp.replica.task import Job
from tests.runtime import toy

FAR_ENDS: dict[int, Connection] = {}


class Unforked(ranks.ForkedRank):
    """A rank that is only a channel."""

    def __init__(self, job: Job, rank: int) -> None:
        self._connection, FAR_ENDS[rank] = Pipe()

    def start(self) -> Connection:
        return self._connection

    def wait(self, timeout_s: float) -> bool:
        return True

    def kill(self) -> None: ...

    def exit_reason(self) -> str:
        return "its process is gone"


@pytest.mark.parametrize("gone", [True, False])
def test_losses_of_its_ranks_come_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """They were recorded up to 9.5 s apart: in between, the first lost rank was started by a new fork server."""
    monkeypatch.setattr(ranks, "ForkedRank", Unforked)
    monkeypatch.setattr(forkserver, "ended", lambda: gone)
    job = Job(toy.task, 1, 8, 0, 3, POLICIES["sync"](), "nccl", tmp_path)
    with ranks.RankProcesses(job) as processes:
        FAR_ENDS[1].close()
        later = threading.Timer(0.05, lambda: [FAR_ENDS[rank].close() for rank in (0, 2)])
        later.start()
        lost = [event.rank for event in processes.events(0.5) if isinstance(event, Lost)]
        assert lost == ([1, 0, 2] if gone else [1])
        later.join()


class Lines:
    """Ranks of which all are lost at once."""

    def __init__(self, *batches: list[Event]) -> None:
        self.batches, self.restarted = list(batches), list[int]()

    def events(self, timeout_s: float) -> list[Event]:
        return self.batches.pop(0)

    def send(self, command: object) -> None: ...

    def drop(self, rank: int) -> None: ...

    def restart(self, rank: int, life: int) -> None:
        self.restarted.append(rank)


def test_nobody_is_started_again_while_other_losses_wait() -> None:
    world = World(2, 64, 8, 1, blocking=False, in_step=False, tolerate_loss=True, restarts=None)
    begun = [Ready(0.1, rank, 64, 10, "d", "cpu", "none") for rank in (0, 1)]
    both = Lines([*begun], [Lost(0.2, 0, "gone"), Lost(0.2, 1, "gone")])
    coordinator = Coordinator.start(POLICIES["cadence"](), world, 0.0)
    with pytest.raises(RankLost, match="rank 1: gone"):
        elche.coordinate(coordinator, cast(Any, both), None, lambda publish: None, lambda record, at: None)
    assert both.restarted == []

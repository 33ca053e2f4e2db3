"""What tells two starts of mpirun on one host from each other, where its variables do not. No network."""

from __future__ import annotations

import psutil
import pytest

from ddp.launcher.environment import Placement
from ddp.remote.launched_process import process_of


class Ancestor:
    """A process above the ranks."""

    def __init__(self, pid: int, name: str) -> None:
        self.pid, self._name = pid, name

    def name(self) -> str:
        return self._name


def test_ranks_of_one_mpirun_meet_at_one_port_and_of_another_at_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell around each rank tells nothing."""

    def store(rank: int, *above: Ancestor) -> str:
        monkeypatch.setattr(psutil.Process, "parents", lambda _: list(above))
        monkeypatch.setattr("ddp.remote.launched_process.reachable", lambda *_, **__: "127.0.0.1")
        return process_of(Placement("mpi", rank, 2, rank, 2), {}).store

    one, other = Ancestor(7, "hydra_pmi_proxy"), Ancestor(8, "hydra_pmi_proxy")
    first = store(0, Ancestor(20, "sh"), one, Ancestor(1, "systemd"))
    assert first == store(1, Ancestor(21, "sh"), one)
    assert first != store(0, other)

"""Defects of `benchmarks.bugs.unseen` by somebody who had not seen the checks: of the first step from a loaded state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.bugs.bug import Module, counted, wrap
from benchmarks.bugs.unseen import REPLICA, unseen
from benchmarks.bugs.unseen_fourth import interrupted


def cleared(replica: Module, due: Callable[[Any], bool]) -> None:
    """Clear the optimizer's state inside the first step of a process whose job is `due`."""

    def broken(clear: Any, self: Any) -> None:
        clear()
        if due(self._job) and not counted(self, "cleared"):
            self.optimizer.state.clear()

    wrap(replica.Replica, "_clear", broken)


@unseen("optimizer", "KempnerInstitute/KempnerForge#115", "mlp cpu_async resumed", REPLICA)
def moments_lost_in_first_step(replica: Module) -> None:
    """Moments that a resumed run has loaded are lost inside its first step. Stop a run; clear them as it goes on."""
    interrupted(replica)
    cleared(replica, lambda job: job.resume is not None)


@unseen(
    "optimizer",
    "pytorch/torchtitan#4422",
    "mlp cpu_async world_size=3 cluster.restart=1 cluster.faults=['1@120:crash']",
    REPLICA,
)
def moments_lost_as_it_joins(replica: Module) -> None:
    """A rank that joins loses the moments that it was sent inside its first step. Clear them in a process that was
    started again."""
    cleared(replica, lambda job: job.life > 0)

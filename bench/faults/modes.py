"""The modes of the matrix, and their properties that its table needs. Plays nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from ddp.backends import BACKENDS, SyncKind
from ddp.core.policies import EVERY_STEP, POLICIES, Policy, meets_every_step
from ddp.engine import ENGINES
from ddp.engine.modes import Mode, modes

WINDOW, LENGTHS = 3, ("anchor", "max_anchor", "base")
"""Steps of a window in the matrix, and the policies' settings for that."""


@dataclass(frozen=True)
class FaultMode:
    """The properties of a mode that the table needs."""

    name: str
    engine: str
    policy: str
    backend: str

    @property
    def one_process(self) -> bool:
        """Its ranks are threads of one process without a coordinator: `graph_*`, `solo`."""
        return ENGINES[self.engine].one_process

    @property
    def one_rank(self) -> bool:
        """It trains on one rank, whatever number is requested."""
        return ENGINES[self.engine].one_rank

    @property
    def in_step(self) -> bool:
        """Ranks average gradients inside steps, in a collective among processes."""
        return not self.one_process and meets_every_step(self.policy) and SyncKind.STEP in BACKENDS[self.backend].sync

    @property
    def snapshots(self) -> bool:
        """The coordinator's process averages snapshots; ranks have no collective."""
        return not self.one_process and SyncKind.SNAPSHOT in BACKENDS[self.backend].sync

    @property
    def sharded(self) -> bool:
        """It needs every rank: the run ends with the first that is lost."""
        return not self.one_process and not BACKENDS[self.backend].averages

    @property
    def checkpoints(self) -> bool:
        """It writes checkpoints and can resume from them."""
        return self.one_process or BACKENDS[self.backend].checkpoints

    @property
    def stands_for(self) -> tuple[object, ...]:
        """Return what the coordinator's core knows of a run in this mode. Modes with equal values are the same run for
        it."""
        return self.one_process, self.policy, self.in_step, self.snapshots, self.sharded, self.checkpoints

    def windows(self) -> Policy:
        """Return the policy, with short windows if it has a setting for them."""
        kind = POLICIES[self.policy]
        return kind(**{field.name: WINDOW for field in fields(cast(Any, kind)) if field.name in LENGTHS})


UNUSED = next(iter(BACKENDS))
"""The backend in a job whose engine uses none."""


def _mode(name: str, mode: Mode) -> FaultMode:
    return FaultMode(name, mode.engine, mode.policy or EVERY_STEP, mode.backend or UNUSED)


_WAYS = {name: _mode(name, mode) for name, mode in modes().items() if not ENGINES[mode.engine].virtual}
_RANKED = sorted(_WAYS.values(), key=lambda mode: (mode.one_process, mode.sharded))
MODES = {mode.name: mode for mode in _RANKED}
"""Modes of the matrix: first those that tolerate the loss of a rank, then those that do not, then those of one
process."""


def twin(name: str) -> str:
    """Return the first mode that is the same run for the core in virtual time, which has no shards; mostly the mode
    itself."""
    return next(mode.name for mode in MODES.values() if mode.stands_for == MODES[name].stands_for)

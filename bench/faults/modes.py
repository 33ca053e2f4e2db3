"""The modes of the matrix: what its table must know of each. Plays nothing."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, cast

from ddp.backends import BACKENDS, SyncKind
from ddp.core.policies import EVERY_STEP, POLICIES, Policy, meets_every_step
from ddp.engine import ENGINES
from ddp.engine.modes import Mode, modes

WINDOW, LENGTHS = 3, ("anchor", "max_anchor", "base")
"""Steps of a window, and the settings of policies that say so."""


@dataclass(frozen=True)
class FaultMode:
    """What the table must know of a mode."""

    name: str
    engine: str
    policy: str
    backend: str

    @property
    def one_process(self) -> bool:
        """Its ranks are threads of one process, which has no coordinator: `graph_*`, `solo`."""
        return ENGINES[self.engine].one_process

    @property
    def one_rank(self) -> bool:
        """It trains on one rank, however many are asked for."""
        return ENGINES[self.engine].one_rank

    @property
    def in_step(self) -> bool:
        """Gradients are averaged inside steps, in a collective among processes."""
        return not self.one_process and meets_every_step(self.policy) and SyncKind.STEP in BACKENDS[self.backend].sync

    @property
    def snapshots(self) -> bool:
        """The coordinator's process averages snapshots; ranks meet in no collective."""
        return not self.one_process and SyncKind.SNAPSHOT in BACKENDS[self.backend].sync

    @property
    def sharded(self) -> bool:
        """No rank can be done without: the run ends with the first that is lost."""
        return not self.one_process and not BACKENDS[self.backend].averages

    @property
    def checkpoints(self) -> bool:
        """It makes checkpoints, and resumes from them."""
        return self.one_process or BACKENDS[self.backend].checkpoints

    @property
    def stands_for(self) -> tuple[object, ...]:
        """Return what the core of production is told of a run in this mode: modes with the same are one run of it."""
        return self.one_process, self.policy, self.in_step, self.snapshots, self.sharded, self.checkpoints

    def windows(self) -> Policy:
        """Return the policy, with short windows where it has a setting for them."""
        kind = POLICIES[self.policy]
        return kind(**{field.name: WINDOW for field in fields(cast(Any, kind)) if field.name in LENGTHS})


UNUSED = next(iter(BACKENDS))
"""The backend that a job names whose engine has none."""


def _mode(name: str, mode: Mode) -> FaultMode:
    return FaultMode(name, mode.engine, mode.policy or EVERY_STEP, mode.backend or UNUSED)


_WAYS = {name: _mode(name, mode) for name, mode in modes().items() if not ENGINES[mode.engine].virtual}
_RANKED = sorted(_WAYS.values(), key=lambda mode: (mode.one_process, mode.sharded))
MODES = {mode.name: mode for mode in _RANKED}
"""Modes of the matrix: those that go on without a rank, those that cannot, those of one process."""


def twin(name: str) -> str:
    """Return the first mode that is the same run of the core in virtual time, which knows no shards: itself, mostly."""
    return next(mode.name for mode in MODES.values() if mode.stands_for == MODES[name].stands_for)

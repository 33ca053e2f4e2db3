"""`cadence`: every rank runs its El Che count, then all are brought together. The default for devices of unequal speed."""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.policies.windows import WindowSettings, WindowState
from ddp.core.world import World


@dataclass(frozen=True)
class Cadence(WindowSettings):
    """On a backend where nobody blocks, a rank may run up to one window ahead of its contribution."""

    def freedom(self, world: World) -> tuple[bool, int]:
        """Where ranks block they stand still at the end of an epoch, too."""
        return not world.blocking, 0 if world.blocking else 1

    def ahead(self, state: WindowState) -> tuple[int, ...]:
        """A window, where nobody blocks."""
        return (0,) * state.world.size if state.world.blocking else state.elche.counts

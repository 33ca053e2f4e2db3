"""What runs the loop. One module for each engine, with `run(job, emit) -> None`; `emit` receives every record as it happens.

Owns the registry, and what must be known of an engine before it runs. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp.core.policies import DEFAULT, EVERY_STEP
from ddp.registry import Registry, loaded


@dataclass(frozen=True)
class EngineSpec:
    """What must be known of an engine before it runs."""

    module: str
    backends: bool = False
    """Whether it runs pairs of policy and backend; False: the engine synchronises by itself."""
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The policies of an engine without backends, with the settings that a mode begins with; none: it averages nothing."""
    one_rank: bool = False
    """It trains on one rank only."""
    one_process: bool = False
    """Its ranks have no processes of their own: none can be lost."""
    virtual: bool = False
    """Ranks really train, all in this process; times come from a simulated clock."""

    lacks: tuple[str, ...] = ()
    """Step settings that it does not support: `fp16`, `compile`."""

    @property
    def in_place(self) -> bool:
        """Whether its ranks are in the process that starts them."""
        return self.one_process or self.virtual

    def fits(self, world_size: int) -> bool:
        """Return whether it can have `world_size` ranks."""
        return world_size == 1 or not self.one_rank


# In graph mode a window is one large batch: few of them, so that the recipe's learning rate still fits.
GRAPH_POLICIES: dict[str, dict[str, Any]] = {EVERY_STEP: {}, DEFAULT: {"anchor": 1, "max_anchor": 4}}
_OURS = {
    "solo": EngineSpec("ddp.engine.solo", one_rank=True, one_process=True),
    "elche": EngineSpec("ddp.engine.elche", backends=True),
    "graph": EngineSpec("ddp.graph.engine", policies=GRAPH_POLICIES, one_process=True, lacks=("compile",)),
    "virtual": EngineSpec("ddp.virtual.engine", backends=True, virtual=True, lacks=("compile",)),
}
ENGINES: Registry[EngineSpec] = Registry("engines", _OURS, loaded(EngineSpec))

"""The engines, which run the training loop: one module each, with `run(job, emit) -> None`. `emit` receives every record.

Owns the registry of engines, and their properties that must be known before they run. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp.core.policies import DEFAULT, EVERY_STEP
from ddp.registry import Registry, loaded


@dataclass(frozen=True)
class EngineSpec:
    """Properties of an engine that are known before it runs."""

    module: str
    backends: bool = False
    """Whether it runs pairs of a policy and a backend; False: it synchronises the ranks itself."""
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Policies of an engine without backends, each with the settings that its mode begins with; empty: it averages
    nothing."""
    one_rank: bool = False
    """Whether it trains on one rank only."""
    one_process: bool = False
    """Whether its ranks share one process, so that none can be lost."""
    virtual: bool = False
    """Whether ranks train for real, in this process, while times come from a simulated clock."""

    lacks: tuple[str, ...] = ()
    """Step settings that it does not support: `fp16`, `compile`."""

    @property
    def in_place(self) -> bool:
        """Whether its ranks are in the process that starts them."""
        return self.one_process or self.virtual

    def fits(self, world_size: int) -> bool:
        """Return whether it can run `world_size` ranks."""
        return world_size == 1 or not self.one_rank


# In graph mode a window is one large batch: take few of them, so that the recipe's learning rate still fits.
GRAPH_POLICIES: dict[str, dict[str, Any]] = {EVERY_STEP: {}, DEFAULT: {"anchor": 1, "max_anchor": 4}}
_OURS = {
    "solo": EngineSpec("ddp.engine.solo", one_rank=True, one_process=True),
    "elche": EngineSpec("ddp.engine.elche", backends=True),
    "graph": EngineSpec("ddp.graph.engine", policies=GRAPH_POLICIES, one_process=True, lacks=("compile",)),
    "virtual": EngineSpec("ddp.virtual.engine", backends=True, virtual=True, lacks=("compile",)),
}
ENGINES: Registry[EngineSpec] = Registry("engines", _OURS, loaded(EngineSpec))

"""What must be known of a backend before it is used. Knows nothing of ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ddp.backends import BACKENDS
from ddp.core.world import World
from ddp.engine import ENGINES
from ddp.registered import imported


@dataclass(frozen=True)
class BackendFacts:
    """What dispatch and rounds must know of a backend."""

    blocking: bool
    """Ranks stand still while replicas are averaged."""
    in_step: bool
    """Gradients can be averaged inside a step."""
    indispensable: str = ""
    """Why no rank of the mode `{}` can be done without, and what to do about it; empty: those who are left can go on."""


def module_of(name: str) -> Any:
    """Return the module of backend `name`, or of an engine that is one by itself; imports torch."""
    return imported("backend", name, BACKENDS.get(name) or ENGINES[name])


def facts_of(name: str) -> BackendFacts:
    """Return the facts about backend `name`, or an engine that is one by itself; imports torch."""
    facts: BackendFacts = module_of(name).FACTS
    return facts


def world_of(name: str, size: int, samples: int, batch: int, epochs: int, **settings: Any) -> World:
    """Return the world of a run on backend `name`, or an engine that is one by itself; `settings`: further fields of it."""
    facts = facts_of(name)
    why = facts.indispensable.format(name)
    return World(size, samples, batch, epochs, facts.blocking, facts.in_step, indispensable=why, **settings)

"""Modes: names for the ways of training that the registries of engines, backends and policies make.

Owns which ways there are and what each is called. Knows neither Hydra nor torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp.backends import BACKENDS, BackendSpec, paired_backends
from ddp.core.policies import EVERY_STEP, POLICIES, meets_every_step
from ddp.engine import ENGINES, EngineSpec

PAIRING = "elche"
"""The engine that trains a policy with a backend."""


@dataclass(frozen=True)
class Mode:
    """A way of training, by the names of its parts; None: it has no such part."""

    engine: str
    policy: str | None = None
    backend: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the policy, where they differ from its own."""

    @property
    def name(self) -> str:
        """Return what results call it: `nccl_cadence`, `graph_sync`; of a backend with one policy and `solo`, its name."""
        spec = backend_of(self)
        if self.backend is not None and spec is not None and not spec.averages:
            return self.backend
        words = (self.engine,) if self.backend is None or engine_of(self.engine).virtual else ()
        return "_".join((*words, *filter(None, (self.backend, self.policy))))

    @property
    def alike(self) -> bool:
        """Return whether all ranks do equally many steps."""
        return self.policy is None or meets_every_step(self.policy)


def modes() -> dict[str, Mode]:
    """Return name -> mode, of all that the registries hold now."""
    ways: list[Mode] = []
    for engine, spec in ENGINES.items():
        if spec.backends:
            backends = paired_backends() if spec.virtual else BACKENDS
            ways += [mode_of(engine, policy, backend) for backend in backends for policy in POLICIES]
        elif spec.policies:
            ways += [Mode(engine, policy, settings=settings) for policy, settings in spec.policies.items()]
        else:
            ways.append(Mode(engine))
    return {mode.name: mode for mode in ways}


def mode_of(engine: str, policy: str | None, backend: str | None) -> Mode:
    """Return the mode of a configuration, without the parts that mean nothing to it.

    Earlier versions called a backend with one policy an engine: as such it is understood."""
    if engine in BACKENDS:
        engine, backend = PAIRING, engine
    spec = engine_of(engine)
    if not spec.backends:
        return Mode(engine, policy if spec.policies else None)
    if backend is not None and backend in BACKENDS and not BACKENDS[backend].averages:
        policy = EVERY_STEP
    return Mode(engine, policy, backend)


def mode_name(engine: str, policy: str | None, backend: str | None) -> str:
    """Return what results call this way of training."""
    return mode_of(engine, policy, backend).name


def engine_of(engine: str) -> EngineSpec:
    """Return the engine's entry, also by the name of a backend that was an engine once; of no engine, an empty entry."""
    return ENGINES.get(PAIRING if engine in BACKENDS else engine, EngineSpec(""))


def backend_of(mode: Mode) -> BackendSpec | None:
    """Return the entry of the mode's backend; None: it has none."""
    return BACKENDS.get(mode.backend or "")

"""Modes: names for the combinations of engine, backend and policy that the registries allow.

Owns which modes exist and their names. Knows neither Hydra nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ddp.backends import BACKENDS, BackendSpec, paired_backends
from ddp.core.policies import EVERY_STEP, POLICIES, meets_every_step
from ddp.engine import ENGINES, EngineSpec

PAIRING = "elche"
"""The engine that trains with a pair of policy and backend."""


@dataclass(frozen=True)
class Mode:
    """A combination of engine, policy and backend; None: it has no such part."""

    engine: str
    policy: str | None = None
    backend: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the policy where they differ from its defaults."""

    @property
    def name(self) -> str:
        """Return the name in results: `nccl_cadence`; of a backend with one policy `zero1`; of other engines than `elche`
        with their own name before it: `graph_sync`, `virtual_nccl_cadence`, `solo`."""
        spec = backend_of(self)
        policy = self.policy if self.backend is None or spec is None or spec.averages else None
        paired = self.backend is not None and (self.engine == PAIRING or self.engine not in ENGINES)
        return "_".join(filter(None, (None if paired else self.engine, self.backend, policy)))

    @property
    def alike(self) -> bool:
        """Return whether all ranks do equally many steps."""
        return self.policy is None or meets_every_step(self.policy)


def modes() -> dict[str, Mode]:
    """Return name -> mode, for all current members of the registries."""
    ways: list[Mode] = []
    for engine, spec in ENGINES.items():
        if spec.backends:
            backends = paired_backends(virtual=True) if spec.virtual else BACKENDS
            ways += [mode_of(engine, policy, backend) for backend in backends for policy in POLICIES]
        elif spec.policies:
            ways += [Mode(engine, policy, settings=settings) for policy, settings in spec.policies.items()]
        else:
            ways.append(Mode(engine))
    return {mode.name: mode for mode in ways}


def preset_of(name: str) -> Mapping[str, Any]:
    """Return the settings of the policy with which the mode called `name` begins; {} if it is unknown or has none."""
    own = (
        (Mode(engine, policy), preset) for engine, spec in ENGINES.items() for policy, preset in spec.policies.items()
    )
    return next((preset for mode, preset in own if mode.name == name), {})


def mode_of(engine: str, policy: str | None, backend: str | None) -> Mode:
    """Return the mode of a configuration, without the parts that do not apply to it.

    In earlier versions a backend with one policy was an engine: its name is accepted as `engine`."""
    if engine in BACKENDS:
        engine, backend = PAIRING, engine
    spec = engine_of(engine)
    if not spec.backends:
        return Mode(engine, policy if spec.policies else None)
    if backend is not None and backend in BACKENDS and not BACKENDS[backend].averages:
        policy = EVERY_STEP
    return Mode(engine, policy, backend)


def mode_name(engine: str, policy: str | None, backend: str | None) -> str:
    """Return the name of this mode in results."""
    return mode_of(engine, policy, backend).name


def engine_of(engine: str) -> EngineSpec:
    """Return the engine's entry; for a backend that was an engine once, that of `elche`; for an unknown name, an empty
    one."""
    return ENGINES.get(PAIRING if engine in BACKENDS else engine, EngineSpec(""))


def backend_of(mode: Mode) -> BackendSpec | None:
    """Return the entry of the mode's backend, or None if it has none."""
    return BACKENDS.get(mode.backend or "")

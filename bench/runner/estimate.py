"""What a cell will cost, from what runs like it have cost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench.base.figures import plural
from bench.results.schema import Metrics
from bench.runner.spec import RunSpec

USUAL_S = {"quick": 20.0}
"""Seconds of a run of a recipe of which nothing is known here."""
OTHERWISE_S = 600.0


@dataclass(frozen=True)
class Estimate:
    """Seconds of one run, and where they come from."""

    seconds: float
    source: str


Alike = Callable[[Metrics, RunSpec], bool]

SOURCES: dict[str, Alike] = {
    "this cell": lambda m, spec: m.config_hash == spec.config_hash,
    "this mode": lambda m, spec: _same(m, spec, "model", "data", "mode", "world_size"),
    "this model": lambda m, spec: _same(m, spec, "model", "data"),
}
"""Runs that tell, the best first."""


def estimate(spec: RunSpec, history: Sequence[Metrics]) -> Estimate:
    """Of one run: start-up and training of the runs that tell most, the training scaled by the number of epochs."""
    ok = [m for m in history if m.status == "ok" and m.epochs_planned and not m.resumed]
    for source, alike in SOURCES.items():
        known = [m for m in ok if alike(m, spec)]
        if known:
            return Estimate(fmean(_scaled(m, spec) for m in known), f"{source}, {plural(len(known), 'run')}")
    return Estimate(USUAL_S.get(spec.recipe, OTHERWISE_S), "a usual run")


def _same(m: Metrics, spec: RunSpec, *fields: str) -> bool:
    return all(getattr(m, name) == getattr(spec, name) for name in fields)


def _scaled(m: Metrics, spec: RunSpec) -> float:
    startup = m.time_s.startup + m.time_s.shutdown
    return startup + (m.time_s.total - startup) * spec.epochs / m.epochs_planned

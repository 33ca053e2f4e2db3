"""What a cell will cost, from what runs like it have cost. Pure."""

from __future__ import annotations

from collections.abc import Sequence
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


SOURCES = {
    "this cell": ("config_hash",),
    "this mode": ("model", "data", "mode", "world_size"),
    "this model": ("model", "data"),
}
"""Runs that a run is estimated from, the best first -> what they have in common with it."""


def estimate(spec: RunSpec, history: Sequence[Metrics]) -> Estimate:
    """Estimate one run: start-up and training of the runs most like it, the training scaled by the number of epochs."""
    ok = [m for m in history if m.status == "ok" and m.epochs_planned and not m.resumed]
    for source, fields in SOURCES.items():
        known = [m for m in ok if all(getattr(m, name) == getattr(spec, name) for name in fields)]
        if known:
            return Estimate(fmean(_scaled(m, spec) for m in known), f"{source}, {plural(len(known), 'run')}")
    return Estimate(USUAL_S.get(spec.recipe, OTHERWISE_S), "a usual run")


def _scaled(m: Metrics, spec: RunSpec) -> float:
    startup = m.time_s.startup + m.time_s.shutdown
    return startup + (m.time_s.total - startup) * spec.epochs / m.epochs_planned

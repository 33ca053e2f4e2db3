"""The checks. Each is a function from a cell and its reference to a finding, or to None if it does not apply."""

from __future__ import annotations

from collections.abc import Callable

from bench.validate.checks import (
    agreement,
    average,
    breakdown,
    curve,
    determinism,
    evaluation,
    idle,
    ledger,
    quality,
    rate,
    rcp,
    samples,
    speed,
    status,
    target,
    variance,
    visits,
    volume,
)
from bench.validate.findings import Case, Finding

Check = Callable[[Case], Finding | None]

CHECKS: dict[str, Check] = {
    "status": status.check,
    "breakdown": breakdown.check,
    "ledger": ledger.check,
    "visits": visits.check,
    "average": average.check,
    "agreement": agreement.check,
    "idle": idle.check,
    "rate": rate.check,
    "evaluation": evaluation.check,
    "volume": volume.check,
    "determinism": determinism.check,
    "target": target.check,
    "samples": samples.check,
    "curve": curve.check,
    "speed": speed.check,
    "variance": variance.check,
    "quality": quality.check,
}
"""Name -> check."""

OPTIONAL: dict[str, Check] = {"rcp": rcp.check}
"""Those that are asked for by name."""

"""From the records of a run to its result: `analyze`. Pure: no clock, no files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.schema import Metrics
from bench.spec import RunSpec
from ddp.runtime.codec import Record


def analyze(
    spec: RunSpec,
    records: Sequence[Record],
    *,
    status: str,
    launched: float,
    ended: float,
    env: dict[str, Any],
    git: dict[str, Any],
    warnings: Sequence[str] = (),
    error: str | None = None,
) -> Metrics:
    """The result of a run of `spec`. Write its `model_dump_json(indent=1)` as `metrics.json`."""
    raise NotImplementedError

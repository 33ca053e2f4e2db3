"""The result of a run from its records alone: computed when the run ends, and again by anyone who doubts it. Pure.

The first record describes the run, and the last one how it ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from bench.base import canonical
from bench.config.spec import RunSpec
from bench.results.analysis.stream import RunRecords, SplitRecords
from bench.results.analyze import analyze
from bench.results.chain import Seal
from bench.results.schema import Metrics, RecordSeal
from ddp.core.messages.run_bounds import RunEnd, RunHeader
from ddp.process.codec import Record

ROUNDING, TINY = 1e-9, 1e-12
"""Relative difference that two machines, or versions of Python, may have in the same sum; and absolute difference, for
what is left of larger numbers, such as the rest of fractions that sum to 1."""


class MetricDifference(NamedTuple):
    """A field in which two results differ; `msgspec.UNSET` if one result lacks it."""

    field: str
    recorded: Any
    recomputed: Any


def plain(spec: RunSpec) -> dict[str, Any]:
    """Return the spec as the first record has it: without the run's folder."""
    body: dict[str, Any] = msgspec.to_builtins(replace(spec, output=""))
    return body


def header_of(records: Sequence[Record]) -> RunHeader:
    """Return the first record. Raises ValueError if it is no `RunHeader`."""
    if not records or not isinstance(records[0], RunHeader):
        raise ValueError("its first line does not say what the run is")
    return records[0]


def result(records: Sequence[Record], stream: RunRecords | SplitRecords | None = None) -> Metrics:
    """Return the result that follows from all records of a run, without its seal.

    `stream`: the records between the first and the last one, if already split or sorted. Raises ValueError if records
    are missing; AssertionError and others if no run can have made them.
    """
    header, last = header_of(records), records[-1]
    if not isinstance(last, RunEnd):
        raise ValueError("its last line does not say how the run ended")
    return analyze(
        msgspec.convert(header.spec, RunSpec),
        records[1:-1] if stream is None else stream,
        status=last.status,
        error=last.error,
        launched=header.launched,
        ended=last.at,
        env=header.env,
        git=header.git,
        warnings=last.warnings,
        restarts=last.restarts,
        attempts=last.attempts,
    )


def sealed(metrics: Metrics, seal: Seal) -> Metrics:
    """Return the result with the seal of its records and its own digest."""
    open_result = metrics.model_copy(update={"record": RecordSeal(lines=seal.lines, sha256=seal.sha256, result="")})
    body = msgspec.json.decode(open_result.model_dump_json())
    record = open_result.record.model_copy(update={"result": digest(body)}) if open_result.record else None
    return open_result.model_copy(update={"record": record})


def digest(body: Mapping[str, Any]) -> str:
    """Return the digest of a result as read from its file, without the digest that it contains."""
    record = body.get("record")
    rest = {key: value for key, value in record.items() if key != "result"} if isinstance(record, dict) else record
    return canonical.digest({**body, "record": rest})


def differences(recorded: Any, recomputed: Any, field: str = "", slack: float = ROUNDING) -> Iterator[MetricDifference]:
    """Yield every field in which two results differ. `slack`: relative tolerance of numbers; 0: none at all."""
    if isinstance(recorded, dict) and isinstance(recomputed, dict):
        for key in dict.fromkeys([*recorded, *recomputed]):
            name = f"{field}.{key}" if field else str(key)
            yield from differences(recorded.get(key, msgspec.UNSET), recomputed.get(key, msgspec.UNSET), name, slack)
    elif isinstance(recorded, list) and isinstance(recomputed, list) and len(recorded) == len(recomputed):
        for place, (left, right) in enumerate(zip(recorded, recomputed, strict=True)):
            yield from differences(left, right, f"{field}[{place}]", slack)
    elif not _alike(recorded, recomputed, slack):
        yield MetricDifference(field, recorded, recomputed)


def _alike(left: Any, right: Any, slack: float) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return math.isclose(left, right, rel_tol=slack, abs_tol=TINY if slack else 0.0)
    return type(left) is type(right) and bool(left == right)

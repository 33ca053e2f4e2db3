"""As fast as the same cell was on the same machine, where its baseline was asked to keep time."""

from __future__ import annotations

from bench.validate.checks.levels import level, looked_at
from bench.validate.findings import Case, Finding
from bench.validate.fingerprint import Fingerprint, differences
from bench.validate.verdict import EXITS, Verdict


def check(case: Case) -> Finding | None:
    """The claim about samples per second; REFUSED on another machine."""
    match = case.match
    if match is None or not match.own or "samples_per_s" not in match.reference.metrics or not case.cell.ok:
        return None
    here = Fingerprint.of(case.cell.ok[0]).machine
    found = differences(match.reference.environment.machine, here)
    if found:
        line = f"not comparable: time on another machine ({len(found)} fields differ)"
        return Verdict("REFUSED", "speed", case.cell.name, line, EXITS["REFUSED"], fields=tuple(found))
    values = [m.throughput.samples_per_s for m in looked_at(case.cell)]
    return level("speed", case, match.reference.metrics["samples_per_s"], values, "samples per second")

"""Training is as fast as the same cell's baseline on the same machine, if the baseline was asked to keep times.

Speeds are compared as ratios. The check fails only if a loss beyond the margin is proved; noise gives INCONCLUSIVE, and
so do runs whose cores other programs used. The interval covers the scatter of runs in one session. It cannot cover what
changes between sessions (clock rates, other virtual machines on the host): if solo is slower too, the machine is the
reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.base.environment import BUSY
from bench.results.schema import Metrics
from bench.validate.baselines.fingerprint import FieldDifference, Fingerprint, beyond, differences
from bench.validate.baselines.reference import Reference
from bench.validate.checks.levels import looked_at, timed
from bench.validate.verdicts.findings import Case, Finding
from bench.validate.verdicts.verdict import remark, verdict

METRIC = "samples_per_s"


def disturbed(m: Metrics) -> bool:
    """Return whether other programs used the cores of a run's ranks."""
    return any(warning.startswith(BUSY) for warning in m.warnings)


def check(case: Case) -> Finding | None:
    """Return the claim about samples per second; REFUSED on another machine, INCONCLUSIVE for runs that were
    disturbed."""
    reference, runs = case.own, looked_at(case.cell)
    if reference is None or METRIC not in reference.metrics or not runs:
        return None
    differing = elsewhere(reference, runs)
    if refused := beyond(differing, case.allowed):
        line = f"not comparable: speeds of different machines ({len(refused)} fields differ)"
        return remark("REFUSED", "speed", case.cell.name, line, tuple(refused))
    if differing:
        return verdict(
            "INCONCLUSIVE", "speed", case.cell, "the machine differs, as allowed, so speeds are not compared"
        )
    if untimed := [m.seed for m in runs if not m.timing]:
        line = f"timing=off in seeds {', '.join(map(str, untimed))}"
        return verdict("INCONCLUSIVE", "speed", case.cell, f"{line}: train them again without it")
    if busy := [m.seed for m in runs if disturbed(m)]:
        line = f"other programs used the cores during seeds {', '.join(map(str, busy))}"
        return verdict("INCONCLUSIVE", "speed", case.cell, f"{line}: train them again alone, with force=true")
    values = [m.throughput.samples_per_s for m in runs]
    claim = timed("speed", case, reference.metrics[METRIC], values, "samples per second")
    return claim or verdict("INCONCLUSIVE", "speed", case.cell, "a run has no measured speed")


def elsewhere(reference: Reference, runs: Sequence[Metrics]) -> list[FieldDifference]:
    """Return the fields in which the runs' machines differ from the baseline's. Fields that an older baseline lacks are
    ignored."""
    machine = reference.environment.machine
    here = [{name: Fingerprint.of(m).machine.get(name) for name in machine} for m in runs]
    return list(dict.fromkeys(field for each in here for field in differences(machine, each)))

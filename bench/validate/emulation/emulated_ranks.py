"""Ranks are as slow as configured: emulated devices and scripted slow ranks wait after each step for the time that is
due.

They wait in proportion to a typical step, without the time that it waited for a core. The check knows that step only up
to a factor of about two. With `cluster.step_s` they wait for the rest of that time. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Any

from bench.results.runfolder import group_of
from bench.results.schema import Metrics
from bench.validate.emulation.scripted_slowness import CLOCK, IN_PASSES, LEAST, MOST, as_long, other_than_scripted
from bench.validate.records.run_records import WORK, Records
from ddp.backends import is_torch_native
from ddp.core.settings.faults import parse

STEPS = 256
"""Least number of a rank's steps to judge it. The first step is not slowed down and takes a hundred times as long."""
KEPT = 5
"""First version of results in which a rank on a busy machine is as slow as configured."""


def otherwise_slow(m: Metrics, known: Records, config: dict[str, Any]) -> str:
    """Name the rank that is slower or faster than configured; empty: none."""
    cluster = group_of(config, "cluster")
    speeds = cluster.get("speeds")
    # Steps of PyTorch's own modules contain their communication.
    if m.engine not in ("elche", "solo") or is_torch_native(m.backend) or known.resumed or not isinstance(speeds, list):
        return ""
    if m.schema_version < KEPT:
        return ""
    step_s = float(cluster.get("step_s") or 0.0)
    for rank in range(m.world_size):
        reports = [event for event in known.progress if event.rank == rank]
        steps = sum(event.steps for event in reports)
        speed = float(speeds[rank]) if rank < len(speeds) else 1.0
        factor = _factor(speed, rank, steps, m.scripted_faults)
        if steps < STEPS or factor is None or any(event.work is None for event in reports):
            continue
        # Sharded backends communicate inside the backward pass, which is slowed down as a whole.
        inside = ("exchange", "copy") if m.backend in IN_PASSES else ()
        worked, waited = sum(known.seconds[rank, kind] for kind in (*WORK, *inside)), known.seconds[rank, "slowdown"]
        if step_s:
            due = step_s * (1 + factor) * (steps - 1)
            if not as_long(due, worked, waited):
                return f"rank {rank}: {steps} steps took {worked + waited:.3g} s, not {due:.3g} s (cluster.step_s)"
            continue
        # The first report is left out, as it holds the first step. The median ignores steps that take much longer.
        each = [
            (work.data + work.compute - work.no_core - work.no_core_data) / event.steps
            for event in reports[1:]
            if (work := event.work) is not None and event.steps
        ]
        alone = (median(each) if each else 0.0) * steps - waited
        if not factor * alone / LEAST - CLOCK <= waited <= factor * worked * MOST + CLOCK:
            return (
                f"rank {rank} waited {waited:.3g} s after steps of {worked:.3g} s to be slower, but should be "
                f"{1 + factor:.3g} times as slow (cluster.speeds, cluster.faults)"
            )
    return other_than_scripted(m, known, speeds, step_s)


def _factor(speed: float, rank: int, steps: int, script: Sequence[str]) -> float | None:
    """Return the mean time that the rank must wait per step, in units of the step; None: not known."""
    faults = sorted((fault for fault in map(parse, script) if fault.rank == rank), key=lambda fault: fault.step)
    if any(fault.kind not in ("slow", "heal") for fault in faults):
        return None
    factors = [1.0 / speed]
    for fault in faults:
        factors.append(factors[-1] * fault.value if fault.kind == "slow" else factors[0])
    ends = [0, *(min(fault.step, steps) for fault in faults), steps]
    return sum(
        (factor - 1.0) * (stop - start) for factor, (start, stop) in zip(factors, pairwise(ends), strict=True)
    ) / max(steps, 1)

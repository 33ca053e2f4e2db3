"""Steps take all of a rank's time between two reports in which it does nothing else: what passes between two of them is the
later one's. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from itertools import pairwise

from bench.results.runfolder import Run
from bench.validate.run_records import Records
from ddp.core.policies import meets_every_step

SHARE = 0.9
"""Of that time, that steps take at least: clean runs had 0.95 on machines with ten times as much to do as they could."""
LEAST_S, FEW = 2.0, 32
"""Seconds in as many pairs of reports, at least, of which something is said."""


def shorter(run: Run, known: Records) -> str:
    """Say which rank reports less time of its steps than there was; empty: none does, or it is not known."""
    m, profile = run.metrics, run.config.get("profile")
    profiled = isinstance(profile, dict) and profile.get("steps")
    if m.engine not in ("elche", "solo") or meets_every_step(m.policy) or profiled:
        return ""
    begins, ends = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    for event in (*known.averaged, *known.snapshots, *known.evaluated, *known.saved):
        begins[event.rank].append(event.at)
        ends[event.rank].append(event.at)
    for rank, rows in known.rests.items():
        begins[rank] += [begin for begin, _ in rows]
        ends[rank] += [end for _, end in rows]
    for rank in range(m.world_size):
        started, ended = sorted(begins[rank]), sorted(ends[rank])
        pairs = [
            (then.at - first.at, then.busy_s)
            for first, then in pairwise(event for event in known.progress if event.rank == rank)
            # All that had begun by then was over before.
            if first.epoch == then.epoch and bisect_right(started, then.at) == bisect_left(ended, first.at)
        ]
        whole, busy = sum(took for took, _ in pairs), sum(steps for _, steps in pairs)
        if whole > LEAST_S and len(pairs) >= FEW and busy < SHARE * whole:
            return f"rank {rank} did nothing but steps in {whole:.3g} s, and reports {busy:.3g} s of steps"
    return ""

"""Peak memory is that of the ranks: no less than they measured while they ran, no more than the machine has.

Ranks measure what they hold now and then, and report the peak at the end, by another way of asking the system."""

from __future__ import annotations

from bench.results.runfolder import Run
from bench.validate.findings import Case
from bench.validate.records import recorded
from bench.validate.run_records import Records
from bench.validate.verdict import Verdict, verdict

LESS, LESS_BYTES, BATCH = 0.01, 8 << 20, 8192
"""By so much a peak may be below what was measured: relative; at least, but of no device; and bytes by the square of cores,
each of which counts a process's pages in batches that grow with their number."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if the peak of a rank cannot be; None where nothing was measured."""
    count = 0
    for run, known in recorded(case.cell):
        if not known.memory:
            continue
        if wrong := _amiss(run, known.measured()):
            return verdict("FAIL", "peak_memory", case.cell, f"seed {run.metrics.seed}: {wrong}")
        count += len(known.finished)
    line = f"{count} peaks of memory are no less than what ranks measured"
    return verdict("PASS", "peak_memory", case.cell, line) if count else None


def _amiss(run: Run, known: Records) -> str:
    """Say which rank has a peak that cannot be."""
    here = all(event.host == 0 for event in known.ready)
    most = run.metrics.env.get("memory_bytes") if here else None
    for end in known.finished:
        measured = known.memory.get(end.rank)
        least_bytes = () if measured is None else (measured.rss_bytes, measured.device_bytes or 0)
        cores = run.metrics.env.get("cores")
        batches = BATCH * cores**2 if isinstance(cores, int) else 0
        kinds = (("", end.peak_rss_bytes, max(LESS_BYTES, batches)), (" of its device", end.peak_device_bytes, 0))
        for (where, peak, less), least in zip(kinds, least_bytes, strict=False):
            if peak < least - max(LESS * least, less):
                return f"rank {end.rank} reports a peak{where} of {peak:,} bytes, and it measured {least:,}"
        if isinstance(most, int) and end.peak_rss_bytes > most:
            return f"rank {end.rank} reports a peak of {end.peak_rss_bytes:,} bytes on a machine of {most:,}"
    return ""

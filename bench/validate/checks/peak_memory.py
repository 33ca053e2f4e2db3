"""The reported peak memory is plausible: no less than a rank measured during the run, and no more than the machine has.

Ranks sample their memory during the run. They report the peak at the end, from another system call.
"""

from __future__ import annotations

from bench.results.runfolder import Run
from bench.validate.records.run_records import Records
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict, verdict

LESS, LESS_BYTES, BATCH = 0.01, 8 << 20, 8192
"""Tolerance of a peak below the samples: relative; in bytes, for host memory only; and bytes per square of the number
of cores, as the kernel counts a process's pages on each core in batches that grow with that number."""


def check(case: Case) -> Verdict | None:
    """Return FAIL if the peak of a rank is impossible; None if no memory was measured."""
    failure, count = case.compared("peak_memory", _compared)
    if failure or not count:
        return failure
    line = f"{count} peaks of memory are no lower than any measurement of the rank"
    return verdict("PASS", "peak_memory", case.cell, line)


def _compared(run: Run, known: Records) -> tuple[str, int]:
    """Return the rank with an impossible peak (empty: none), and the number of peaks."""
    return (_amiss(run, known.measured()), len(known.finished)) if known.memory else ("", 0)


def _amiss(run: Run, known: Records) -> str:
    """Name the rank with an impossible peak; empty: none."""
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
                return f"rank {end.rank} reports a peak{where} of {peak:,} bytes, but measured {least:,} during the run"
        if isinstance(most, int) and end.peak_rss_bytes > most:
            return f"rank {end.rank} reports a peak of {end.peak_rss_bytes:,} bytes on a machine that has {most:,}"
    return ""

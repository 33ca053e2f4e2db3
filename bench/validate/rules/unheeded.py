"""Which settings for lost ranks a run did not heed: how often they are started again, and how long they may be silent. Pure.

Only runs that began once are judged: after a resumption, ranks count as never restarted."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from bench.results.runfolder import Run, group_of
from bench.validate.records.run_records import Records
from ddp.core.membership.joining import OFFERED
from ddp.core.messages.commands import Drop, Restart, Train

_SILENT = re.compile(r"^silent for ([0-9.]+) s")
LONGEST, CLOCK_S = 3.0, 5.0
"""A silent rank is given up after this multiple of the deadline and these seconds at the latest: the coordinator, too, may
have to wait for a core."""
ROUNDED_S = 0.1


def unheeded(run: Run, known: Records) -> str:
    """Name the lost rank that was started again against the settings, or not though they ask for it, or that was given up
    too early or too late; empty: none."""
    cluster = group_of(run.config, "cluster")
    if run.metrics.engine != "elche" or run.metrics.resumed or known.resumed:
        return ""
    return _restarts(cluster, known) or _silences(cluster, known)


def _restarts(cluster: Mapping[str, Any], known: Records) -> str:
    given = str(cluster.get("restart"))
    if given not in ("never", "always") and not given.isdecimal():
        return ""  # another version wrote it
    most = {"never": 0, "always": None}.get(given, int(given) if given.isdecimal() else 0)
    starts = Counter(move.rank for _, move in known.moves if isinstance(move, Restart) and move.reason != OFFERED)
    for rank, count in sorted(starts.items()):
        if most is not None and count > most:
            return f"rank {rank} was started again {count} times, with cluster.restart={given}"
    back = {move.rank for _, move in known.moves if isinstance(move, Restart)}
    last = max((at for at, order in known.work if isinstance(order, Train)), default=0.0)
    for at, move in known.moves:
        if isinstance(move, Drop) and most != 0 and move.rank not in back and at < last:
            return f"rank {move.rank} was lost and never started again, with cluster.restart={given}"
    return ""


def _silences(cluster: Mapping[str, Any], known: Records) -> str:
    deadline = cluster.get("deadline_s")
    again = {move.rank for _, move in known.moves if isinstance(move, Restart)}
    for _, move in known.moves:
        match = _SILENT.match(move.reason) if isinstance(move, Drop) and move.rank not in again else None
        if match is None or not isinstance(deadline, int | float):
            continue
        seconds = float(match[1])
        if not deadline - ROUNDED_S <= seconds <= LONGEST * deadline + CLOCK_S:
            return f"rank {move.rank} was given up after {seconds:g} s of silence, with cluster.deadline_s={deadline:g}"
    return ""

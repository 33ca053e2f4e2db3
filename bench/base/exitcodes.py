"""The exit codes of all commands. `bench.validate.verdicts.verdict` assigns them to verdicts."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. Above 128 as in a shell: 128 + signal number."""

    OK = 0
    REGRESSION = 1
    """Worse than the baseline, or the training loss stopped being finite."""
    USAGE = 2
    """An invalid key, option, value or path; nothing was run."""
    INCONCLUSIVE = 3
    """Too little data for a verdict, or something that a person must look at: implausibly good values, more scatter."""
    REFUSED = 4
    """Not comparable with the baseline: another configuration or environment, or the baseline is expired, damaged or
    missing."""
    FAILED = 5
    """A run failed: a rank raised or was lost, or its results or the report could not be written."""
    INTERNAL = 6
    """A defect of the harness."""
    KILLED = 130
    """Ctrl-C, SIGTERM or SIGHUP."""


_GRAVITY = [
    *(Exit.OK, Exit.INCONCLUSIVE, Exit.REFUSED, Exit.USAGE),
    *(Exit.REGRESSION, Exit.FAILED, Exit.INTERNAL, Exit.KILLED),
]
STATUS = {"ok": Exit.OK, "diverged": Exit.REGRESSION, "failed": Exit.FAILED, "killed": Exit.KILLED}
"""Status of a run -> exit code of its command."""


def gravest(codes: Iterable[Exit]) -> Exit:
    """Return the code of a command that did several things; OK if there was nothing to do."""
    return max(codes, key=_GRAVITY.index, default=Exit.OK)

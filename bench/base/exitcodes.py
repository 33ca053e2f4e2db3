"""What the exit code of a command means: the one table. Which verdict comes to which code is in `bench.validate.verdict`."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


class Exit(IntEnum):
    """Exit codes. Above 128 as in a shell: 128 + the number of the signal."""

    OK = 0
    REGRESSION = 1
    """Worse than the baseline, or the training loss stopped being finite."""
    USAGE = 2
    """A key, option, value or path that cannot be; nothing was run with it."""
    INCONCLUSIVE = 3
    """Too little data for a verdict, or something that a person must look at: better than can be, more scatter."""
    REFUSED = 4
    """Not comparable with the baseline: another configuration or environment, expired, damaged, or there is none."""
    FAILED = 5
    """A run failed: a rank raised or was lost, or its results could not be written."""
    INTERNAL = 6
    """A defect of the harness."""
    KILLED = 130
    """Ctrl-C, SIGTERM or SIGHUP."""


_GRAVITY = [
    *(Exit.OK, Exit.INCONCLUSIVE, Exit.REFUSED, Exit.USAGE),
    *(Exit.REGRESSION, Exit.FAILED, Exit.INTERNAL, Exit.KILLED),
]
STATUS = {"ok": Exit.OK, "diverged": Exit.REGRESSION, "failed": Exit.FAILED, "killed": Exit.KILLED}
"""Status of a run -> exit code of the command that ran it."""


def gravest(codes: Iterable[Exit]) -> Exit:
    """Return the code of a command that did several things; OK where there was nothing to do."""
    return max(codes, key=_GRAVITY.index, default=Exit.OK)

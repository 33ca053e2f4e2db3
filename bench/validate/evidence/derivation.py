"""`Derivation`: values that checks compute from the records of one run. This one computes each value anew; a subclass may
keep values, so that a report over many runs need not read the records of those that have not changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from bench.results.runfolder import Run
from bench.validate.evidence.consistency import legible
from bench.validate.records.reading import records

T = TypeVar("T")


class Derivation:
    """Computes values from the records of runs."""

    def legible(self, run: Run) -> None:
        """Raise ValueError if the checks cannot rely on the run's folder."""
        legible(run)

    def value(self, function: Callable[..., T], run: Run, *more: Any, lost: bool = False) -> T | None:
        """Return `function(run, records, *more)`; None if the run has no records, or without `lost` if it lost ranks.

        The value depends on these arguments alone, and is text, a number, a boolean, or a tuple, list or dictionary of
        such, as the function's annotation says; never None. Raises as `records` and the function do.
        """
        known = records(run, lost)
        return None if known is None else function(run, known, *more)


ANEW = Derivation()

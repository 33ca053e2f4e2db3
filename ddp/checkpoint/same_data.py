"""Tells whether a run that resumes from a checkpoint has the data that it was begun with."""

from __future__ import annotations

from typing import Any

from ddp.checkpoint.checkpoint import InvalidCheckpoint
from ddp.data.fingerprint import UNSURE, Print, difference, fingerprint, unsure
from ddp.replica.replica import DataSource


class SameData:
    """What a run trains and evaluates on."""

    def __init__(self, trained: DataSource, evaluated: DataSource) -> None:
        self._sources = {"training": trained, "evaluation": evaluated}
        self._prints: dict[str, Print] | None = None

    @property
    def lasting(self) -> bool:
        """Whether all of it lies in tensors, and will be at any time what it is now."""
        return all(hasattr(source, "tensors") or not len(source) for source, _, _ in self._sources.values())

    def prints(self) -> dict[str, Print]:
        """Return what a checkpoint keeps of it; computed once, of 64 MB in some 0.2 s."""
        if self._prints is None:
            self._prints = {name: fingerprint(*source) for name, source in self._sources.items()}
        return self._prints

    def check(self, before: Any) -> str:
        """Compare with the prints in a checkpoint; return what a reader of the results must know ("": nothing).

        Raises InvalidCheckpoint for other data."""
        if not isinstance(before, dict) or not all(isinstance(before.get(name), dict) for name in self._sources):
            raise InvalidCheckpoint("the checkpoint does not say what data it is of; begin anew")
        prints = {name: fingerprint(*source, like=before[name]) for name, source in self._sources.items()}
        self._prints = prints
        for name, now in prints.items():
            if what := difference(before[name], now):
                raise InvalidCheckpoint(
                    f"the checkpoint is of a run with other {name} data: its {what} differ; go on with the data that it was "
                    "begun with, or begin anew"
                )
        uncertain = [name for name, now in prints.items() if unsure(now) or unsure(before[name])]
        return "; ".join(f"the {name} data {UNSURE}" for name in uncertain)

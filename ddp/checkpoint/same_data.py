"""Checks that a resumed run has the data that it was started with."""

from __future__ import annotations

from typing import Any

from ddp.checkpoint.checkpoint import InvalidCheckpoint
from ddp.data.fingerprint import UNSURE, Print, difference, fingerprint, unsure
from ddp.replica.replica import DataSource


class SameData:
    """The training and evaluation data of a run."""

    def __init__(self, trained: DataSource, evaluated: DataSource) -> None:
        self._sources = {"training": trained, "evaluation": evaluated}
        self._prints: dict[str, Print] | None = None

    @property
    def lasting(self) -> bool:
        """Return whether all data is in tensors, and therefore does not change."""
        return all(hasattr(source, "tensors") or not len(source) for source, _, _ in self._sources.values())

    def prints(self) -> dict[str, Print]:
        """Return the fingerprints of the data for a checkpoint. Computed once; 64 MB take about 0.2 s."""
        if self._prints is None:
            self._prints = {name: fingerprint(*source) for name, source in self._sources.items()}
        return self._prints

    def check(self, before: Any) -> str:
        """Compare the data with the fingerprints in a checkpoint. Return a note for readers of the results ("": nothing to
        note).

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

"""Whether a run that goes on from a checkpoint has the data that it was begun with: what is kept of it, and the check."""

from __future__ import annotations

from typing import Any

from ddp.checkpoint.checkpoint import Torn
from ddp.data.augment import Augment
from ddp.data.epoch_order import EpochOrder
from ddp.data.fingerprint import UNSURE, Print, difference, fingerprint, unsure

Given = tuple[Any, EpochOrder, Augment | None]
"""A source, the order of its samples, and what is made of a batch."""


class SameData:
    """What a run trains and evaluates on."""

    def __init__(self, trained: Given, evaluated: Given) -> None:
        self._given = {"training": trained, "evaluation": evaluated}
        self._prints: dict[str, Print] | None = None

    @property
    def lasting(self) -> bool:
        """Whether all of it lies in tensors, and will be at any time what it is now."""
        return all(hasattr(source, "tensors") or not len(source) for source, _, _ in self._given.values())

    def kept(self) -> dict[str, Print]:
        """What a checkpoint keeps; computed once, of 64 MB in some 0.2 s."""
        if self._prints is None:
            self._prints = {name: fingerprint(*given) for name, given in self._given.items()}
        return self._prints

    def check(self, before: Any) -> str:
        """Compare with what a checkpoint has kept: what a reader of the results must know ("": nothing). Raises Torn."""
        if not isinstance(before, dict) or not all(isinstance(before.get(name), dict) for name in self._given):
            raise Torn("the checkpoint does not say what data it is of; begin anew")
        now = {name: fingerprint(*given, like=before[name]) for name, given in self._given.items()}
        self._prints = now
        for name, found in now.items():
            if what := difference(before[name], found):
                raise Torn(
                    f"the checkpoint is of a run with other {name} data: its {what} differ; go on with the data that it was "
                    "begun with, or begin anew"
                )
        open_ones = [name for name, found in now.items() if unsure(found) or unsure(before[name])]
        return "; ".join(f"the {name} data {UNSURE}" for name in open_ones)

"""The steps of an outer optimizer between averages, recomputed from sketches of its inputs. Knows no runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.validate.sketches.linear import Combined, combine
from ddp.core.messages.event_parts import SketchGroup
from ddp.sketches import Sketch

OUTER = {"momentum": (1.0, 0.9), "nesterov": (0.7, 0.9)}
"""Outer optimizer -> its default learning rate and momentum."""


class OuterSteps:
    """An outer optimizer on sketches. Its steps are linear in its inputs; `ddp.replica.optim.outer_optimizer` has the
    formulas."""

    def __init__(self, settings: Mapping[str, Any], groups: tuple[SketchGroup, ...]) -> None:
        name = settings["outer"]
        lr, momentum = OUTER[name]
        self._lr = lr if settings.get("outer_lr") is None else float(settings["outer_lr"])
        self._momentum = momentum if settings.get("outer_momentum") is None else float(settings["outer_momentum"])
        mu, ahead = self._momentum, name == "nesterov"
        self._ahead, self._carried = (1 + mu, mu**2) if ahead else (1.0, mu)
        """Factors of the present difference and of the previous velocity in a step."""
        self._trained = np.array([float(group.kind == "parameters") for group in groups])
        self._velocity: Sketch | None = None
        self.lost = False
        """A step was missed, so the velocity is unknown until two results in a row are seen."""
        self.growth = 2.0 * (1 + self._lr) / (1 - self._momentum)
        """Factor by which the rounding errors of one step may grow over many."""

    def step(self, average: Combined, last: Sketch | None) -> Combined | None:
        """Return the result for a mean, given the previous result `last`; None: not known."""
        if self.lost or last is None:
            return None
        here = Sketch(average.sums, average.sizes)
        kept = self._velocity or Sketch(np.zeros_like(here.sums), np.zeros_like(here.sizes))
        mu, on = self._momentum, self._trained
        moved = combine([(1.0, last), (-1.0, here), (mu, kept)])
        self._velocity = Sketch(moved.sums, np.maximum(moved.sizes, kept.sizes))
        share = np.where(on > 0, self._lr * self._ahead, 1.0)
        return combine([(share, here), (1.0 - share, last), (-self._lr * self._carried * on, kept)])

    def find(self, average: Combined, last: Sketch, result: Sketch) -> None:
        """Compute the velocity from an observed step: `last` and the mean gave `result`."""
        if not self._lr * self._carried:
            return
        ahead, share = self._ahead, self._trained / self._carried
        here = Sketch(average.sums, average.sizes)
        terms = [(share / self._lr, last), (-share / self._lr, result), (-share * ahead, last), (share * ahead, here)]
        velocity = combine(terms)
        self._velocity, self.lost = Sketch(velocity.sums, velocity.sizes), False
        self.step(average, last)

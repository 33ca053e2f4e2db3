"""Sketches of gradients, of steps that are drawn: all ranks draw the same ones, without a word.

Knows which steps; not how gradients travel, nor whose they are in the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from ddp.core.event_parts import StepSketch
from ddp.core.sketching import draw
from ddp.replica.sketcher import Sketcher, StepSum

STEPS = 100
"""Steps that are drawn in a run, on the average, beside the first."""

Stretch = tuple[Tensor, Tensor | None, int]
"""A parameter, its gradient or a stretch of it, and the element that the stretch begins with; None: it has none."""


class StepSketches:
    """The drawn steps of one rank, in a run of about `steps` exchanges."""

    def __init__(self, sketcher: Sketcher, key: int, steps: int) -> None:
        self._sketcher, self._key, self._rate = sketcher, key, STEPS / max(steps, 1)
        self._number = -1
        self._before: StepSum | None = None
        """None: this step is not drawn."""
        self.waiting: list[StepSketch] = []
        """Not reported yet."""

    @property
    def drawn(self) -> bool:
        """Whether this step is."""
        return self._before is not None

    def begin(self) -> None:
        """Begin a step; one that was broken off is forgotten."""
        self._number += 1
        chosen = not self._number or draw(self._key, self._number) < self._rate
        self._before = self._sketcher.step() if chosen else None

    def add(self, gradients: Iterable[Stretch]) -> None:
        """Add gradients of the rank's own slice, as they are before they are weighed. Only of a drawn step."""
        assert self._before is not None
        self._before.add(gradients)

    def exchange(self) -> None:
        """Note the buffers: from here on they are exchanged, too. Only of a drawn step."""
        assert self._before is not None
        self._text = self._before.text()

    def alone(self, samples: int, parameters: Iterable[Tensor]) -> None:
        """Record the gradients of a step that is the rank's own. Only of a drawn step."""
        assert self._before is not None
        self._before.add((parameter, parameter.grad, 0) for parameter in parameters)
        self.waiting.append(StepSketch(self._number, samples, samples, self._before.text(buffers=False)))
        self._before = None

    def end(self, samples: int, total: int, gradients: Iterable[Stretch]) -> None:
        """Add the gradients that came of it, of a rank that has `samples` of `total`. Only of a drawn step."""
        after = self._sketcher.step()
        after.add(gradients)
        self.waiting.append(StepSketch(self._number, samples, total, self._text, after.text()))
        self._before = None

"""Sketches of gradients, of steps that are drawn: all ranks draw the same ones, without a word.

Knows which steps; not how gradients travel, nor whose they are in the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from ddp.core.event_parts import StepSketch
from ddp.core.sketching import draw
from ddp.replica.sketcher import Sharded, Sketcher, StepSum

STEPS = 100
"""Steps that are drawn in a run, on the average, beside the first."""
MOST = 0.02
"""Share of the steps that is drawn at most."""

Stretch = tuple[Tensor, Tensor | None, int]
"""A parameter, its gradient or a stretch of it, and the element that the stretch begins with; None: it has none."""


class StepSketches:
    """The drawn steps of one rank, in a run of about `steps` of them; 0: each is drawn. In others nothing is done."""

    def __init__(self, sketcher: Sketcher, key: int, steps: int) -> None:
        self._sketcher, self._key, self.steps = sketcher, key, steps
        self._rate = min(STEPS / steps, MOST) if steps else 1.0
        self._number, self._next = -1, 0
        self._before: StepSum | None = None
        """None: this step is not drawn."""
        self.waiting: list[StepSketch] = []
        """Not reported yet."""

    def share_out(self, shards: Sequence[Sharded]) -> None:
        """Have the optimizer's state sketched by shards."""
        self._sketcher.shards = shards

    @property
    def drawn(self) -> bool:
        """Whether this step is."""
        return self._before is not None

    def begin(self) -> None:
        """Begin a step; one that was broken off is forgotten."""
        self._number += 1
        if self._number < self._next:  # a small model's step has no time for more
            self._before = None
            return
        self._before, self._next = self._sketcher.step(), self._number + 1
        while draw(self._key, self._next) >= self._rate:
            self._next += 1

    def add(self, gradients: Iterable[Stretch]) -> None:
        """Add gradients of the rank's own slice, as they are before they are weighed."""
        if self._before is not None:
            self._before.add(gradients)

    def exchange(self, buffers: bool = True) -> None:
        """Note that all gradients are there, and the buffers as they are, if these are exchanged, too."""
        if self._before is not None:
            self._buffers, self._text = buffers, self._before.text(buffers)

    def end(self, samples: int, total: int, gradients: Iterable[Stretch], parts: bool = False) -> None:
        """Record what came of it on a rank that has `samples` of `total`; `parts`: gradients of what the rank owns alone."""
        if self._before is not None:
            after = self._sketcher.step()
            after.add(gradients)
            texts = self._text, after.text(self._buffers)
            self.waiting.append(StepSketch(self._number, samples, total, *texts, parts=parts))
            self._before = None

    def alone(self, samples: int, parameters: Iterable[Tensor]) -> None:
        """Record the gradients of a step that is the rank's own."""
        if self._before is not None:
            self._before.add(whole(parameters))
            self.waiting.append(StepSketch(self._number, samples, samples, self._before.text(buffers=False)))
            self._before = None


class AverageSketches(StepSketches):
    """The drawn averages of parameters, where somebody else's optimizer makes them every few steps."""

    def __init__(self, own: StepSketches, first: int, period: int) -> None:
        """`own`: the rank's sketches of gradients, beside which these wait to be reported. `first`: the step in which the
        first average is due, and every `period` steps the next."""
        super().__init__(own._sketcher, own._key, max(own.steps - first, 1) // period + 1)
        self.waiting, self._first, self._period = own.waiting, first, period

    @contextmanager
    def around(self, step: int, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Surround the end of the rank's own step number `step`, and whatever average there is in it."""
        if step < self._first or (step - self._first) % self._period:
            yield
            return
        self.begin()
        self.add((parameter, parameter.detach(), 0) for parameter in parameters)
        self.exchange(buffers=False)
        yield
        if self._before is not None:
            after = self._sketcher.step()
            after.add((parameter, parameter.detach(), 0) for parameter in parameters)
            self.waiting.append(StepSketch(step, 1, 1, self._text, after.text(buffers=False), model=True))
            self._before = None


class NoSketches(StepSketches):
    """Of steps that nobody records."""

    def __init__(self) -> None:
        self._before, self.waiting = None, []

    def share_out(self, shards: Sequence[Sharded]) -> None:
        """Do nothing."""

    def begin(self) -> None:
        """Draw nothing."""


def whole(parameters: Iterable[Tensor]) -> Iterator[Stretch]:
    """Yield the gradients of parameters, all of each."""
    for parameter in parameters:
        yield parameter, parameter.grad, 0

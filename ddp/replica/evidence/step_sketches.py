"""Sketches of the gradients in drawn steps. All ranks draw the same steps without communicating.

Knows which steps are drawn, but not how gradients are exchanged nor which rank owns them afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from ddp.core.messages.event_parts import StepSketch
from ddp.core.periodic.sketching import draw
from ddp.replica.evidence.sketcher import Sharded, Sketcher, StepSum

STEPS = 100
"""Average number of steps drawn in a run, besides the first."""
MOST = 0.02
"""Largest fraction of the steps that is drawn."""

Stretch = tuple[Tensor, Tensor | None, int]
"""(parameter; its gradient, a part of it or None; index of that part's first element)."""


class StepSketches:
    """The drawn steps of one rank, in a run of about `steps` steps; 0: draw every step. Other steps are not recorded."""

    def __init__(self, sketcher: Sketcher, key: int, steps: int) -> None:
        self._sketcher, self._key, self.steps = sketcher, key, steps
        self._rate = min(STEPS / steps, MOST) if steps else 1.0
        self._number, self._next = -1, 0
        self._before: StepSum | None = None
        """The sketch of this rank's gradients; None if this step is not drawn."""
        self.waiting: list[StepSketch] = []
        """Sketches not reported yet."""

    def share_out(self, shards: Sequence[Sharded]) -> None:
        """Sketch the optimizer's state by `shards`."""
        self._sketcher.shards = shards

    @property
    def drawn(self) -> bool:
        """Whether this step is drawn."""
        return self._before is not None

    def begin(self) -> None:
        """Begin a step; discard the sketch of one that was interrupted."""
        self._number += 1
        if self._number < self._next:  # kept cheap for a small model's step
            self._before = None
            return
        self._before, self._next = self._sketcher.step(), self._number + 1
        while draw(self._key, self._next) >= self._rate:
            self._next += 1

    def add(self, gradients: Iterable[Stretch]) -> None:
        """Add gradients of the rank's own slice, before they are weighted for the exchange."""
        if self._before is not None:
            self._before.add(gradients)

    def exchange(self, buffers: bool = True) -> None:
        """Finish the sketch of this rank's gradients; with `buffers`, include the buffers, which are exchanged too."""
        if self._before is not None:
            self._buffers, self._text = buffers, self._before.text(buffers)

    def end(self, samples: int, total: int, gradients: Iterable[Stretch], parts: bool = False) -> None:
        """Record the exchanged gradients of a step, on a rank with `samples` of `total`. `parts`: only those that this rank
        owns."""
        if self._before is not None:
            after = self._sketcher.step()
            after.add(gradients)
            texts = self._text, after.text(self._buffers)
            self.waiting.append(StepSketch(self._number, samples, total, *texts, parts=parts))
            self._before = None

    def alone(self, samples: int, parameters: Iterable[Tensor]) -> None:
        """Record the gradients of a step that the rank does on its own."""
        if self._before is not None:
            self._before.add(whole(parameters))
            self.waiting.append(StepSketch(self._number, samples, samples, self._before.text(buffers=False)))
            self._before = None


class AverageSketches(StepSketches):
    """Sketches of drawn averages of parameters that another optimizer (PyTorch's local SGD) does every few steps."""

    def __init__(self, own: StepSketches, first: int, period: int) -> None:
        """`own`: the rank's gradient sketches; these sketches are reported with them. `first`: the step of the first
        average; `period`: steps between averages."""
        super().__init__(own._sketcher, own._key, max(own.steps - first, 1) // period + 1)
        self.waiting, self._first, self._period = own.waiting, first, period

    @contextmanager
    def around(self, step: int, parameters: Sequence[Tensor]) -> Iterator[None]:
        """Surround the end of the rank's step number `step`, where an average may happen."""
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
    """Records nothing."""

    def __init__(self) -> None:
        self._before, self.waiting = None, []

    def share_out(self, shards: Sequence[Sharded]) -> None:
        """Do nothing."""

    def begin(self) -> None:
        """Draw nothing."""


def whole(parameters: Iterable[Tensor]) -> Iterator[Stretch]:
    """Yield the whole gradients of `parameters`."""
    for parameter in parameters:
        yield parameter, parameter.grad, 0

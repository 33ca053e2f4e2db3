"""What events are made of: who speaks and when, and by what two states of a model are compared."""

from __future__ import annotations

from dataclasses import dataclass

Sketch = str
"""Text of `ddp.sketches`, by which two states of a model are compared; empty: none was made. An average is linear, so
sketches are averaged with the same weights."""
OptimizerSketch = tuple[tuple[str, Sketch], ...]
"""Of what an optimizer keeps of all parameters, by its name for it: sketches of one group."""
Files = tuple[tuple[str, int, str], ...]
"""(name, bytes, sha256) of each."""


@dataclass(frozen=True)
class FromRank:
    """What every event of a rank has."""

    at: float
    rank: int


@dataclass(frozen=True)
class SketchGroup:
    """What a row of a sketch is of: a tensor, or several next to each other."""

    name: str
    kind: str
    """`parameters` or `buffers`."""
    elements: int
    dtype: str
    trained: bool
    """Whether the optimizer has it and it wants a gradient."""


@dataclass(frozen=True)
class StepSketch:
    """A rank's gradients (in place of parameters) and buffers in its step number `step`, with `samples` of its slice and
    `total` of the global batch; and what a collective inside the step made of them."""

    step: int
    samples: int
    total: int
    before: Sketch
    after: Sketch = ""
    """Empty: the step was the rank's own, and buffers are not in `before`. Where ranks own parts of the gradients, it is of
    these."""

"""What events are made of: who speaks and when, and by what two states of a model are compared."""

from __future__ import annotations

from dataclasses import dataclass

Sketch = str
"""Text of `ddp.sketches`, by which two states of a model are compared; empty: none was made. An average is linear, so
sketches are averaged with the same weights."""
OptimizerSketch = tuple[tuple[str, Sketch], ...]
"""Of what an optimizer keeps of all parameters, by its name for it: sketches of one group."""
Lasting = tuple[tuple[str, str], ...]
"""What a rank keeps beside model and optimizer, such as random numbers and the loss's factor: (name, digest)."""
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
    """Empty: the step was the rank's own, and buffers are not in `before`."""
    parts: bool = False
    """`after` is of the parts of the gradients that this rank owns: all ranks' add up to the whole."""
    model: bool = False
    """Not of gradients, but of the parameters themselves behind the optimizer; all ranks' weigh alike."""


@dataclass(frozen=True)
class StepWork:
    """What was measured of a rank's steps. Bytes are of what the rank has, after a step."""

    norms: tuple[tuple[int, float | None], ...]
    """(step, L2 norm of the gradients before clipping); None: not finite. Of the shards where gradients lie in shards."""
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int | None = None
    """What one forward pass keeps for its backward pass; None: it was not counted."""
    flop_per_sample: float | None = None
    """Of a forward and a backward pass, by torch's counter; None: it was not counted."""
    tokens: int | None = None
    """Of a sample of text; 0: it is none."""
    updates: int | None = None
    """Steps of the optimizer itself, as it counts its calls; None: it cannot say."""


@dataclass(frozen=True)
class WorkSeconds:
    """Where the time of a rank's steps went, seconds, without what it exchanged and waited for."""

    data: float
    """Until its batches were there."""
    compute: float
    """Forward, backward, optimizer; emulated slowness with it."""
    no_core: float = 0.0
    no_core_data: float = 0.0
    """Of computing, and at most of `data`: when its thread had no core."""
    link: float = 0.0
    """Times that its quickest transfer since the last report took what its emulated link needs; 0: none was measured."""


@dataclass(frozen=True)
class SetContent:
    """What a data set holds, read directly, by index."""

    samples: int
    looked_at: int = 0
    """Of a very large set a drawn part."""
    content: int | None = None
    """Sum of the hashes of the samples that were looked at, modulo `ddp.tally.MODULUS`; None: samples may be others at each
    reading."""
    repeated: int = 0
    """Samples whose first member, such as the image, came before."""
    labels: tuple[int, ...] = ()
    """How many samples have each label; empty: labels are no numbers of few classes."""


@dataclass(frozen=True)
class DataContent:
    """What a rank has to train and to evaluate on."""

    training: SetContent
    test: SetContent
    shared: int
    """Test samples that are training samples too, by their first member."""
    pairs: tuple[tuple[int, int], ...]
    """The first of them: (index in the test set, in the training set)."""
    shuffled: bool
    """Whether the engine orders samples by (seed, epoch); otherwise a sampler does, or they come as they are."""


@dataclass(frozen=True)
class Trained(FromRank):
    """A rank sums up what it trained of `epoch` since the last such event, as the data set gave it, for the record. Sums are
    modulo `ddp.tally.MODULUS`."""

    epoch: int
    samples: int
    content: int | None
    """Sum of the hashes of the samples; None: not known."""
    wanted: int | None
    """The same of what the data set holds at the positions that were granted."""
    order: int
    """`ddp.tally.order_tally` of positions in the epoch and indices."""
    labels: tuple[int, ...] = ()
    """How many samples had each label; empty: not known."""
    placed: int | None = None
    """Sum of the hashes of the samples, each times a number of its position; None: not known."""
    placed_wanted: int | None = None
    """The same of what the data set holds."""


@dataclass(frozen=True)
class Tick:
    """Time has passed; deadlines are looked at."""

    at: float
    away_s: float = 0.0
    """Seconds before it in which nobody listened (user code, a slow disk, a machine that slept): no rank was silent then."""


@dataclass(frozen=True)
class Alive(FromRank):
    """A sign of life from a rank in a long piece of work."""


@dataclass(frozen=True)
class Ending:
    """Whoever has started the run is about to end it: a checkpoint is due at the next average."""

    at: float

"""Parts of events: the rank and time of an event, and the sketches and measurements that events carry."""

from __future__ import annotations

from ddp.core.values.frozen import value

Sketch = str
"""Text form of a sketch (`ddp.sketches`), to compare two states of a model; empty: none was made. An average is linear, so
sketches are averaged with the same weights."""
OptimizerSketch = tuple[tuple[str, Sketch], ...]
"""(key of the optimizer's state, its sketch over all parameters)."""
Lasting = tuple[tuple[str, str], ...]
"""(name, digest) of state besides model and optimizer, such as random generators and the loss scale."""
Files = tuple[tuple[str, int, str], ...]
"""(name, bytes, sha256) of each file."""


@value(frozen=True)
class FromRank:
    """The fields that every event of a rank has."""

    at: float
    rank: int


@value(frozen=True)
class SketchGroup:
    """What one row of a sketch covers: a tensor, or several neighbouring ones."""

    name: str
    kind: str
    """`parameters` or `buffers`."""
    elements: int
    dtype: str
    trained: bool
    """Whether the optimizer updates it."""


@value(frozen=True)
class StepSketch:
    """Sketches of a rank's gradients (in the rows of their parameters) and buffers in its step number `step`: before and
    after the exchange inside the step. The rank had `samples` of the `total` samples of the global batch."""

    step: int
    samples: int
    total: int
    before: Sketch
    after: Sketch = ""
    """Empty if the step was the rank's own; then `before` has no buffers."""
    parts: bool = False
    """Whether `after` covers only the gradients that this rank owns: the sum over ranks is the whole."""
    model: bool = False
    """Whether the sketches are of the parameters after the optimizer's step, averaged with equal weights, not of
    gradients."""


@value(frozen=True)
class StepWork:
    """Measurements of a rank's steps. Bytes are this rank's, after a step."""

    norms: tuple[tuple[int, float | None], ...]
    """(step, L2 norm of the gradients before clipping; None: not finite). With sharded gradients, the norm of this rank's
    shards."""
    parameter_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    activation_bytes: int | None = None
    """Bytes that one forward pass saves for its backward pass; None: not measured."""
    flop_per_sample: float | None = None
    """FLOP of a forward and a backward pass, by torch's counter; None: not counted."""
    tokens: int | None = None
    """Tokens per sample of text; 0: no text."""
    updates: int | None = None
    """Steps of the optimizer, as counted by hooks; None: it has none."""


@value(frozen=True)
class WorkSeconds:
    """Where the time of a rank's steps went, in seconds, without exchanging and waiting for other ranks."""

    data: float
    """Waiting for batches."""
    compute: float
    """Forward, backward and optimizer, including emulated slowness."""
    no_core: float = 0.0
    no_core_data: float = 0.0
    """Parts of `compute` and (at most) of `data` in which the thread had no core."""
    link: float = 0.0
    """Ratio of the quickest transfer since the last report to what its emulated link needs; 0: none was measured."""
    core: float = 0.0
    """Processor seconds of a piece of work that is always the same, the mean since the last report: they show a core that is
    slower, because it is shared with other machines or throttled. 0: not measured."""


@value(frozen=True)
class SetContent:
    """The contents of a data set, read directly by index."""

    samples: int
    looked_at: int = 0
    """Number of samples read: a random part of a very large set."""
    content: int | None = None
    """Sum of the hashes of these samples, modulo `ddp.tally.MODULUS`; None: a sample may differ at each reading."""
    repeated: int = 0
    """Samples whose first member, such as the image, occurred before."""
    labels: tuple[int, ...] = ()
    """Number of samples with each label; empty: labels are not integers of few classes."""


@value(frozen=True)
class DataContent:
    """The data that a rank trains and evaluates on."""

    training: SetContent
    test: SetContent
    shared: int
    """Test samples whose first member also occurs in the training set."""
    pairs: tuple[tuple[int, int], ...]
    """The first such pairs: (index in the test set, index in the training set)."""
    shuffled: bool
    """Whether the engine shuffles by (seed, epoch); otherwise a sampler orders the samples, or they are not shuffled."""


@value(frozen=True)
class Failed(FromRank):
    """A rank raised. `error` is one line."""

    error: str
    traceback: str
    origin: str = ""
    """Type and place of the exception, equal on ranks that raised the same error; empty: not known."""
    kind: str = "raised"  # `torn`: its checkpoint is unusable; `explained`: the line says all; `refused`: of its links

    @property
    def of_all(self) -> bool:
        """Return whether all ranks fail in the same way, so that nobody can go on."""
        return self.kind == "refused"


@value(frozen=True)
class PastFault:
    """A fault in a part of a run whose records are not kept, as all ranks began again after it."""

    seconds: float
    """From the checkpoint with which they began again, or from that part's launch."""
    rank: int | None
    kind: str
    text: str
    action: str
    back_s: float | None = None


@value(frozen=True)
class Trained(FromRank):
    """For the record: tallies of the samples that a rank trained of `epoch` since the last such event, as the data set
    returned them. Sums are modulo `ddp.tally.MODULUS`."""

    epoch: int
    samples: int
    content: int | None
    """Sum of the hashes of the samples; None: not known."""
    wanted: int | None
    """The same sum for the samples that the data set holds at the granted positions."""
    order: int
    """`ddp.tally.order_tally` of positions in the epoch and indices."""
    labels: tuple[int, ...] = ()
    """Number of samples with each label; empty: not known."""
    placed: int | None = None
    """Sum of the hashes of the samples, each multiplied by a number for its position; None: not known."""
    placed_wanted: int | None = None
    """The same sum for the samples that the data set holds."""
    loss_sum: float | None = None
    """Sum of the loss over the samples, added up apart from reports of progress; None: not finite, or not known."""


@value(frozen=True)
class Tick:
    """Time has passed: check deadlines."""

    at: float
    away_s: float = 0.0
    """Seconds before this tick in which the coordinator did not listen (user code, a slow disk, a suspended machine), so
    that no rank counts as silent."""


@value(frozen=True)
class Alive(FromRank):
    """A sign of life from a rank during long work."""


@value(frozen=True)
class Ending:
    """The user or scheduler is about to end the run: a checkpoint is due at the next average."""

    at: float

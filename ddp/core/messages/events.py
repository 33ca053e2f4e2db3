"""Events: frozen facts. Each has `at`, seconds on the one monotonic clock that all ranks of a host share.

A rank's events are sent over the control channel and written to `events.jsonl` in the same form (`ddp.process.codec`)."""

from __future__ import annotations

from ddp.core.messages.event_parts import Alive as Alive
from ddp.core.messages.event_parts import (
    DataContent,
    Files,
    FromRank,
    Lasting,
    OptimizerSketch,
    PastFault,
    Sketch,
    SketchGroup,
    StepSketch,
    StepWork,
    WorkSeconds,
)
from ddp.core.messages.event_parts import Ending as Ending
from ddp.core.messages.event_parts import Failed as Failed
from ddp.core.messages.event_parts import Tick as Tick
from ddp.core.messages.event_parts import Trained as Trained
from ddp.core.messages.join_events import JoinEvent, Offered
from ddp.core.messages.measurements import Memory as Memory
from ddp.core.messages.measurements import Slice as Slice
from ddp.core.samples.spans import Spans
from ddp.core.values.frozen import value


@value(frozen=True)
class Ready(FromRank):
    """A rank has its model, data and transport ready."""

    samples: int
    """Training samples in an epoch."""
    parameters: int
    digest: str
    """sha256 of its parameters; equal on all ranks."""
    device: str
    transport: str  # `none` if there is one rank
    loader: str = ""
    note: str = ""
    """A note for readers of the results: about the data, or about the checkpoint that the run resumes from."""
    host: int = 0
    """Index of its host; the coordinator's is 0."""
    clock_error_s: float = 0.0
    """Largest error of its clock relative to the coordinator's at the start."""
    least: int = 1
    """Fewest samples in a batch that its model should be trained on."""
    sketched: tuple[SketchGroup, ...] = ()
    """What the rows of a sketch of the model are; reported by rank 0 for all."""
    sketch: Sketch = ""  # of the model as it begins
    data: DataContent | None = None
    optimizer: OptimizerSketch = ()
    """Sketch of the rank's optimizer state, if the run resumes from a checkpoint."""
    frozen: int = 0
    """Parameters that are not trained, so that no gradient of them is exchanged."""
    lasting: Lasting = ()
    """Digests of the rank's other state, if the run resumes from a checkpoint."""
    hostname: str = ""  # of a rank that a node agent forked


@value(frozen=True)
class Progress(FromRank):
    """A rank has trained `steps` batches of `epoch` since its last report, in the order granted; the last at rate `lr`."""

    epoch: int
    steps: int
    samples: int
    busy_s: float
    """Seconds of its training loop: data, computing (including emulated slowness) and the time between steps; without
    waiting and communication."""
    loss_sum: float | None
    """Sum of the training loss over samples; None: not finite."""
    lr: float
    scalars: tuple[tuple[str, float | None, int], ...] = ()
    """Recorded scalars: (name, sum over the calls or None if not finite, number of calls)."""
    after: int | None = None
    """The last round it contributed to before these steps (-1: none; None: not known): reveals a lost message."""
    visited: int | None = None
    """`ddp.tally.tally` of the samples read since the last report; None: not known."""
    exchanged: tuple[StepSketch, ...] = ()  # of steps that were drawn, where ranks exchange gradients inside steps
    work: WorkSeconds | None = None


@value(frozen=True)
class Snapshot(FromRank):
    """A rank has copied its replica for a round of a non-blocking backend. `steps`, `samples`: since its last copy."""

    round: int
    steps: int
    samples: int
    sketch: Sketch = ""  # of the replica
    optimizer: OptimizerSketch = ()
    """Sketch of the rank's optimizer state, if that is averaged."""


@value(frozen=True)
class Reduced:
    """The coordinator's process has averaged the snapshots of a round."""

    at: float
    round: int
    seconds: float
    bytes: int


@value(frozen=True)
class Averaged(FromRank):
    """A rank holds the average of a round."""

    round: int
    steps: int
    samples: int
    """`steps` and `samples` of the rank that entered the average."""
    seconds: float
    """Seconds from entering the exchange to its end. The last rank to enter a collective waits for nobody, so the least
    value of a round is the transfer time."""
    bytes: int
    divergence: float | None
    """||own - average|| / ||average||, L2 over all parameters; None: not finite."""
    away_s: float = 0.0
    """Additional seconds that the round kept the rank from training: reporting, copying."""
    distance: float | None = 0.0
    """||own - average||^2 over all parameters; None: not finite."""
    sketch_before: Sketch = ""
    sketch_after: Sketch = ""
    sketch_average: Sketch = ""
    """Sketches of the replica before and after, and of the backend's average; empty if the round was not drawn."""
    optimizer_before: OptimizerSketch = ()
    optimizer_after: OptimizerSketch = ()
    """Sketch of the rank's optimizer state."""


@value(frozen=True)
class AverageFailed(FromRank):
    """A rank could not complete a round. Its replica is unchanged, and it waits for orders."""

    round: int
    error: str
    steps: int | None = None
    """Steps since its last contribution; where gradients are averaged in steps, steps of its grant. None: not known."""


@value(frozen=True)
class Shared(FromRank):
    """A rank has sent its state to ranks that missed a round or join. For joining ranks: sketches of its optimizer, and of
    its model if that is sent."""

    round: int
    sketch: Sketch = ""
    optimizer: OptimizerSketch = ()


@value(frozen=True)
class Evaluated(FromRank):
    """A rank has evaluated slice `part` of the test set on the model at the end of `epoch`. A sum is None if not finite."""

    epoch: int
    samples: int
    loss_sum: float | None
    metric_sum: float | None
    seconds: float
    part: int = 0
    content: float | None = None
    """Sum of all values of the test samples, which does not depend on how they are split."""
    sketch: Sketch = ""  # of the model
    hashes: int | None = None  # sum of those of the test samples (`SetContent`); None: not known
    own: Sketch = ""  # of the rank's replica, where the model is the mean of all, each weighing alike


@value(frozen=True)
class Saved(FromRank):
    """A rank has written its part of a checkpoint, or failed to (`error`); sketches of the model and its optimizer."""

    index: int
    files: Files
    error: str = ""
    sketch: Sketch = ""
    optimizer: OptimizerSketch = ()
    lasting: Lasting = ()
    digests: tuple[str, str] = ("", "")  # of the model, if it wrote that or ranks compare theirs; optimizer's tensors


@value(frozen=True)
class Finished(FromRank):
    """A rank has finished normally."""

    digest: str
    peak_rss_bytes: int
    peak_device_bytes: int
    sketch: Sketch = ""
    kept: Files = ()  # saved steps for the audit to repeat, and the final model
    work: StepWork | None = None
    met: tuple[str, ...] | None = None  # faults of the script that came to it
    numbers: tuple[str, ...] = ()  # states of NumPy's and Python's generators (`ddp.data.seeded.OwnNumbers`)
    saving_s: float | None = None  # seconds in which it saved its state, for checkpoints and for the audit


@value(frozen=True)
class Lost(FromRank):
    """A rank's process is gone or unreachable."""

    reason: str


@value(frozen=True)
class RoundClosed:
    """For policies: all ranks hold the average of a round. Tuples are by rank; zero for a rank that contributed nothing."""

    at: float
    round: int
    steps: tuple[int, ...]
    """`steps` and `busy_s`: steps of each rank since its last contribution, and their seconds."""
    busy_s: tuple[float, ...]
    sync_s: float
    """Seconds that the round cost without waiting: the transfer of a collective, or averaging the snapshots, plus what kept
    ranks from training besides, weighted by their samples."""
    wait_s: tuple[float, ...]
    """Seconds that each rank waited in the collective for the last one to enter."""
    divergence: tuple[float, ...]
    """||own - average|| / ||average||."""
    starved: tuple[bool, ...]
    """Whether each rank was short of work when the round opened."""
    lost: tuple[int, ...] = ()
    """Lost ranks, which need no plan any more."""
    lr: float = 0.0
    """Highest learning rate of any rank's last step in the average; 0: not known."""
    samples: int = 0
    """Samples in the model now, over all epochs."""
    loss: float | None = None
    """Mean training loss over the samples that entered the average; None: not known."""
    spread: float = 0.0
    """Sum over the ranks of ||own - average||^2."""


@value(frozen=True)
class Merged(FromRank):
    """For the record: the samples of `epoch` that `rank` trained are in the model. Spans cover an epoch exactly once."""

    epoch: int
    spans: Spans


@value(frozen=True)
class GuardVerdict:
    """For the record: the policy's guard objected to the divergence of the replicas, and the policy acted on it.

    `verdict`: `suppress` (windows must not grow) or `nudge` (windows shrink); `divergence`: the largest of the ranks'."""

    at: float
    round: int
    guard: str
    verdict: str
    divergence: float
    value: float
    """What the guard judged: the divergence, or its growth per step."""
    limit: float
    """The limit that `value` exceeded."""
    factor: float
    """Factor on the anchor; 1 if it is unchanged."""


@value(frozen=True)
class Resumed:
    """For the record: a run resumes from a checkpoint of the run in `source`. The records before this one are those of its
    model: what that run trained later is left out."""

    at: float
    index: int
    epochs: int
    samples: int
    source: str
    because: str = ""
    """Why that run ended, if it was resumed automatically."""
    again: int = 0
    """Samples reported as trained after the checkpoint, which are trained again."""
    since_s: tuple[float, float] = (0.0, 0.0)
    """Seconds from the checkpoint, and from the last record, to the resumption. Resumed by hand: from the checkpoint to the
    last record, and 0."""
    ranks: int = 0
    """Number of ranks of that run, if this one has another number."""
    faults: tuple[PastFault, ...] = ()
    """Faults after the checkpoint, whose records are left out."""


_OfRound = Snapshot | Averaged | AverageFailed | Shared
RankEvent = Ready | Progress | Trained | _OfRound | Evaluated | Saved | Alive | Finished | Failed | JoinEvent
OfNoRank = Reduced | Tick | Offered | Ending
Event = RankEvent | OfNoRank | Lost
PolicyEvent = RoundClosed
PolicyRecord = GuardVerdict

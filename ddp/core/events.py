"""Events: frozen facts. Each carries `at`, seconds on the one monotonic clock that all ranks of a host share.

A rank's events cross the control channel and land in `events.jsonl` unchanged (`ddp.process.codec` does both).
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.event_parts import Alive as Alive
from ddp.core.event_parts import (
    DataContent,
    Files,
    FromRank,
    Lasting,
    OptimizerSketch,
    Sketch,
    SketchGroup,
    StepSketch,
    StepWork,
    WorkSeconds,
)
from ddp.core.event_parts import Ending as Ending
from ddp.core.event_parts import Tick as Tick
from ddp.core.event_parts import Trained as Trained
from ddp.core.join_events import JoinEvent, Offered
from ddp.core.measurements import Memory as Memory
from ddp.core.measurements import Slice as Slice
from ddp.core.spans import Spans


@dataclass(frozen=True)
class Ready(FromRank):
    """A rank has its model, data and transport."""

    samples: int
    """Training samples in an epoch."""
    parameters: int
    digest: str
    """sha256 of its parameters; equal on all ranks."""
    device: str
    transport: str  # `none`: of one rank
    loader: str = ""
    note: str = ""
    """What a reader of the results must know of the data, or of the checkpoint that the run resumes from."""
    host: int = 0
    """Place of its host; that of the coordinator is 0."""
    clock_error_s: float = 0.0
    """Most that its clock is off from the coordinator's at the start."""
    least: int = 1
    """Fewest samples that its model should be trained on at once."""
    sketched: tuple[SketchGroup, ...] = ()
    """What sketches of the model are of, row by row; rank 0 says so for all."""
    sketch: Sketch = ""  # of the model as it begins
    data: DataContent | None = None
    optimizer: OptimizerSketch = ()
    """Of what the rank's own optimizer keeps, by name, where the run resumes from a checkpoint."""
    frozen: int = 0
    """Of the parameters, those that are not trained: no gradient of them travels."""
    lasting: Lasting = ()
    """Of what the rank keeps beside, where the run resumes from a checkpoint."""
    hostname: str = ""  # of a rank that a node agent forked


@dataclass(frozen=True)
class Progress(FromRank):
    """A rank has trained `steps` batches of `epoch` since its last report, in the order granted; the last at rate `lr`."""

    epoch: int
    steps: int
    samples: int
    busy_s: float
    """Seconds of its training loop: data, compute (slowed on an emulated device) and what lies between two steps; no
    waiting, no communication."""
    loss_sum: float | None
    """Sum over samples of the training loss; None: not finite."""
    lr: float
    scalars: tuple[tuple[str, float | None, int], ...] = ()
    """What the steps recorded: (name, sum over the calls, number of calls); a sum of None: not finite."""
    after: int | None = None
    """The last round contributed to before these steps (-1: none; None: not known): a lost message shows."""
    visited: int | None = None
    """`ddp.tally.tally` of the samples that were read since the last report; None: not known."""
    exchanged: tuple[StepSketch, ...] = ()  # of steps that were drawn, where ranks exchange gradients inside steps
    work: WorkSeconds | None = None


@dataclass(frozen=True)
class Snapshot(FromRank):
    """A rank has copied its replica for a round of a non-blocking backend: what it trained since the last one."""

    round: int
    steps: int
    samples: int
    sketch: Sketch = ""  # of the replica
    optimizer: OptimizerSketch = ()
    """Of what the rank's own optimizer keeps, by name; where that is averaged."""


@dataclass(frozen=True)
class Reduced:
    """The coordinator's process has averaged the snapshots of a round."""

    at: float
    round: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Averaged(FromRank):
    """A rank holds the average of a round."""

    round: int
    steps: int
    samples: int
    """The two of what it trained that entered the average."""
    seconds: float
    """From entering the exchange to its end. In a collective the last rank to arrive waits for nobody, so the least value
    of a round is the time on the wire."""
    bytes: int
    divergence: float | None
    """||own - average|| / ||average||, L2 over all parameters; None: not finite."""
    away_s: float = 0.0
    """What the round kept the rank from training besides, seconds: reporting, copying."""
    distance: float | None = 0.0
    """||own - average||^2 over all parameters; None: not finite."""
    sketch_before: Sketch = ""
    sketch_after: Sketch = ""
    sketch_average: Sketch = ""
    """Of the replica before and after, and of what it took for the average; empty in a round that was not drawn."""
    optimizer_before: OptimizerSketch = ()
    optimizer_after: OptimizerSketch = ()
    """Of what the rank's own optimizer keeps, by name."""


@dataclass(frozen=True)
class AverageFailed(FromRank):
    """A rank could not complete a round. Its replica is as before, and it stands still until it is ordered how to go on."""

    round: int
    error: str
    steps: int | None = None
    """Steps that the rank has trained since its last contribution; inside steps: of its grant. None: not known."""


@dataclass(frozen=True)
class Shared(FromRank):
    """A rank has sent what others missed of a round; to ranks that join, with sketches of its model, if that is sent, and of
    its optimizer."""

    round: int
    sketch: Sketch = ""
    optimizer: OptimizerSketch = ()


@dataclass(frozen=True)
class Evaluated(FromRank):
    """A rank has evaluated slice `part` of the test set on the model as of the end of `epoch`. Sums of None: not finite."""

    epoch: int
    samples: int
    loss_sum: float | None
    metric_sum: float | None
    seconds: float
    part: int = 0
    content: float | None = None
    """Sum over the values of the test samples: the same samples give the same, however split."""
    sketch: Sketch = ""  # of the model
    hashes: int | None = None  # sum of those of the test samples (`SetContent`); None: not known
    own: Sketch = ""  # of the rank's replica, where the model is the mean of all, each weighing alike


@dataclass(frozen=True)
class Saved(FromRank):
    """A rank has written its part of a checkpoint, or could not: `error`; sketches of the model and its optimizer."""

    index: int
    files: Files
    error: str = ""
    sketch: Sketch = ""
    optimizer: OptimizerSketch = ()
    lasting: Lasting = ()
    digests: tuple[str, str] = ("", "")  # of the model, if it wrote that, and of the optimizer's tensors


@dataclass(frozen=True)
class Finished(FromRank):
    """A rank has stopped in good order."""

    digest: str
    peak_rss_bytes: int
    peak_device_bytes: int
    sketch: Sketch = ""
    kept: Files = ()  # steps to be done again, and the model at the end
    work: StepWork | None = None
    met: tuple[str, ...] | None = None  # faults of the script that came to it
    numbers: tuple[str, ...] = ()  # states of NumPy's and Python's generators (`ddp.data.seeded.OwnNumbers`)


@dataclass(frozen=True)
class Failed(FromRank):
    """A rank raised. `error` is one line."""

    error: str
    traceback: str
    origin: str = ""
    """Type and place of the exception; ranks with equal ones raised the same error. Empty: not known."""
    kind: str = "raised"  # `torn`: it cannot resume from its checkpoint; `explained`: its line says all


@dataclass(frozen=True)
class Lost(FromRank):
    """A rank's process is gone or unreachable."""

    reason: str


@dataclass(frozen=True)
class RoundClosed:
    """For policies: every rank holds the average of a round. Tuples are by rank; zero for one that contributed nothing."""

    at: float
    round: int
    steps: tuple[int, ...]
    """What each rank trained since its last contribution, and in how many seconds."""
    busy_s: tuple[float, ...]
    sync_s: float
    """What the round cost, but for waiting: time on the wire of a collective, or of averaging the snapshots, and what it
    kept ranks from training besides, weighed by their samples."""
    wait_s: tuple[float, ...]
    """Seconds that a rank stood in the collective before the last one arrived."""
    divergence: tuple[float, ...]
    """||own - average|| / ||average||."""
    starved: tuple[bool, ...]
    """Whether the rank had run short of work when the round opened."""
    lost: tuple[int, ...] = ()
    """Ranks that the run goes on without; for them there is nothing more to plan."""
    lr: float = 0.0
    """Learning rate of the last steps that entered the average, the highest of the ranks'; 0: not known."""
    samples: int = 0
    """Samples in the model now, over all epochs."""
    loss: float | None = None
    """Mean training loss over the samples that entered the average; None: not known."""
    spread: float = 0.0
    """Sum over the ranks of ||own - average||^2."""


@dataclass(frozen=True)
class Merged(FromRank):
    """For the record: what `rank` trained of `epoch` is in the model. Spans of an epoch cover every sample exactly once."""

    epoch: int
    spans: Spans


@dataclass(frozen=True)
class GuardVerdict:
    """For the record: the policy's guard was not content with how the replicas come apart, and the policy acted on it.

    `verdict` is `suppress` (windows must not grow) or `nudge` (they shrink); `divergence` the largest of the ranks'."""

    at: float
    round: int
    guard: str
    verdict: str
    divergence: float
    value: float
    """What the guard judges: the divergence, or its growth per step."""
    limit: float
    """What `value` has exceeded."""
    factor: float
    """What the anchor is multiplied by; 1 if it stays."""


@dataclass(frozen=True)
class Resumed:
    """For the record: a run resumes from a checkpoint of the run in `source`. Its model has seen what is recorded before."""

    at: float
    index: int
    epochs: int
    samples: int
    source: str
    because: str = ""
    """What ended that run, where this one goes on by itself."""
    again: int = 0
    """Samples that it had trained beyond the checkpoint, as far as they were reported: they are trained again."""
    since_s: tuple[float, float] = (0.0, 0.0)
    """Seconds from the checkpoint, and from the last record, until it was resumed."""
    ranks: int = 0
    """Ranks of that run, where this one has another number of them."""


_OfRound = Snapshot | Averaged | AverageFailed | Shared
RankEvent = Ready | Progress | Trained | _OfRound | Evaluated | Saved | Alive | Finished | Failed | JoinEvent
OfNoRank = Reduced | Tick | Offered | Ending
Event = RankEvent | OfNoRank | Lost
PolicyEvent = RoundClosed
PolicyRecord = GuardVerdict

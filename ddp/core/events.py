"""Events: frozen facts. Each carries `at`, seconds on the one monotonic clock that all ranks of a host share.

A rank's events cross the control channel and land in `events.jsonl` unchanged (`ddp.process.codec` does both).
"""

from __future__ import annotations

from dataclasses import dataclass

from ddp.core.spans import Spans

Sums = tuple[float | None, ...]
"""What can be held against each other of two states of a model: the sum of its parameters and of their magnitudes, then both
of its floating-point buffers. None: not finite. An average is linear, so these are averaged with the same weights."""


@dataclass(frozen=True)
class Ready:
    """A rank has its model, data and transport. `digest` (sha256 of its parameters) must be equal on all ranks."""

    at: float
    rank: int
    samples: int
    """Training samples in an epoch."""
    parameters: int
    """Number of parameters."""
    digest: str
    device: str
    transport: str
    """`nccl`, `gloo`, `memory` (snapshots in shared memory) or `none` (one rank)."""
    loader: str = ""
    """How the rank gets at its data: `resident` or `streaming`; nothing where it does not say."""
    note: str = ""
    """What a reader of the results must know about that, or about what the run goes on from."""
    host: int = 0
    """Place of its host; that of the coordinator is 0."""
    clock_error_s: float = 0.0
    """Most that its clock may be off from the coordinator's, as of the start; 0 where both are one."""
    least: int = 1
    """Fewest samples that its model should be trained on at once."""


@dataclass(frozen=True)
class Probe:
    """What a collective inside a step did, as one rank saw it; `Sums` of its gradients in place of parameters."""

    samples: int
    """Of the rank's slice."""
    total: int
    """Of the global batch."""
    before: Sums
    after: Sums


@dataclass(frozen=True)
class Progress:
    """A rank has trained `steps` batches of `epoch` since its last report, in the order in which they were granted."""

    at: float
    rank: int
    epoch: int
    steps: int
    samples: int
    busy_s: float
    """Seconds of its training loop: data and compute (slowed, where a slow device is emulated) and what lies between two
    steps; no waiting, no communication."""
    loss_sum: float | None
    """Sum over samples of the training loss; None: it was not finite."""
    lr: float
    """Learning rate of the last step."""
    scalars: tuple[tuple[str, float | None, int], ...] = ()
    """What the steps recorded: (name, sum over the calls, number of calls); a sum of None was not finite."""
    after: int | None = None
    """The last round that the rank brought its training into before these steps (-1: none yet; None: it does not say).
    Tells the coordinator of a contribution that it never heard of."""
    visited: int | None = None
    """`ddp.tally.tally` of the samples that the data set was asked for since the last report, as asked; None: not known."""
    probes: tuple[Probe, ...] = ()
    """Of the first step of an epoch, and of steps whose global batch has another size than the one before."""


@dataclass(frozen=True)
class Snapshot:
    """A rank has laid down its replica for a round of a non-blocking backend: what it trained since the last one."""

    at: float
    rank: int
    round: int
    steps: int
    samples: int
    before: Sums = ()
    """Of the replica that was to be laid down; empty: not taken in this round."""


@dataclass(frozen=True)
class Reduced:
    """The coordinator's process has averaged the snapshots of a round."""

    at: float
    round: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Averaged:
    """A rank holds the average of a round."""

    at: float
    rank: int
    round: int
    steps: int
    """Own steps that entered the average."""
    samples: int
    seconds: float
    """From entering the exchange to its end on this rank: on a collective the last rank to arrive waits for nobody, so
    the smallest value of a round is the time on the wire."""
    bytes: int
    divergence: float | None
    """||own - average|| / ||average||, L2 over all parameters; None: it was not finite."""
    before: Sums = ()
    """Of the replica just before. Empty, like the others: not taken in this round."""
    after: Sums = ()
    """Of the replica just after."""
    average: Sums = ()
    """Of what it took for the average."""
    away_s: float = 0.0
    """What the round kept the rank from training besides, seconds: reporting, copying, laying down a snapshot."""


@dataclass(frozen=True)
class AverageFailed:
    """A rank could not complete a round, most often because another rank is gone; its replica is as before the round.

    It stands still until it is told how to go on."""

    at: float
    rank: int
    round: int
    error: str
    steps: int | None = None
    """Steps that the rank has trained since its last contribution; inside steps: of its grant. None: it does not say."""


@dataclass(frozen=True)
class Shared:
    """A rank has laid down what others missed of a round."""

    at: float
    rank: int
    round: int


@dataclass(frozen=True)
class Evaluated:
    """A rank has evaluated slice `part` of the test set on the model as of the end of `epoch`."""

    at: float
    rank: int
    epoch: int
    samples: int
    loss_sum: float | None
    """None: it was not finite; so for the metric."""
    metric_sum: float | None
    seconds: float
    part: int = 0
    content: float | None = None
    """Sum over the values of the test samples that the model was shown: the same samples give the same, however split."""
    model: Sums = ()
    """Of the model that was evaluated."""


@dataclass(frozen=True)
class Saved:
    """A rank has laid down its part of a checkpoint, or could not."""

    at: float
    rank: int
    index: int
    files: tuple[tuple[str, int, str], ...]
    """(name, bytes, sha256) of each."""
    error: str = ""


@dataclass(frozen=True)
class Alive:
    """A sign of life from a rank in a long piece of work."""

    at: float
    rank: int


@dataclass(frozen=True)
class Finished:
    """A rank has stopped in good order; its last words."""

    at: float
    rank: int
    digest: str
    peak_rss_bytes: int
    peak_device_bytes: int


@dataclass(frozen=True)
class Failed:
    """A rank raised. `error` is one line, `traceback` the whole text; empty: it cannot go on from the checkpoint given."""

    at: float
    rank: int
    error: str
    traceback: str
    origin: str = ""
    """Type and place of what was raised; ranks with equal ones raised the same error. Empty: not known."""


@dataclass(frozen=True)
class Lost:
    """A rank's process is gone or unreachable."""

    at: float
    rank: int
    reason: str


@dataclass(frozen=True)
class Tick:
    """Time has passed; deadlines are looked at."""

    at: float
    away_s: float = 0.0
    """Seconds before it in which nobody listened (user code, a slow disk, a machine that slept): no rank was silent then."""


@dataclass(frozen=True)
class Slice:
    """A stretch of a rank's time, measured by the rank; slices of a rank do not overlap.

    `kind` is one of `data`, `forward`, `backward`, `optimizer`, `slowdown` (the emulated part of a slow device),
    `exchange` (in a collective; slices of all ranks with equal `seq` are one collective), `copy` (to and from a
    snapshot), `wait` (for orders), `evaluate`, `checkpoint`; and `hidden`, a collective beside any of these.
    """

    at: float
    rank: int
    kind: str
    seconds: float
    seq: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Memory:
    """Resident memory of a rank's process, measured by the rank now and then. For the record, as slices are."""

    at: float
    rank: int
    rss_bytes: int
    cpu_s: float | None = None
    """Processor seconds that the process has used, all its threads together; None: it does not say."""
    device_bytes: int | None = None
    """Memory that its tensors take on its GPU; None: it has none."""
    device_use: float | None = None
    """Part of the last second or less in which its GPU was at work, whoever used it; None: not known."""


@dataclass(frozen=True)
class RoundClosed:
    """For policies: every rank holds the average of a round. Tuples are by rank; zero for one that brought in nothing."""

    at: float
    round: int
    steps: tuple[int, ...]
    """What each rank trained since its last contribution."""
    busy_s: tuple[float, ...]
    """Seconds in which it did so."""
    sync_s: float
    """What the round cost, but for waiting: time on the wire of a collective, or of averaging the snapshots, and what it
    kept ranks from training besides, weighed by their samples."""
    wait_s: tuple[float, ...]
    """Seconds that a rank stood in the collective before the last one arrived."""
    divergence: tuple[float, ...]
    """||own - average|| / ||average||."""
    starved: tuple[bool, ...]
    """Whether the rank had run short of work when the round opened, or stood still for lack of it."""
    lost: tuple[int, ...] = ()
    """Ranks that the run goes on without; for them there is nothing more to plan."""


@dataclass(frozen=True)
class Merged:
    """For the record: what `rank` trained of `epoch` is in the model that all share. Over a run, the spans of an epoch
    cover every sample exactly once."""

    at: float
    rank: int
    epoch: int
    spans: Spans


@dataclass(frozen=True)
class GuardVerdict:
    """The policy's guard is not content with how the replicas come apart. For the record: the policy has acted on it."""

    at: float
    round: int
    """The round that it judged last."""
    guard: str
    """Its name in the registry."""
    verdict: str
    """`suppress` (windows must not grow) or `nudge` (they shrink)."""
    divergence: float
    """Largest of the ranks' ||own - average|| / ||average||."""
    value: float
    """What the guard judges: the divergence, or its growth per step."""
    limit: float
    """What `value` has exceeded."""
    factor: float
    """What the anchor is multiplied by; 1 if it stays."""


@dataclass(frozen=True)
class Launched:
    """For the record, its first line: the run was launched. Every time that is shown of it counts from here, also of what
    goes on with it."""

    at: float


@dataclass(frozen=True)
class Resumed:
    """For the record: from here on a run goes on from a checkpoint. What is recorded before is what its model knows of."""

    at: float
    index: int
    epochs: int
    """Complete epochs, and samples, in the checkpoint."""
    samples: int
    source: str
    """Folder of the earlier run."""


RankEvent = (
    Ready | Progress | Snapshot | Averaged | AverageFailed | Shared | Evaluated | Saved | Alive | Finished | Failed
)
Event = RankEvent | Reduced | Lost | Tick
PolicyEvent = RoundClosed
PolicyRecord = GuardVerdict
"""What a policy has to say beside its plans."""

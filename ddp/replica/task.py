"""`Task`: what is trained, and `Job`: how. Everything that an engine needs, and nothing of the harness around it.

Both are plain data and functions importable by name, so that they can be sent to a rank's process. Solo and distributed
runs use the same task and differ only in the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddp.core.network.links import Links
from ddp.core.policies import Policy
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import Fault, PhaseFault
from ddp.core.settings.loader import Loading
from ddp.core.settings.steps import StepSettings
from ddp.core.settings.virtual_time import VirtualTime

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ddp.comm.transports.threads import ThreadGroup
    from ddp.data.augment import Augment
    from ddp.data.epoch_order import Sampler
    from ddp.replica.handle import WorkerHandle

Tensors = tuple["Tensor", ...]


class Source(Protocol):
    """A data set that fits into a rank's memory: `len(source)` samples, gathered by index."""

    def __len__(self) -> int: ...

    def batch(self, indices: Tensor) -> Tensors:
        """Return the samples at `indices` (int64, shape [n]), in that order: tensors with first dimension n, on the
        device."""
        ...

    def to(self, device: torch.device) -> Source:
        """Return the same data on `device`."""
        ...


@dataclass(frozen=True)
class Task:
    """A model, its data and its training set-up."""

    model: Callable[[], nn.Module]
    """Builds the model; random initialisation comes from torch's global generator, which the engine seeds."""
    optimizer: Callable[[list[nn.Parameter]], Any]
    """Makes the optimizer (or several) of these parameters. Its learning rates are those at schedule 1.0."""
    loss: Callable[[nn.Module, Tensors], Tensor]
    """Mean loss over a batch, a scalar tensor with gradient."""
    evaluate: Callable[[nn.Module, Tensors], tuple[Tensor, Tensor]]
    """(sum of the loss, sum of the metric) over the samples of a batch, or with `means` the means; scalar tensors, called
    without gradient."""
    train_data: Callable[[], Source]
    eval_data: Callable[[], Source]
    schedule: Callable[[float], float]
    """Fraction of all training samples seen, in [0, 1] -> factor on the learning rate."""
    eval_batch: int = 500
    means: bool = False
    """`evaluate` returns means over the samples of a batch, not sums: a user's batch need not know its number of
    samples."""
    augment: Augment | None = None
    """Augments a training batch: (batch, random streams of its samples) -> batch. See `ddp.data.augment`."""
    sampler: Sampler | None = None
    """Gives the samples of each epoch in their order, instead of a random permutation of all: `ddp.data.epoch_order`."""
    static_graph: bool = False
    """Whether every step has the same autograd graph: the `static_graph` of PyTorch's DistributedDataParallel."""
    drop_last: bool = False
    """Drop the samples at the end of an epoch that do not fill a whole batch on every rank."""
    epoch_callback: Callable[[int, WorkerHandle], None] | None = None
    """Called in every rank's process before its first step of an epoch, with the epoch and the rank. A rank that trains
    nothing in an epoch is called for it together with the next one, so every rank is called for all epochs in order."""


@dataclass(frozen=True)
class Job:
    """One training run."""

    task: Callable[[], Task]
    """Creates the task inside a rank: a function importable by name, or a `functools.partial` of one. It must not be in
    `__main__`, which ranks do not import."""
    epochs: int
    """Passes over the training data; with `steps`, number of equal parts of the run."""
    batch_size: int
    """Samples per step and rank, over all its micro-batches."""
    seed: int
    world_size: int
    policy: Policy
    backend: str
    """A key of `ddp.backends.BACKENDS`."""
    scratch: Path
    """Folder for this run's private files: time slices of the ranks, snapshots. The caller creates it empty and removes
    it."""
    loading: Loading = field(default_factory=Loading)
    """How a rank reads its data."""
    steps: int | None = None
    """Steps of the run (all ranks together count as one), instead of passes over the data; a multiple of `epochs`."""
    step: StepSettings = field(default_factory=StepSettings)
    """How a rank does a step."""
    averaging: Averaging = field(default_factory=Averaging)
    """How an average is computed and applied."""
    transport: str = "auto"
    """What collectives go through: a key of `ddp.comm.transports.TRANSPORTS`, or `auto`: the fastest that applies."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: CUDA where every rank has a GPU of its own."""
    speeds: tuple[float, ...] = ()
    """Emulated relative speed of each rank in (0, 1]; empty: no emulation."""
    step_s: float = 0.0
    """Seconds of a step at emulated speed 1; 0: as long as it takes."""
    links: Links | None = None
    """Emulated links between ranks, and to the coordinator on rank 0's host; None: no emulation."""
    virtual: VirtualTime = field(default_factory=VirtualTime)
    """Settings of the engine `virtual`."""
    lr_scale: float = 1.0
    """Factor on every learning rate."""
    max_grad_norm: float | None = None
    """Clip the gradients of a step to this L2 norm over all parameters: after the exchange where gradients are averaged in
    the step, else on each rank by itself."""
    deadline_s: float = 60.0
    """Seconds a rank may be silent before it counts as lost; the timeout of a collective is half of it."""
    tolerate_loss: bool = True
    """Continue without a lost rank; otherwise the run fails."""
    restarts: int | None = 0
    """How often each lost rank is restarted; None: without limit."""
    absent: int = 0
    """Number of ranks, the last ones, that are absent at the start: they join once a process is offered for them."""
    spares: int = 0
    """Number of spare processes that wait to replace a lost rank."""
    offers: Path | None = None
    """Folder in which a file `offer-*` offers a process for a rank; None: no offers."""
    compare: int = 0
    """Steps between comparisons of the parameters among ranks that should hold the same bits; 0: never."""
    life: int = 0
    """How often the rank that gets this job was restarted."""
    faults: tuple[Fault, ...] = ()
    """Faults to inject."""
    phase_faults: tuple[PhaseFault, ...] = ()
    """Faults to inject in a phase of a rank's first life: for `bench faults`."""
    keep_state: bool = False
    """Whether every rank saves its final parameters and buffers to `scratch/state-<rank>.pt`."""
    audit: str = ""
    """Key to draw the steps whose states are saved in `scratch`, for an audit to repeat (`ddp.replica.evidence.keeper`);
    empty: none."""
    checkpoints: Checkpointing | None = None
    """How often to save a checkpoint; None: never."""
    checkpoint_folder: Path | None = None
    """Folder of the checkpoints."""
    run: str = ""
    """Identifies this run in the parts of its checkpoints. Set by the engine."""
    resume: Path | None = None
    """The checkpoint to resume from: a folder inside a checkpoint folder."""
    profile_steps: int = 0
    """Number of steps of each rank, after the first ones, to record with torch's profiler (`ddp.process.profiling`)."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once for all ranks."""
    elsewhere: RankProvider | None = field(default=None, repr=False, compare=False)
    """Starts the processes of all ranks but the first; None: all ranks are forked here."""
    threads: ThreadGroup | None = field(default=None, repr=False, compare=False)
    """Lets ranks that are threads of this process meet; None: each rank has a process."""
    meet: str = ""
    """`HOST:PORT/NAME` of the store through which ranks of several hosts meet; empty: all ranks are on one host."""
    spare_core: bool = False
    """Whether this host has a core besides those of the ranks. Decided once, so that all ranks exchange in the same way."""
    host_ranks: int = 0
    """Number of ranks on this host; 0: all."""
    local_rank: int | None = None
    """Index of this rank on its host; None: ranks fill one host after the other."""
    host: int = 0
    """Index of this host; the coordinator's is 0."""
    clock_shift: float = 0.0
    """Seconds to add to this host's clock to get the coordinator's."""
    clock_error_s: float = 0.0
    """Largest error of `clock_shift`, seconds."""
    hostname: str = ""
    """Name of this host, if a node agent forks the rank."""


class RankProcess(Protocol):
    """The process of one rank, on this host or another."""

    def start(self) -> Connection:
        """Start the process; return the parent's end of its channel. Raises RankLost."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Return whether the process has ended; wait up to `timeout_s` for that."""
        ...

    def kill(self) -> None:
        """Kill the process, whatever state it is in; do not wait for its end."""
        ...

    def exit_reason(self) -> str:
        """Return how the process ended; called once its channel is closed."""
        ...


class RankProvider(Protocol):
    """Provides processes for all ranks but the first."""

    def prepare_job(self, job: Job) -> Job:
        """Return the job with the fields that ranks on this host need."""
        ...

    def runner(self, job: Job, rank: int) -> RankProcess:
        """Return the process of a rank for that job."""
        ...


def whole_batches(drop_last: bool, job: Job) -> int:
    """Return the number that the samples of an epoch must be a multiple of."""
    return job.batch_size * job.world_size if drop_last else 1


def epoch_samples(job: Job) -> int | None:
    """Return the samples per epoch of a run with a given number of steps; None: all training data."""
    return None if job.steps is None else job.steps // job.epochs * job.batch_size * job.world_size

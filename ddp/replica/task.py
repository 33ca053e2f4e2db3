"""`Task`: what is trained, and `Job`: how. Everything an engine needs, nothing of the harness.

Both are plain data and functions importable by name, so that they reach a rank's process by reference. Solo and distributed
runs share a task: they differ in nothing but the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddp.core.averaging import Averaging
from ddp.core.checkpoint_settings import Checkpointing
from ddp.core.faults import Fault, PhaseFault
from ddp.core.links import Links
from ddp.core.loader_settings import Loading
from ddp.core.policies import Policy
from ddp.core.step_settings import StepSettings
from ddp.core.virtual_time import VirtualTime

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ddp.comm.transports.threads import ThreadGroup
    from ddp.data.augment import Augment
    from ddp.data.epoch_order import Sampler
    from ddp.replica.handle import WorkerHandle

Tensors = tuple["Tensor", ...]


class Source(Protocol):
    """A data set that fits a rank: `len(source)` samples, gathered by index."""

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
    """A published set-up, ready to train."""

    model: Callable[[], nn.Module]
    """Builds the model; random initialisation comes from torch's global generator, which the engine seeds."""
    optimizer: Callable[[list[nn.Parameter]], Any]
    """Its learning rates are those at schedule 1.0."""
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
    """`evaluate` gives means over the samples of a batch, of which a user's batch need not tell how many it has."""
    augment: Augment | None = None
    """(batch, random streams of its samples) -> batch as the model is to see it, for training alone: `ddp.data.augment`."""
    sampler: Sampler | None = None
    """The samples of each epoch in their order, in place of a permutation of all: `ddp.data.epoch_order`."""
    static_graph: bool = False
    """Whether every step has the same graph of operations, as PyTorch's DistributedDataParallel may be told."""
    drop_last: bool = False
    """Leave out, at the end of an epoch, what makes no whole batch on every rank."""
    epoch_callback: Callable[[int, WorkerHandle], None] | None = None
    """Called in every rank's process before its first step of an epoch, with the epoch and the rank. A rank that trains
    nothing of an epoch is called for it together with the next one, so every rank sees all of them in ascending order."""


@dataclass(frozen=True)
class Job:
    """One training run."""

    task: Callable[[], Task]
    """A function importable by name (or a `functools.partial` of one) that makes the task inside a rank. Not one of
    `__main__`, which ranks do not import."""
    epochs: int
    """Passes over the training data; with `steps`, equal parts of the run."""
    batch_size: int
    """Samples of one step of one rank, of all its micro-batches."""
    seed: int
    world_size: int
    policy: Policy
    backend: str
    """A key of `ddp.backends.BACKENDS`."""
    scratch: Path
    """Folder for this run's private files: slices of the ranks, snapshots. Made empty and removed by the caller."""
    loading: Loading = field(default_factory=Loading)
    """How a rank gets at its data."""
    steps: int | None = None
    """Steps of the run, each of all ranks' batches, in place of passes over the data; a multiple of `epochs`."""
    step: StepSettings = field(default_factory=StepSettings)
    """How a rank does a step."""
    averaging: Averaging = field(default_factory=Averaging)
    """What an average is made of, and what becomes of it."""
    transport: str = "auto"
    """What collectives go through: a key of `ddp.comm.transports.TRANSPORTS`, or `auto`: the fastest that applies."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: CUDA where every rank has a GPU of its own."""
    speeds: tuple[float, ...] = ()
    """Emulated relative speed of each rank in (0, 1]; empty: as fast as it goes."""
    links: Links | None = None
    """Emulated links between ranks, and to the coordinator beside rank 0; None: as fast as they are."""
    virtual: VirtualTime = field(default_factory=VirtualTime)
    """Of engine `virtual`."""
    lr_scale: float = 1.0
    """Factor on every learning rate."""
    max_grad_norm: float | None = None
    """Gradients of a step are scaled down to this L2 norm over all parameters, if above: on each rank by itself; where
    gradients are averaged inside the step, after that."""
    deadline_s: float = 60.0
    """How long a rank may be silent; a collective may last half of it."""
    tolerate_loss: bool = True
    """Go on without a rank that is lost; otherwise the run fails."""
    restarts: int | None = 0
    """How often each rank that is lost is started again; None: always."""
    absent: int = 0
    """Ranks, the last ones, that are not there at first: they come when a process is offered for them."""
    spares: int = 0
    """Processes that wait for the place of a rank that is lost."""
    offers: Path | None = None
    """The folder in which files `offer-*` offer processes for ranks; None: nobody does."""
    compare: int = 0
    """Steps after which ranks that hold the same bits compare their parameters; 0: never."""
    life: int = 0
    """How often the rank that gets this job was started again."""
    faults: tuple[Fault, ...] = ()
    """What goes wrong on purpose."""
    phase_faults: tuple[PhaseFault, ...] = ()
    """What goes wrong on purpose in a phase, in the first life of a rank: for `bench faults`."""
    keep_state: bool = False
    """Every rank leaves its final parameters and buffers in `scratch/state-<rank>.pt`."""
    audit: str = ""
    """The key by which steps are drawn that are kept in `scratch`, to be done again (`ddp.replica.keeper`); empty: none."""
    checkpoints: Checkpointing | None = None
    """How often a checkpoint is made; None: never."""
    checkpoint_folder: Path | None = None
    """Where they are laid down."""
    run: str = ""
    """Names this run, so that parts of its checkpoints are told from those of others. Made by the engine."""
    resume: Path | None = None
    """The checkpoint (a folder in such a folder) to resume from."""
    profile_steps: int = 0
    """Steps of each rank, after its first ones, of which torch's operations are recorded (`ddp.process.profiling`)."""
    preload: tuple[str, ...] = ()
    """Modules that the fork server imports once for all ranks."""
    elsewhere: RankProvider | None = field(default=None, repr=False, compare=False)
    """Who has the ranks but the first, in processes that were started elsewhere; None: all are forked here."""
    threads: ThreadGroup | None = field(default=None, repr=False, compare=False)
    """Where ranks that are threads of this process meet; None: each has a process."""
    meet: str = ""
    """`HOST:PORT/NAME`: the store at which ranks of several hosts meet; empty: all are on one host."""
    spare_core: bool = False
    """Whether this host has a core beside those of the ranks: decided once, so that all ranks exchange alike."""
    host_ranks: int = 0
    """Ranks on this host; 0: all."""
    local_rank: int | None = None
    """Place of this rank among them; None: ranks fill one host after the other."""
    host: int = 0
    """Place of this host; that of the coordinator is 0."""
    clock_shift: float = 0.0
    """What this host's clock lacks to the coordinator's, seconds."""
    clock_error_s: float = 0.0
    """Most that `clock_shift` may be off."""
    hostname: str = ""
    """What this host calls itself, where a node agent forks the rank."""


class RankProcess(Protocol):
    """The process of one rank, wherever it is."""

    def start(self) -> Connection:
        """Start it; return the parent's end of its channel. Raises RankLost."""
        ...

    def wait(self, timeout_s: float) -> bool:
        """Return whether it has ended; wait up to `timeout_s` for that."""
        ...

    def kill(self) -> None:
        """End it, whatever state it is in; does not wait."""
        ...

    def exit_reason(self) -> str:
        """Return how it ended, once it has hung up."""
        ...


class RankProvider(Protocol):
    """Who has processes for all ranks but the first."""

    def prepare_job(self, job: Job) -> Job:
        """Return the job as ranks on this host are to get it."""
        ...

    def runner(self, job: Job, rank: int) -> RankProcess:
        """Return the process of a rank of that job."""
        ...


def whole_batches(drop_last: bool, job: Job) -> int:
    """Return what the samples of an epoch must be a multiple of."""
    return job.batch_size * job.world_size if drop_last else 1


def epoch_samples(job: Job) -> int | None:
    """Return the samples of an epoch of a run of so many steps; None: those of the training data."""
    return None if job.steps is None else job.steps // job.epochs * job.batch_size * job.world_size

"""`Config`: the user's configuration, typed. One dataclass per group.

Must not know Hydra, which `bench.config.composed` does, nor torch. Code that runs a plan never sees a `Config`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.loader import Loading
from ddp.core.settings.steps import NAMES as STEP
from ddp.core.settings.steps import StepSettings
from ddp.core.settings.virtual_time import VirtualTime
from ddp.engine.modes import Mode, mode_of

MISSING: Any = "???"
"""omegaconf's mark of a field without a default. Reports read configurations and need no omegaconf."""


@dataclass
class Choice:
    """A member of a group whose members only have a name."""

    name: str = MISSING


@dataclass
class ModelConfig(Choice):
    """A model and its settings."""

    depth: int | None = None
    """Layers with weights, such as 32 for a ResNet-32; null: the model's default."""


@dataclass
class TrainConfig:
    """Overrides of the recipe; null: the recipe's value."""

    epochs: int | None = None
    """Passes over the training data."""
    steps: int | None = None
    """Steps of the run, each of all ranks' batches, in place of passes over the data; `epochs` (1, if null) are then equal
    parts of it."""
    batch_size: int | None = None
    """Samples of one step of one rank; with `accumulate`, of each micro-batch."""
    global_batch_size: int | None = None
    """Samples of one step of all ranks together, in place of `batch_size`: each rank takes an equal share."""
    lr: float | None = None
    """Learning rate at schedule 1.0, before the scaling with the world size."""
    lr_scale_ratio: float | None = None
    """The rate is multiplied by 1 + ratio * (world_size - 1)."""
    max_grad_norm: float | None = None
    """Limit of the L2 norm of a step's gradients, over all parameters of a rank; null: no limit."""
    accumulate: int | None = None
    """Micro-batches of `batch_size` samples in one step of a rank; their gradients are accumulated; null: 1."""

    precision: str | None = None
    """Precision of training, by torch's autocast: `fp32`, `bf16`, `fp16`; null: `fp32`."""

    compile: bool | None = None
    """Whether the model is trained through torch.compile; null: false."""
    deterministic: bool | None = None
    """Use only deterministic algorithms; null: false."""

    @property
    def step(self) -> StepSettings:
        """Return the settings of a rank's training step. Raises ValueError for invalid ones."""
        given = {name: value for name in STEP if (value := getattr(self, name)) is not None}
        try:
            return StepSettings(**given)
        except ValueError as error:
            raise ValueError(f"train.{error}") from None


@dataclass
class DataConfig:
    """The data set and its files."""

    name: str | None = None
    """Data set, as `list data` shows them; null: the recipe's."""
    dir: str = "data"
    """Folder of downloads, in torchvision's layout."""
    path: str | None = None
    """Your own file or folder. Null, here and below: the default of the data set (`DataOptions`)."""
    seq_len: int | None = None
    """Tokens or characters of a sample."""
    samples: int | None = None
    """Samples to train on."""
    classes: int | None = None
    """Number of classes."""
    shape: list[int] | None = None
    """Channels, height and width of an image."""
    seed: int | None = None
    """Seed of generated data, and of the held-out part of `image_folder`."""


@dataclass
class ClusterConfig:
    """The ranks, their devices and links."""

    speeds: list[float] = field(default_factory=list)
    """Emulated relative speed of each rank, in [0.01, 1]; empty: full speed."""
    step_s: float = 0.0
    """Seconds that a step takes at emulated speed 1, unless it needs longer: independent of how fast the machine is at the
    moment; 0: as long as it takes."""
    links: Any = None
    """Emulated links between ranks, one or a list of `[RANKS+RANKS:]LINK` (docs/reference/links.md); null: none are
    emulated."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: CUDA where every rank has a GPU of its own."""
    transport: str = "auto"
    """Transport of the collectives of backend `nccl`: `nccl`, `memory`, `gloo` or `auto`."""
    deadline_s: float = 60.0
    """Seconds of silence after which a rank counts as lost."""
    tolerate_loss: bool = True
    """Continue without a lost rank; otherwise the run fails."""
    restart: str = "never"
    """Restarts of each lost rank: `never`, `always` or a number."""
    absent: int = 0
    """Ranks that are missing at the start; they join by `bench join RUN`."""
    spares: int = 0
    """Standby processes, with the data loaded, that replace lost ranks."""
    compare: int = 0
    """Steps between comparisons of the replicas of `nccl_sync`, which find flipped bits; 0: never."""
    bind: str = "127.0.0.1"
    """Where rank 0 listens for ranks on other hosts: an address of its host, an interface, or the network that the hosts
    share (10.0.0.0/24)."""
    faults: list[str] = field(default_factory=list)
    """Faults to inject: RANK@STEP:KIND, such as `1@40:crash` (docs/reference/faults.md)."""


@dataclass
class ProfileConfig:
    """Settings of torch.profiler."""

    steps: int = 0
    """Steps of each rank, after its first ten, whose operations torch.profiler records for the timeline, which makes them
    slower; 0: none."""


@dataclass
class Config:
    """The configuration of one run."""

    model: ModelConfig = MISSING
    """The model: a member of the group, a file or a module."""
    engine: Choice = MISSING
    """The engine, which runs the training loop; `mode` sets it with policy and backend."""
    policy: Any = MISSING
    """When ranks average; its settings follow."""
    backend: Choice = MISSING
    """How ranks average."""
    averaging: Averaging = field(default_factory=Averaging)
    world_size: int | None = None
    """Number of ranks; null: the mode's default (solo 1, others 2)."""
    seed: int = 0
    """Seed of every random number, 0 or more."""
    recipe: str = "quick"
    """A key of the model's recipes: `quick` or `published`."""
    train: TrainConfig = field(default_factory=TrainConfig)
    data: DataConfig = field(default_factory=DataConfig)
    loader: Loading = field(default_factory=Loading)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: Checkpointing = field(default_factory=Checkpointing)
    virtual: VirtualTime = field(default_factory=VirtualTime)
    profile: ProfileConfig = field(default_factory=ProfileConfig)
    resume: str | None = None
    """Folder of a run to continue from its latest checkpoint, with its configuration."""
    output: str = "runs"
    """Folder that holds `<model>/<mode>/<run_id>/`."""
    force: bool = False
    """Repeat finished runs of a sweep."""
    timing: bool = True
    """Whether to measure speeds. `off`: runs of a sweep share the machine, one core or GPU for each rank, and results have
    no speeds."""
    objective: str = "metric"
    """What a sweeper that searches, such as Optuna, improves: `metric` (of the final evaluation), `samples_per_s` or
    `time_to_target` (seconds)."""
    report: bool = True
    """Write a report after the run or sweep."""
    logger: Any = "none"
    """Experiment trackers, a name or a list: `none`, or of `list loggers`."""
    dashboard: Any = False
    """Serve a live page of `output` during the command: `true` (any free port), a port, or `false`."""
    audit: bool = True
    """Record some steps of the run, and repeat them in plain PyTorch at its end (`bench.audit`)."""
    validate: bool = True
    """Compare with the committed baseline after the run or sweep."""

    def __post_init__(self) -> None:
        """Accept the configurations of earlier versions, in which a backend with one policy was an engine."""
        if isinstance(self.engine, Choice) and isinstance(self.backend, Choice):
            mode = self.mode
            if mode.backend not in (None, self.backend.name):
                self.backend = Choice(str(mode.backend))
            self.engine = Choice(mode.engine)
            if mode.policy is not None and isinstance(self.policy, dict) and self.policy["name"] != mode.policy:
                self.policy = {"name": mode.policy}

    @property
    def mode(self) -> Mode:
        """Return the mode that engine, policy and backend make."""
        policy = self.policy["name"] if isinstance(self.policy, dict) else None
        return mode_of(self.engine.name, policy, self.backend.name)

"""`Config`: the user's configuration, typed. One dataclass per group, and their registration with Hydra.

The members of the groups `model`, `mode`, `engine`, `policy` and `backend` come from the registries in code, so a new
model or policy needs no YAML. Knows Hydra; must not know torch. Code that runs a plan never sees a `Config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass
from functools import cache
from typing import Any, get_type_hints

from omegaconf import MISSING, DictConfig, OmegaConf

from bench.models import MODELS
from ddp.backends import BACKENDS, paired_backends
from ddp.core.averaging import Averaging
from ddp.core.checkpoint_settings import Checkpointing
from ddp.core.loader_settings import Loading
from ddp.core.policies import POLICIES, Policy
from ddp.core.step_settings import NAMES as STEP
from ddp.core.step_settings import StepSettings
from ddp.core.virtual_time import VirtualTime
from ddp.engine import ENGINES
from ddp.engine.modes import Mode, mode_of, modes


@dataclass
class Choice:
    """A member of a group whose members only have a name."""

    name: str = MISSING


@dataclass
class ModelConfig(Choice):
    """A model, and what can be chosen of it."""

    depth: int | None = None
    """Layers with weights, such as 32 for a ResNet-32; null: the model's own."""


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
    """Most that the L2 norm of a step's gradients may be, over all parameters of a rank; null: no limit."""
    accumulate: int | None = None
    """Micro-batches of `batch_size` samples that a rank's step is made of: their gradients add up; null: 1."""

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
    """What is trained on, and where it lies."""

    name: str | None = None
    """Data set, as `list data` shows them; null: the recipe's."""
    dir: str = "data"
    """Folder that downloads are kept in, as torchvision lays them out."""
    path: str | None = None
    """A user's own file or folder. Of this and what follows null is the data set's own (`DataOptions`)."""
    seq_len: int | None = None
    """Tokens or characters of a sample."""
    samples: int | None = None
    """Samples to train on."""
    classes: int | None = None
    """Number of classes."""
    shape: list[int] | None = None
    """Channels, height and width of an image."""
    seed: int | None = None
    """What made-up data are drawn from."""


@dataclass
class ClusterConfig:
    """The devices and how they behave."""

    speeds: list[float] = field(default_factory=list)
    """Emulated relative speed of each rank in (0, 1]; empty: as fast as it goes."""
    links: Any = None
    """Emulated links between ranks, one or a list of `[RANKS+RANKS:]LINK` (docs/reference/links.md); null: as fast as they
    are."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: CUDA where every rank has a GPU of its own."""
    transport: str = "auto"
    """What the collectives of backend `nccl` go through: `nccl`, `memory`, `gloo` or `auto`."""
    deadline_s: float = 60.0
    """How long a rank may be silent before it counts as lost, seconds."""
    tolerate_loss: bool = True
    """Go on without a rank that is lost; otherwise the run fails."""
    restart: str = "never"
    """How often each rank that is lost is started again: `never`, `always` or a number."""
    absent: int = 0
    """Ranks that are not there at first: they come by `bench join RUN`."""
    spares: int = 0
    """Processes that wait, with the data read, to take the place of ranks that are lost."""
    compare: int = 0
    """Steps after which ranks of `nccl_sync` compare their replicas, so that a flipped bit shows; 0: never."""
    bind: str = "127.0.0.1"
    """Where rank 0 awaits the processes that torchrun has started: an address of its host, an interface, or the network that
    the hosts share (10.0.0.0/24)."""
    faults: list[str] = field(default_factory=list)
    """What goes wrong on purpose: RANK@STEP:KIND, such as `1@40:crash` (docs/reference/faults.md)."""


@dataclass
class ProfileConfig:
    """What is looked at more closely."""

    steps: int = 0
    """Steps of each rank, after its first ten, whose operations torch.profiler records for the timeline; 0: none. They are
    slower for it."""


@dataclass
class Config:
    """One run, as the user asked for it."""

    model: ModelConfig = MISSING
    """What is trained: a member of the group, a file or a module."""
    engine: Choice = MISSING
    """What runs the loop; `mode` chooses it with policy and backend."""
    policy: Any = MISSING
    """When ranks average; its settings follow."""
    backend: Choice = MISSING
    """How ranks average."""
    averaging: Averaging = field(default_factory=Averaging)
    world_size: int | None = None
    """Number of ranks; null: the mode's own (solo 1, others 2)."""
    seed: int = 0
    """Where every random number comes from, 0 or more."""
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
    """Folder of a run to go on with, from its latest checkpoint, as it was configured."""
    output: str = "runs"
    """Folder that holds `<model>/<mode>/<run_id>/`."""
    force: bool = False
    """Run the cells of a sweep that are finished already, too."""
    timing: bool = True
    """Whether speeds are measured. `off`: cells of a sweep run side by side where cores or GPUs are free, and results have
    no speeds."""
    objective: str = "metric"
    """What a searching sweeper makes better, of each run: `metric` (of evaluation, at the end), `samples_per_s` or
    `time_to_target` (seconds)."""
    report: bool = True
    """Write a report after the run or sweep."""
    logger: Any = "none"
    """Tools that get the run as well, a name or a list: `none`, or of `list loggers`."""
    dashboard: Any = False
    """Serve a live page over `output` while the command lasts: `true` (any free port), a port, or `false`."""
    audit: bool = True
    """Keep some steps of the run, and do them again when it is over (`bench.audit`)."""
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


def policy_node(name: str, policy: type[Policy]) -> DictConfig:
    """Make a typed node of a policy's settings, with the policy's `name` added."""
    node: DictConfig = OmegaConf.structured(policy)
    OmegaConf.set_readonly(node, False)  # frozen dataclasses make nodes that refuse every override
    OmegaConf.set_struct(node, False)
    node["name"] = name
    OmegaConf.set_struct(node, None)
    return node


def _schema() -> DictConfig:
    node: DictConfig = OmegaConf.structured(Config)
    for group in (node.averaging, node.checkpoint, node.loader, node.virtual):
        OmegaConf.set_readonly(group, False)
    return node


_LAST: list[list[tuple[str, Any]]] = []
"""The groups and members registered last."""


def register() -> None:
    """Register the schema and the groups' members with Hydra, unless they are unchanged since the last call."""
    from hydra.core.config_store import ConfigStore  # takes its time, and who judges runs needs none of it

    store = ConfigStore.instance()
    members = [list(group.items()) for group in (MODELS, ENGINES, BACKENDS, modes(), POLICIES)]
    if members == _LAST and "schema.yaml" in store.repo:
        return
    _LAST[:] = members
    store.store(name="schema", node=_schema())
    for name in MODELS:
        own = not MODELS.is_ours(name)  # by its file: a launcher of Hydra's may compose in another process
        store.store(group="model", name=name, node=ModelConfig(MODELS[name] if own else name))
    # Backends with one policy are accepted as engines too, as in earlier versions.
    for group, names in (("engine", [*ENGINES, *(BACKENDS.keys() - paired_backends())]), ("backend", BACKENDS)):
        for name in names:
            store.store(group=group, name=name, node=Choice(name))
    for name, mode in modes().items():
        store.store(group="mode", name=name, node=_preset(mode), package="_global_")
    for name, policy in POLICIES.items():
        store.store(group="policy", name=name, node=policy_node(name, policy))


def _preset(mode: Mode) -> dict[str, Any]:
    """Make the preset of a mode: its parts, and the settings of its policy. A mode whose backend has one policy
    ignores a `policy` or `backend` given with it, which a sweep has for its other modes."""
    if mode.name in BACKENDS:
        return {"defaults": [{"override /engine": mode.name}]}
    parts = {"engine": mode.engine, "policy": mode.policy, "backend": mode.backend}
    defaults = [{f"override /{group}": name} for group, name in parts.items() if name is not None]
    return {"defaults": defaults} | ({"policy": dict(mode.settings)} if mode.settings else {})


def typed(composed: DictConfig) -> Config:
    """Return the composed configuration as a `Config` whose `policy` is a plain dictionary of a name and settings.

    Raise omegaconf's exceptions for keys that the schema does not have (Hydra lets `+key=value` add them), for missing
    groups and for interpolations that lead nowhere."""
    values: dict[str, Any] = {}
    for key in (str(key) for key in composed if key != "hydra"):
        part = composed[key]
        nested = OmegaConf.is_config(part)
        values[key] = OmegaConf.to_container(part, resolve=True, throw_on_missing=True) if nested else part
    config = _made(Config, composed, values) or OmegaConf.to_object(OmegaConf.merge(_schema(), values))
    assert isinstance(config, Config)
    return config


def _made(cls: Any, node: DictConfig, values: Mapping[str, Any]) -> Any:
    """Make an instance of `cls` from a node that was composed with its schema, so that types are checked already.
    Return None if the node has another schema or further keys."""
    hints: dict[str, Any] = _hints(cls)
    made: Any = OmegaConf.get_type(node)
    if made is not cls or values.keys() != hints.keys():
        return None
    parts = {
        key: _made(hint, node[key], values[key])
        for key, hint in hints.items()
        if isinstance(hint, type) and is_dataclass(hint)
    }
    return None if None in parts.values() else cls(**{**values, **parts})


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)

"""`RunSpec`: one run, fully resolved. The plan makes it, the launcher executes it, the analysis describes it.

Plain data: knows neither Hydra nor torch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ddp.core.settings.faults import Fault


class Measure(NamedTuple):
    """The metric of a model, and the value expected of it."""

    metric: str
    higher_is_better: bool
    target: float | None
    """Value that a sound engine reaches; None: none is set."""


@dataclass(frozen=True)
class RunSpec:
    """One cell of the matrix with its seed; every value is final."""

    model: str
    data: str
    recipe: str
    mode: str
    engine: str
    policy: str | None
    """None where the engine has no policy (`solo`)."""
    backend: str | None
    world_size: int
    seed: int
    epochs: int
    batch_size: int
    """Samples of one step of one rank."""
    lr: float
    """Learning rate at schedule 1.0, before `lr_scale`."""
    lr_scale: float
    speeds: tuple[float, ...]
    """Emulated relative speed of each rank; empty: none emulated."""
    metric: str
    higher_is_better: bool
    target: float | None
    """Value of the metric that a sound engine reaches; None: none is set."""
    output: str
    """Folder that holds `<model>/<mode>/<run_id>/`."""
    run_id: str
    """Starts with `w<world_size>-s<seed>-`."""
    config_hash: str
    """Hash of the resolved configuration without the seed: the cell."""
    depth: int | None = None
    """Layers with weights; None: the model's own number."""
    timing: bool = True
    """Whether the run's speed is measured; otherwise other cells may run beside it."""
    faults: tuple[Fault, ...] = ()
    """Injected faults."""
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration; enough to run it again, exactly."""
    warnings: tuple[str, ...] = ()
    """Warnings for readers of the results (oversubscribed cores, emulated speeds)."""

    source: str = ""
    """`predicted`: nothing is trained, times are virtual; `virtual`: trained in virtual time; empty: a real run."""

    @property
    def key(self) -> tuple[Path, str, str, str]:
        """Return the parts of the run folder's path: output, model, mode, run id."""
        return Path(self.output), self.model, self.mode, self.run_id

    @property
    def title(self) -> str:
        """Return the name of the run in messages."""
        return f"{self.model} {self.mode} {self.run_id}"

"""Connects a `Trainer` to the harness that records its runs: what is recorded, and the protocol of a recorder.

Owns the name of the harness's module, which is imported only when a run is recorded. Must not know the contents of a
run folder.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ddp import settings as checks
from ddp.engine.modes import Mode
from ddp.engine.solo import Emit
from ddp.monitor.harness import harness_module
from ddp.replica.task import Job
from ddp.trainer.task import Parts

RECORDER = "bench.runner.script"
"""Module with `recorder(order: RecordOrder) -> Recorder`. The engine works without it."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class Recording:
    """What a user wants recorded, and where."""

    output: Path
    """Folder that holds `<name>/<mode>/<run_id>/`."""
    name: str
    metric: str
    """Name of the metric that `eval_step` returns."""
    higher_is_better: bool
    target: float | None
    """Value of the metric to reach; None: no target."""
    audit: bool
    """Whether some steps are recorded and repeated in plain PyTorch after the run."""


@dataclass(frozen=True)
class RecordOrder:
    """Everything that a recorder needs to know about one run."""

    recording: Recording
    parts: Parts
    job: Job
    mode: Mode
    lr_scale_ratio: float


class Recorder(Protocol):
    """Runs an engine and records its run."""

    @property
    def folder(self) -> Path | None:
        """Return the folder of the run; None until the run has ended."""
        ...

    @property
    def preload(self) -> tuple[str, ...]:
        """Return the modules that the fork server must import for the run."""
        ...

    @property
    def room(self) -> int:
        """Return how many bytes the recorder writes to `job.scratch`, in addition to the engine."""
        ...

    def run(self, job: Job, emit: Emit) -> None:
        """Run the engine with `job` and record the records that it emits. Private files go to `job.scratch`. Raises
        what the engine and `emit` raise."""
        ...


def check_recording(
    output: str | Path | None,
    name: str | None,
    metric: str,
    higher_is_better: bool,
    target: float | None,
    audit: bool,
) -> Recording | None:
    """Return what is to be recorded; None: nothing. Raise ValueError for arguments that are missing or invalid."""
    if output is None:
        if name is not None:
            raise ValueError(f"name={name!r} without output: say where the run folder belongs, such as output='runs'")
        return None
    if name is None:
        raise ValueError(f"output={str(output)!r} without name: say what the runs are of, such as name='touch'")
    for key, value in (("name", name), ("metric", metric)):
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            raise ValueError(f"{key}={value!r} must be a word of letters, digits and _ . -, such as {key}='touch'")
    goal = None if target is None else checks.number("target", target, -checks.MOST_SAMPLES)
    folder = Path(checks.path("output", output)).absolute()  # a script may change the current folder
    assert name is not None
    better = checks.flag("higher_is_better", higher_is_better)
    return Recording(folder, name, metric, better, goal, checks.flag("audit", audit))


def make_recorder(order: RecordOrder) -> Recorder:
    """Return the recorder for this order. Raise ValueError if the harness is not installed or the run cannot be
    described."""
    recorder: Recorder = harness_module(RECORDER, "output needs", ", or leave output out").recorder(order)
    return recorder

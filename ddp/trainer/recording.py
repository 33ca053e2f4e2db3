"""The seam between a `Trainer` and who records its runs: the order, and what is asked of a recorder.

Owns the name of the module that has the recorder: the harness, which is imported where a run is to be recorded and not
before. Must not know what a run folder holds.
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
    """What is recorded where, as a user asks for it."""

    output: Path
    """Folder that holds `<name>/<mode>/<run_id>/`."""
    name: str
    metric: str
    """What `eval_step` measures."""
    higher_is_better: bool
    target: float | None
    """Value of the metric that counts as reached; None: none does."""
    audit: bool
    """Whether some steps are kept, and done again when the run is over."""


@dataclass(frozen=True)
class RecordOrder:
    """One run to be recorded."""

    recording: Recording
    parts: Parts
    job: Job
    mode: Mode
    lr_scale_ratio: float


class Recorder(Protocol):
    """Runs an engine, and writes down what happens."""

    @property
    def folder(self) -> Path | None:
        """Return where the run lies; None until it has ended."""
        ...

    @property
    def preload(self) -> tuple[str, ...]:
        """Return the modules that the fork server imports for the run."""
        ...

    @property
    def room(self) -> int:
        """Return the bytes that it writes to `job.scratch`, beside the engine's."""
        ...

    def run(self, job: Job, emit: Emit) -> None:
        """Run as the engine does, with private files in `job.scratch`. Raises what the engine and `emit` raise."""
        ...


def check_recording(
    output: str | Path | None,
    name: str | None,
    metric: str,
    higher_is_better: bool,
    target: float | None,
    audit: bool,
) -> Recording | None:
    """Return what is to be recorded; None: nothing. Raise ValueError."""
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
    folder = Path(checks.path("output", output)).absolute()  # a script may leave the present folder
    assert name is not None
    better = checks.flag("higher_is_better", higher_is_better)
    return Recording(folder, name, metric, better, goal, checks.flag("audit", audit))


def make_recorder(order: RecordOrder) -> Recorder:
    """Return who records it. Raise ValueError where the harness is not installed, or the run cannot be described."""
    recorder: Recorder = harness_module(RECORDER, "output needs", ", or leave output out").recorder(order)
    return recorder

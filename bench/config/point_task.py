"""The task that Hydra calls with each point of a command, in this process or in one of a launcher. Knows no run.

In another process the result of a point is written to a file in the command's folder, as sweepers do not pass on what
jobs return. Such a process stops its run when the command's process is gone.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Protocol

import psutil
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from bench.base.canonical import digest
from bench.base.interrupts import listening
from bench.config.sweep_points import left_out_reason
from bench.models import MODELS

WATCH_S = 0.2


@dataclass(frozen=True)
class LostPoint:
    """A point whose process ended without a result."""

    name: str
    """Its overrides."""
    why: str


class PointJob(Protocol):
    """Runs one point. Must be picklable, as it is sent to other processes."""

    def __call__(self, composed: DictConfig) -> Any:
        """Return the result, which must be picklable. Its attribute `objective`, if any, is the number that a sweeper
        optimizes."""


def _worst() -> float | None:
    """Return the worst objective, for points without a result: a searching sweeper would stop at None. Return None for
    other sweepers."""
    direction = getattr(HydraConfig.get().sweeper, "direction", None)
    return None if direction is None else -math.inf if "max" in str(direction) else math.inf


def first_to_ask(folder: Path, run: Path) -> bool:
    """Return whether no other process of the command has asked for a run before. `folder`: the command's; `run`: the
    run's place. A sweeper that searches may ask again, for the objective."""
    try:
        (folder / f"{digest(str(run.absolute()))}.asked").touch(exist_ok=_worst() is not None)
    except FileExistsError:
        return False
    except OSError:  # the folder is gone with the command, or of another host
        pass
    return True


class PointTask:
    """Hydra's task. Calls, in this process: `take` with each result; `leave_out` with a line on each point of a sweep
    that is left out; `expect` with the overrides of each run, before the first run if the sweeper knows its points."""

    def __init__(
        self,
        job: PointJob,
        take: Callable[[Any], None],
        leave_out: Callable[[str], None],
        overrides: tuple[str, ...],
        folder: Path,
        expect: Callable[[Sequence[str]], None] = lambda overrides: None,
    ) -> None:
        self.job, self.overrides, self.folder = job, overrides, folder
        self._take, self._leave_out, self._expect = take, leave_out, expect
        self.home = socket.gethostname(), os.getpid()
        self.jobs = self.others = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the callbacks, which belong to this process; add the user's own models, for other processes to
        register."""
        own = {name: MODELS[name] for name in MODELS if not MODELS.is_ours(name)}
        return {key: getattr(self, key) for key in ("job", "overrides", "folder", "home")} | {"own": own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, source in state.pop("own").items():
            if name not in MODELS:
                MODELS.enrol(name, source, source)
        vars(self).update(state)

    def __call__(self, composed: DictConfig) -> float | None:
        """Run or leave out a point; return the number that a sweeper may optimize."""
        if os.getpid() == self.home[1]:
            result = self._result(composed)
            self.note(result)
        else:
            number = HydraConfig.get().job.num
            with listening(), self._bound():
                result = self._result(composed)
            with suppress(OSError):  # the command has ended, and its folder is gone
                file = self.folder / f"{number}.part"
                file.write_bytes(pickle.dumps(result))
                file.rename(file.with_suffix(".result"))
        value: float | None = getattr(result, "objective", None)
        return _worst() if value is None else value

    def foresee(self, composed: DictConfig, overrides: Sequence[str], params: Mapping[str, str]) -> None:
        """Announce a point of a sweep before the sweep starts. `params`: the experiment's sweep."""
        if left_out_reason(composed, self.overrides, params) is None:
            self._expect(overrides)

    def collect(self) -> None:
        """Read the results of other processes, in the order of the points."""
        for file in sorted(self.folder.glob("*.result"), key=lambda file: int(file.stem)):
            self.note(pickle.loads(file.read_bytes()))

    def _result(self, composed: DictConfig) -> Any:
        """Return the result of a point; for a point that is left out, a line that says why."""
        settings = HydraConfig.get()
        if settings.mode is RunMode.MULTIRUN:
            params = getattr(settings.sweeper, "params", None)
            why = left_out_reason(composed, self.overrides, params or {})
            if why is not None:
                return f"{' '.join(settings.overrides.task)}: left out: {why}"
        return self.job(composed)

    def note(self, result: Any) -> None:
        """Pass the result of a point to its callback."""
        if isinstance(result, str):
            self.others += 1
            self._leave_out(result)
        else:
            self.jobs += 1
            self._take(result)

    @contextmanager
    def _bound(self) -> Iterator[None]:
        """End the run in this process, as SIGTERM does, when the command's process is gone. Only works on the
        command's host."""
        done = Event()
        host, home = self.home

        def watch() -> None:
            while not done.wait(WATCH_S):
                if not psutil.pid_exists(home):
                    os.kill(os.getpid(), signal.SIGTERM)
                    return

        if host == socket.gethostname():
            Thread(target=watch, daemon=True).start()
        try:
            yield
        finally:
            done.set()

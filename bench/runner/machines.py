"""Rank 0's command under torchrun, srun or mpirun: it trains with the ranks that the launcher started on this host and
others.

Rank 0's process runs the command; all other processes are node agents (`bench.runner.node`).
See docs/reference/machines.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from bench.base import interrupts
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError, usage
from bench.config.config import Config
from bench.config.launched_checks import launched
from bench.runner.node import CATALOGUE, serve
from ddp.launcher.environment import read
from ddp.remote.first_start import first_start_alone
from ddp.remote.head import HeadNode
from ddp.remote.launched_process import TORCHRUN, LaunchedProcess

if TYPE_CHECKING:
    from bench.runner.resume import ResumeSource


def attended(place: LaunchedProcess, command: Callable[[Machines | None], int]) -> int:
    """Run `command` in rank 0's process, or a node agent in any other; return the exit code."""
    if place.rank:
        interrupts.leave(serve(place))  # nobody need wait for torch to tidy up
    machines = Machines(place)
    code: int = Exit.INTERNAL
    try:
        code = command(machines)
    except UsageError:
        code = Exit.USAGE
        raise
    except KeyboardInterrupt:
        code = Exit.KILLED
        raise
    finally:
        with interrupts.deferred():
            machines.dismiss(code)
    return code


class Machines(HeadNode):
    """Rank 0's side of a command: the launcher's settings for the run, and the ranks that the launcher started."""

    def __init__(self, place: LaunchedProcess) -> None:
        super().__init__(place, CATALOGUE, "bench")

    def settle(self, config: Config) -> Config:
        """Return the configuration with the launcher's world size.

        Raise UsageError if configuration and launcher contradict each other, RankLost if the store is gone."""
        place = self.process
        started, remedy = f"{place.launcher} has started", f"start it without {place.launcher}"
        with usage():
            config = launched(config, place.world_size, place.nodes, started, remedy)
            self.listen(config.cluster.bind)
        return config

    def left(self, place: Path) -> ResumeSource | Path | None:
        """Return the run in `place` that this command left before its last restart: a run to resume, or the folder of
        a finished run. None if there is none, or no restart."""
        if self.process.launcher == TORCHRUN:
            return left_since(place, self.began)
        return left_by_job(place, self.process.job) if self.restarts else None


def left_before(place: Path, machines: Machines | None) -> tuple[int, ResumeSource | Path | None]:
    """Return how often the launcher has started this command before, and the run in `place` left by those starts."""
    if machines is not None:
        return machines.restarts, machines.left(place)
    alone = read(os.environ)
    if alone is None:
        return 0, None
    if alone.launcher == TORCHRUN:
        began = first_start_alone(os.environ)  # asked by the first start, too, which is noted then
        return alone.restarts, left_since(place, began) if alone.restarts else None
    return alone.restarts, left_by_job(place, alone.job) if alone.restarts else None


def left_since(place: Path, since: float | None) -> ResumeSource | Path | None:
    """Return the run in `place` left by an earlier start of torchrun, whose first one was at `since`; None if none is."""
    from bench.runner.resume import locate

    if since is not None:
        with suppress(ValueError):  # the run or its first checkpoint was still to come
            return locate(place, since)
    return None


def left_by_job(place: Path, job: str) -> ResumeSource | Path | None:
    """Return the run in `place` left by an earlier start of a scheduler's job; None if this job left none. Raise
    UsageError if another process is writing that run."""
    from bench.runner.resume import GoingOn, locate

    try:
        return locate(place, job=job)
    except GoingOn as error:
        raise UsageError(str(error)) from error
    except (ValueError, OSError):  # the run or its first checkpoint was still to come
        return None

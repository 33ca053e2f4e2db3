"""Resumes a run automatically after the loss of a rank has ended it: all ranks start again from its last checkpoint,
or from the beginning if there is none yet.

This happens in modes that need every rank (`zero*`: a copy of each shard on a peer would cost the memory that sharding
saves), and when all ranks are lost. Owns the number of restarts; `bench.runner.resume` owns what a run takes from a
checkpoint.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

from rich.console import Console

from bench.base.number_format import plural
from bench.config.plan import RunPlan
from bench.results.analysis.faults import BEGAN_ANEW
from bench.results.runfolder import CHECKPOINTS, CONFIG, read_object
from bench.runner.earlier_records import attempt
from bench.runner.latest_checkpoint import find_latest
from bench.runner.launch import CutShort, Outcome, launch
from bench.runner.resume import ResumeSource
from ddp.core.errors import RankFailed, RankLost
from ddp.core.membership.joining import TRIES
from ddp.core.messages.run_bounds import Attempt
from ddp.core.settings.faults import LASTING
from ddp.engine.elche import SeveralFailed
from ddp.replica.task import Job


class RestartBudget:
    """Counts the restarts of all ranks of a run, and decides whether another one is allowed."""

    def __init__(self, job: Job) -> None:
        self._most = job.restarts
        self._in_row, self._latest, self._before = 0, "", ""
        self.begun = 0

    def allows(self, cause: BaseException, folder: Path) -> bool:
        """Return whether all ranks start again after an end by `cause`. They do not if several ranks raised the same error,
        as the program is wrong then; nor if a rank raises the same error again, or all ranks end too often, without a new
        checkpoint in between."""
        raised = isinstance(cause, RankFailed)
        if not raised and not isinstance(cause, RankLost):
            return False
        latest = max((path.name for path in (folder / CHECKPOINTS).glob("[0-9]*")), default="")
        same = raised and str(cause) == self._before
        if latest > self._latest:
            self._in_row, same = 0, False
        tired = self._in_row == TRIES or same or isinstance(cause, SeveralFailed)
        if tired or (self._most is not None and self.begun >= self._most):
            return False
        self._in_row, self._latest, self._before = self._in_row + 1, latest, str(cause)
        self.begun += 1
        return True


def launch_with_restarts(
    plan: RunPlan, console: Console, source: ResumeSource | None, restarts: int, notes: tuple[str, ...] = ()
) -> Outcome:
    """Launch a run, and resume it as often as `cluster.restart` allows. `notes`: warnings for readers of the results.

    Raises as `launch` does."""
    job = plan.job
    if job.restarts == 0 or job.elsewhere is not None or job.world_size == 1:
        return launch(plan, console, source, restarts, notes=notes)
    budget, anew, attempts = RestartBudget(job), tuple[str, ...](), tuple[Attempt, ...]()
    while True:
        try:
            return launch(
                plan, console, source, restarts, again=budget.allows, notes=(*notes, *anew), attempts=attempts
            )
        except CutShort as broken:
            left = tuple(fault for fault in plan.job.faults if fault not in broken.struck or fault.kind in LASTING)
            plan = replace(plan, job=replace(plan.job, faults=left))
            latest, torn = last_checkpoint(broken)
            if latest is not None:
                source = latest
            elif source is None:
                times, why = plural(budget.begun, "time"), "as there was no checkpoint yet"
                why = f"as no checkpoint is undamaged ({torn[0]})" if torn else why
                anew = (f"{BEGAN_ANEW} ({times} so far), {why}: {broken}",)
                attempts += (broken.attempt or attempt(cast(Path, broken.folder), job.world_size, job.absent),)


def last_checkpoint(broken: CutShort) -> tuple[ResumeSource | None, tuple[str, ...]]:
    """Return the run with its last valid checkpoint (None: there is none), and a line for each damaged one."""
    if broken.folder is None:
        return None, ()
    checkpoint, problems = find_latest(broken.folder)
    torn = tuple(problems)
    if checkpoint is None:
        return None, torn
    config = read_object(broken.folder / CONFIG)
    return ResumeSource(broken.folder, config, checkpoint, torn, str(broken)), torn

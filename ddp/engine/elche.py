"""Several ranks under a coordinator: policy x backend. The loop owns no decision: events in, commands out.

With one rank there is no coordinator and no channel: it is the solo engine.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from typing import cast

from ddp.backends import BACKENDS, check_link_faults, world_of
from ddp.backends.base import Reducer, reducing, serving
from ddp.backends.snapshot import snapshot_bytes
from ddp.checkpoint import checkpoint
from ddp.checkpoint.begin import begun
from ddp.core.coordinator import Coordinator, Output
from ddp.core.errors import Diverged, LinksRefused, OutOfResources, RankFailed, RankLost
from ddp.core.messages.commands import ORDERS, Abort, Drop, Publish, RankCommand, Reduce, Restart
from ddp.core.messages.events import Ending, Event, Failed
from ddp.core.policies import EVERY_STEP, POLICIES
from ddp.engine import solo
from ddp.engine.delayed_ranks import DelayedRanks
from ddp.engine.ranks import RankProcesses, Ranks
from ddp.engine.solo import Emit
from ddp.process import termination
from ddp.process.clock import now
from ddp.process.cores import cores
from ddp.replica.task import Job

TICK_S = 0.5


class SeveralFailed(RankFailed):
    """Several ranks raised the same error before they averaged again: the program is wrong."""


def run(job: Job, emit: Emit) -> None:
    """Train `job`. Raises RankFailed, RankLost, Diverged, OutOfResources; InvalidCheckpoint for a checkpoint that ranks
    cannot resume from, ValueError for settings that contradict each other. No rank process is left running after an
    exception."""
    spec = BACKENDS[job.backend]
    check_link_faults(job.faults, job.backend, job.links)
    if not spec.checkpoints and (job.resume is not None or (job.checkpoints is not None and job.checkpoints.every)):
        raise ValueError(f"{job.backend} makes no checkpoints and cannot go on from one")
    if (job.restarts != 0 or job.absent or job.spares) and job.elsewhere is not None:
        what = "cluster.restart, cluster.absent and cluster.spares are"
        raise ValueError(f"{what} for ranks that this command starts itself; leave them out under a launcher")
    if job.world_size == 1:
        solo.run(job, emit)
        return
    job = replace(job, spare_core=cores() > job.world_size)
    # A backend that synchronises only inside steps has one policy.
    job = job if spec.averages else replace(job, policy=POLICIES[EVERY_STEP](), tolerate_loss=False)
    coordinator = start(job)
    with begun(job) as job, RankProcesses(job) as ranks, serving(job), reducing(job, ranks.reduced) as reducer:
        near = ranks if job.links is None else DelayedRanks(ranks, job.links, partial(snapshot_bytes, job.scratch))
        with solo.stepping(job, solo.tidied(job, emit)) as emit:
            coordinate(coordinator, near, reducer, partial(solo.publish, job, emit=emit), emit)


def start(job: Job) -> Coordinator:
    """Return the coordinator of a run, restored from its checkpoint if it has one. Raises ValueError, InvalidCheckpoint."""
    source = checkpoint.resume(job)
    world = world_of(
        job.backend,
        job.world_size,
        0,
        job.batch_size,
        job.epochs,
        deadline_s=job.deadline_s,
        tolerate_loss=job.tolerate_loss,
        restarts=job.restarts,
        absent=job.absent,
        spares=job.spares,
        checkpoints=job.checkpoints,
    )
    return Coordinator.start(job.policy, world, now(), source.coordinator if source is not None else None)


def coordinate(
    coordinator: Coordinator,
    ranks: Ranks,
    reducer: Reducer | None,
    publish: Callable[[Publish], None],
    emit: Emit,
) -> None:
    """Pass events to the coordinator and its commands to their receivers until the run is over.

    `reducer` averages snapshots in the background; `publish` publishes a checkpoint. Raises as `run` does."""
    failures: list[Failed] = []
    hastened = False
    while not coordinator.over:
        anew: dict[int, int] = {}
        occurred, place = ranks.events(TICK_S), 0
        if termination.announced() and not hastened:
            hastened, occurred = True, [*occurred, Ending(now())]
        while place < len(occurred):
            coordinator, count = coordinator.enter(occurred, place)  # events that need no decision, all at once
            for event in occurred[place : place + count]:
                emit(event, event.at)
            place += count + 1
            if place > len(occurred):
                break
            event = occurred[place - 1]
            if getattr(event, "rank", None) in anew:
                continue  # sent by the rank's old process
            emit(event, event.at)
            if isinstance(event, Failed):
                failures.append(event)
            coordinator, commands = coordinator.decide(event)
            for command in commands:
                if isinstance(command, Publish):
                    publish(command)
                    if hastened:
                        raise KeyboardInterrupt
                    continue
                emit(command, now())
                if isinstance(command, Abort):
                    raised = {entry.origin for entry in coordinator.cohort.raised}
                    _raise(command, _cause(event, failures), raised)
                elif isinstance(command, Restart):
                    anew[command.rank] = command.life
                else:
                    _obey(command, ranks, reducer)
        for rank, life in anew.items():  # after the other losses: this takes seconds if the fork server is gone, too
            ranks.restart(rank, life)


def _obey(command: Output, ranks: Ranks, reducer: Reducer | None) -> None:
    """Pass a command to its receiver."""
    if type(command) in ORDERS:
        ranks.send(cast(RankCommand, command))
    elif isinstance(command, Drop):
        ranks.drop(command.rank)
    elif isinstance(command, Reduce):
        assert reducer is not None, f"{command}, and the backend takes no snapshots"
        reducer.submit(command)


def _cause(event: Event, failures: Sequence[Failed]) -> Failed | None:
    """Return the failure of a rank that caused `event` to end the run; if several ranks raised the same error, the
    first."""
    if not isinstance(event, Failed):
        return None
    return next(
        failure for failure in failures if failure is event or (failure.origin and failure.origin == event.origin)
    )


def _raise(abort: Abort, failure: Failed | None, raised: Container[str]) -> None:
    """Raise the exception of an order to abort. `raised`: origins of the errors that other ranks raised since the last
    average."""
    if abort.status == "diverged":
        raise Diverged(f"{abort.reason}; lower the learning rate")
    if failure is None:
        raise RankLost(abort.reason)
    if failure.of_all:
        raise LinksRefused(abort.reason)
    if failure.kind == "torn":
        raise checkpoint.InvalidCheckpoint(failure.error)
    if failure.kind == "explained":
        raise OutOfResources(f"rank {failure.rank} failed: {failure.error}")
    kind = SeveralFailed if failure.origin in raised else RankFailed
    raise kind(failure.rank, failure.error, failure.traceback)

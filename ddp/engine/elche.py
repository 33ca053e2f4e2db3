"""Several ranks under a coordinator: policy x backend. The loop owns no decision: events in, commands out.

With one rank there is no coordinator and no channel: it is the solo engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, Self

from ddp.backends.base import load
from ddp.backends.facts import world_of
from ddp.checkpoint import checkpoint
from ddp.core.commands import Abort, Drop, Publish, RankCommand, Reduce
from ddp.core.coordinator import Coordinator
from ddp.core.errors import Diverged, Exhausted, RankFailed, RankLost
from ddp.core.events import Event, Failed, Reduced
from ddp.engine import solo
from ddp.engine.ranks import RankProcesses
from ddp.engine.solo import Emit
from ddp.process.clock import now
from ddp.replica.task import Job

TICK_S = 0.5


class Ranks(Protocol):
    """All ranks of a run, wherever they are. On leaving the context none is left."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def events(self, timeout_s: float) -> list[Event]:
        """Return what has happened; wait up to `timeout_s` for the first thing, then say that time has passed."""
        ...

    def send(self, command: RankCommand) -> None:
        """Give an order."""
        ...

    def drop(self, rank: int) -> None:
        """End a rank that the run goes on without."""
        ...

    def reduced(self, event: Reduced | Exception) -> None:
        """Take in, from any thread, what the reducer has done; `events` returns it, or raises ReduceFailed."""
        ...


def run(job: Job, emit: Emit, provider: Callable[[Job], Ranks] | None = None) -> None:
    """Train `job` on the ranks of `provider`, by default processes. Raises RankFailed, RankLost, Diverged, Exhausted; Torn
    for a checkpoint that ranks cannot go on from.

    After any exception no process is left.
    """
    if job.world_size == 1:
        solo.run(job, emit)
        return
    job = checkpoint.begin(job)
    held = checkpoint.resume(job)
    with (provider or RankProcesses)(job) as ranks:
        module = load(job.backend)
        world = world_of(
            job.backend,
            job.world_size,
            0,
            job.batch_size,
            job.epochs,
            deadline_s=job.deadline_s,
            tolerate_loss=job.tolerate_loss,
            checkpoints=job.checkpoints,
        )
        coordinator = Coordinator.start(job.policy, world, now(), held.books if held is not None else None)
        failures: list[Failed] = []
        with module.Reducer(job, ranks.reduced) as reducer:
            while not coordinator.over:
                for event in ranks.events(TICK_S):
                    emit(event, event.at)
                    if isinstance(event, Failed):
                        failures.append(event)
                    coordinator, outputs = coordinator.update(event)
                    for output in outputs:
                        if isinstance(output, Publish):
                            solo.publish(job, output, emit)
                            continue
                        emit(output, now())
                        if isinstance(output, Abort):
                            _raise(output, _cause(event, failures))
                        elif isinstance(output, Drop):
                            ranks.drop(output.rank)
                        elif isinstance(output, Reduce):
                            reducer.submit(output)
                        elif isinstance(output, RankCommand):
                            ranks.send(output)


def _cause(event: Event, failures: Sequence[Failed]) -> Failed | None:
    """What a rank raised, if that is the `event` which ended the run; of an error that several raised, the first one's."""
    if not isinstance(event, Failed):
        return None
    return next(one for one in failures if one is event or (one.origin and one.origin == event.origin))


def _raise(abort: Abort, failure: Failed | None) -> None:
    if abort.status == "diverged":
        raise Diverged(f"{abort.reason}; lower the learning rate")
    if failure is not None and not failure.traceback:
        raise checkpoint.Torn(failure.error)
    if failure is not None and failure.traceback == failure.error:
        raise Exhausted(f"rank {failure.rank} failed: {failure.error}")
    if failure is not None:
        raise RankFailed(failure.rank, failure.error, failure.traceback)
    raise RankLost(abort.reason)

"""What a backend is: a rank's side (`Backend`), the coordinator's side (`Reducer`), and two facts about it.

A backend says *how* replicas are brought together. It never says when, and never who.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from ddp.backends.facts import BackendFacts, module_of
from ddp.core.commands import Average, Join, Reduce
from ddp.core.events import Reduced, Sums
from ddp.replica.task import Job

if TYPE_CHECKING:
    from torch import Tensor

    from ddp.engine.loop import TrainingLoop
    from ddp.replica.in_step import InStep
    from ddp.replica.replica import Replica


@dataclass(frozen=True)
class AverageResult:
    """What an average did to a replica."""

    seconds: float
    bytes: int
    """Sent by this rank, or read and written by it in shared memory."""
    divergence: float | None
    """||own - average|| / ||average|| over parameters; None: not finite."""
    before: Sums = ()
    """Of the replica just before, just after, and of what was taken for the average."""
    after: Sums = ()
    average: Sums = ()


class Backend(Protocol):
    """A rank's side. Made in the rank's process once its replica is built."""

    facts: BackendFacts
    transport: str

    def __init__(self, job: Job, rank: int, loop: TrainingLoop) -> None: ...

    def join(self, order: Join) -> None:
        """Form a group with these members, in place of the one that there is. What comes of a failure: the next collective
        breaks."""
        ...

    def share(self, round: int) -> None:
        """Lay down what came out of a round; where gradients are exchanged inside steps, the replica's whole state."""
        ...

    def adopt(self, round: int) -> AverageResult:
        """Take what was shared."""
        ...

    def in_step(self, replica: Replica) -> InStep:
        """What ranks do together inside a step; asked for once, before the first step whose batch is shared."""
        ...

    def average(self, order: Average, samples: int) -> AverageResult:
        """Average the replicas, this one weighted by its `samples`; counters take the maximum. Raises ExchangeBroken."""
        ...

    def snapshot(self, round: int) -> Sums:
        """Lay down this replica for the round; what it was, where that is to be known."""
        ...

    def apply(self, round: int, exact: bool) -> AverageResult:
        """Add (average - own snapshot). `exact`: nothing was trained since the snapshot, so take the average's bits."""
        ...

    def consensus(self, exact: bool) -> AbstractContextManager[None]:
        """Put the last average in place of the replica. `exact`: nothing was trained since that average."""
        ...

    def kept(self) -> list[Tensor]:
        """What is kept from one average to the next beside the replicas: the outer optimizer's state."""
        ...

    def settle(self) -> None:
        """Training is over: become the last average, where an average leaves replicas apart."""
        ...

    def close(self) -> None:
        """Let go of transport and files."""
        ...


class Reducer(Protocol):
    """The coordinator's side: averages snapshots beside the coordinator's loop."""

    def __init__(self, job: Job, done: Callable[[Reduced | Exception], None]) -> None: ...

    def __enter__(self) -> Reducer: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def submit(self, order: Reduce) -> None:
        """Average these snapshots; `done` is called from another thread, with the exception if there was one."""
        ...


class BackendModule(Protocol):
    """A module of `ddp.backends`."""

    FACTS: BackendFacts
    Backend: type[Backend]
    Reducer: type[Reducer]


def load(name: str) -> BackendModule:
    """The module of backend `name`, or of an engine that is one by itself; imports torch."""
    module: BackendModule = module_of(name)
    return module

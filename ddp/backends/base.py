"""The interface of a backend: `Backend` and some of three protocols on each rank; `Reducer` in the coordinator's process.

A backend decides how replicas are synchronised, never when or which ranks. Its entry in `BACKENDS` says which protocols it
implements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ddp.backends import BACKENDS, SyncKind
from ddp.comm.collectives import Collectives
from ddp.comm.transports import threads
from ddp.comm.transports.base import Transport, TransportConfig
from ddp.comm.transports.choice import choose
from ddp.comm.transports.emulated import EmulatedTransport
from ddp.core.messages.commands import Average, Join, Reduce
from ddp.core.messages.events import Reduced
from ddp.registries import Unusable, imported
from ddp.replica.task import Job

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from ddp.comm.heartbeat import Heartbeat
    from ddp.process.meter import Meter
    from ddp.process.slowdown import Slowdown
    from ddp.replica.gradient_sync import GradientSync
    from ddp.replica.replica import Replica


class RankContext(Protocol):
    """The parts of a rank's training loop that a backend uses."""

    device: torch.device
    meter: Meter
    heart: Heartbeat
    replica: Replica
    slowdown: Slowdown


@dataclass(frozen=True)
class AverageResult:
    """The effect of an average on a replica."""

    seconds: float
    bytes: int
    """Bytes sent by this rank, or read and written by it in shared memory."""
    divergence: float | None
    """||own - average|| / ||average|| over parameters; None: not finite."""
    distance: float | None = 0.0
    """||own - average||^2 over parameters; None: not finite."""


class Backend(Protocol):
    """A rank's side, common to all backends. Created in the rank's process after its replica."""

    transport: str

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None: ...

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Swap the last average into the model for a `with` block, shards gathered. `exact`: no step was trained since."""
        ...

    def average_state(self) -> list[Tensor]:
        """Return the tensors that persist between averages besides the replica: the outer optimizer's velocities."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a restarted rank must load: the model that all ranks share, and `average_state`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the `state_dict` of another rank."""
        ...

    def finish(self) -> None:
        """Set the replica to the whole model, or the last average: training is over."""
        ...

    def close(self) -> None:
        """Release the transport and files."""
        ...


@runtime_checkable
class Recuts(Protocol):
    """A backend with sharded optimizer state that can be resharded for another number of ranks."""

    def recut(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return this rank's shard of the optimizer state, given the states of all ranks of a run with another number of
        ranks."""
        ...


class StepExchange(Backend, Protocol):
    """A backend that exchanges gradients inside every step."""

    def leave(self) -> None:
        """Leave the present group without joining another."""
        ...

    def join(self, order: Join) -> None:
        """Form a group of these members, in place of the present one. If that fails, the next collective raises."""
        ...

    def gradient_sync(self, replica: Replica) -> GradientSync:
        """Return what ranks do together inside a step. Called once, before the first step that ranks share."""
        ...


class CollectiveAverage(Backend, Protocol):
    """A backend that averages replicas between steps in a collective, and can repair a replica that missed one."""

    def leave(self) -> None:
        """Leave the present group without joining another."""
        ...

    def join(self, order: Join) -> None:
        """Form a group of these members, in place of the present one. If that fails, the next collective raises."""
        ...

    def average(self, order: Average, samples: int) -> AverageResult:
        """Average the replicas, this one weighted by its `samples`; integer buffers take the maximum. Raises
        ExchangeBroken."""
        ...

    def send_state(self, round: int) -> None:
        """Write the result of a round to a file; the replica's whole state if gradients are exchanged inside steps."""
        ...

    def load_state(self, round: int) -> AverageResult:
        """Load what another rank sent."""
        ...


class SnapshotAverage(Backend, Protocol):
    """A backend that averages replicas between steps from snapshots: the coordinator's `Reducer` averages, ranks train
    on."""

    def snapshot(self, order: Average) -> None:
        """Copy this replica for the round."""
        ...

    def apply(self, round: int, exact: bool) -> AverageResult:
        """Add (average - own snapshot) to the replica. `exact`: copy the average instead, as no step was trained since the
        snapshot."""
        ...


class Reducer(Protocol):
    """The coordinator's side of `SnapshotAverage`."""

    def submit(self, order: Reduce) -> None:
        """Start to average these snapshots, in the background of the coordinator's loop."""
        ...

    def wait(self) -> None:
        """Wait until everything submitted is done."""
        ...


def _transport(job: Job, rank: int, loop: RankContext) -> Transport:
    # A transport that cannot detect a lost peer times out after half of the deadline.
    size, limit_s = job.world_size, job.deadline_s / 2
    ranks = {"meet": job.meet, "host_ranks": job.host_ranks, "spare_core": job.spare_core, "life": job.life}
    config = TransportConfig(job.scratch, rank, size, loop.device, limit_s, **ranks)  # type: ignore[arg-type]
    inner = choose(job.transport, config) if job.threads is None else threads.Transport(job.threads, config)
    if job.links is None:
        return inner
    return EmulatedTransport(inner, job.links, lambda: loop.slowdown.link, loop.meter.sent)


class GroupBackend:
    """A process group of all ranks, in which they average or exchange gradients. Each replica is a whole model."""

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        self.job, self.rank, self.loop = job, rank, loop
        self.collectives = Collectives(_transport(job, rank, loop), loop.meter, loop.heart)
        self.transport = self.collectives.transport.name

    def join(self, order: Join) -> None:
        """Leave the present group and join the new one."""
        self.collectives.join(order)

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Do nothing: the replica is the whole model, equal on all ranks."""
        return nullcontext()

    def average_state(self) -> list[Tensor]:
        """Return nothing: all state is in the replica."""
        return []

    def leave(self) -> None:
        """Leave the group without joining another."""
        self.collectives.transport.leave()

    def state_dict(self) -> dict[str, Any]:
        """Return the whole model."""
        self.loop.replica.state.gather()
        return {"tensors": self.loop.replica.state.tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the whole model."""
        for flat, other in zip(self.loop.replica.state.tensors, state["tensors"], strict=True):
            flat.copy_(other)

    def finish(self) -> None:
        """Do nothing: the replica is the whole model."""

    def close(self) -> None:
        """Leave the group."""
        self.collectives.close()


_PROTOCOLS = {SyncKind.STEP: StepExchange, SyncKind.COLLECTIVE: CollectiveAverage, SyncKind.SNAPSHOT: SnapshotAverage}


def load(name: str) -> type[Backend]:
    """Return the class of backend `name`, from its module. Raises Unusable if it lacks a method that its entry promises."""
    backend: type[Backend] = _module(name).Backend
    for acts, protocol in _PROTOCOLS.items():
        if acts in BACKENDS[name].sync:
            for method in vars(protocol):
                if not method.startswith("_") and not hasattr(backend, method):
                    raise Unusable(
                        f"backend {name}: {backend.__module__}.Backend has no {method} ({protocol.__name__})"
                    )
    return backend


@contextmanager
def reducing(job: Job, done: Callable[[Reduced | Exception], None]) -> Iterator[Reducer | None]:
    """Run the reducer of the job's backend for a `with` block. It calls `done` from its thread with each result or
    exception. Yield None for a backend without a reducer."""
    if SyncKind.SNAPSHOT not in BACKENDS[job.backend].sync:
        yield None
        return
    with _module(job.backend).Reducer(job, done) as reducer:
        yield reducer


@contextmanager
def serving(job: Job) -> Iterator[None]:
    """Run what the job's backend needs in the coordinator's process for a `with` block."""
    service = BACKENDS[job.backend].service
    with imported("backend", job.backend, service).serving(job) if service else nullcontext():
        yield


def _module(name: str) -> Any:
    return imported("backend", name, BACKENDS[name].module)

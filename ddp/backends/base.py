"""What a backend is: a rank's side, which has `Backend` and some of three protocols, and the coordinator's side, `Reducer`.

A backend says *how* replicas are brought together. It never says when, and never who. Which protocols it has is in its
entry in `BACKENDS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from ddp.backends import BACKENDS, SyncKind
from ddp.comm.collectives import Collectives
from ddp.comm.transports import threads
from ddp.comm.transports.base import Transport, TransportConfig, choose
from ddp.comm.transports.emulated import EmulatedTransport
from ddp.core.commands import Average, Join, Reduce
from ddp.core.events import Reduced
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
    """What a backend sees of the training loop of its rank."""

    device: torch.device
    meter: Meter
    heart: Heartbeat
    replica: Replica
    slowdown: Slowdown


@dataclass(frozen=True)
class AverageResult:
    """What an average did to a replica."""

    seconds: float
    bytes: int
    """Sent by this rank, or read and written by it in shared memory."""
    divergence: float | None
    """||own - average|| / ||average|| over parameters; None: not finite."""
    distance: float | None = 0.0
    """||own - average||^2 over parameters; None: not finite."""


class Backend(Protocol):
    """A rank's side: what every backend has. Made in the rank's process once its replica is built."""

    transport: str

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None: ...

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Put the last average into the model for a `with` block, shards gathered. `exact`: no step was trained since."""
        ...

    def average_state(self) -> list[Tensor]:
        """Return what lasts from one average to the next beside the replicas: the outer optimizer's velocities."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what a rank that was started again must load: the model that all share, and `average_state`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the `state_dict` of another rank."""
        ...

    def finish(self) -> None:
        """Make the replica the whole model, or the last average: training is over."""
        ...

    def close(self) -> None:
        """Release transport and files."""
        ...


@runtime_checkable
class Recuts(Protocol):
    """A backend with sharded optimizer state, which it can reshard for another number of ranks."""

    def recut(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Return this rank's state of the optimizer, from those of all ranks of a run of another number of ranks."""
        ...


class StepExchange(Backend, Protocol):
    """Acts inside every step."""

    def leave(self) -> None:
        """Leave the present group, and be in none."""
        ...

    def join(self, order: Join) -> None:
        """Form a group with these members, in place of the present one. After a failure the next collective breaks."""
        ...

    def gradient_sync(self, replica: Replica) -> GradientSync:
        """Return what ranks do together inside a step. Called once, before the first step whose batch is shared."""
        ...


class CollectiveAverage(Backend, Protocol):
    """Averages replicas between steps, in a collective, and can make a broken one whole."""

    def leave(self) -> None:
        """Leave the present group, and be in none."""
        ...

    def join(self, order: Join) -> None:
        """Form a group with these members, in place of the present one. After a failure the next collective breaks."""
        ...

    def average(self, order: Average, samples: int) -> AverageResult:
        """Average the replicas, this one weighted by its `samples`; counters take the maximum. Raises ExchangeBroken."""
        ...

    def send_state(self, round: int) -> None:
        """Write what came out of a round; where gradients are exchanged inside steps, the replica's whole state."""
        ...

    def load_state(self, round: int) -> AverageResult:
        """Take what another rank sent."""
        ...


class SnapshotAverage(Backend, Protocol):
    """Averages replicas between steps, from snapshots, which the coordinator's `Reducer` averages while ranks go on."""

    def snapshot(self, order: Average) -> None:
        """Copy this replica for the round."""
        ...

    def apply(self, round: int, exact: bool) -> AverageResult:
        """Add (average - own snapshot). `exact`: nothing was trained since the snapshot, so take the average's bits."""
        ...


class Reducer(Protocol):
    """The coordinator's side of `SnapshotAverage`."""

    def submit(self, order: Reduce) -> None:
        """Average these snapshots beside the coordinator's loop."""
        ...

    def wait(self) -> None:
        """Wait until all that was submitted is done."""
        ...


def _transport(job: Job, rank: int, loop: RankContext) -> Transport:
    # A collective in which nobody can be told to be gone lasts half of what a rank may be silent.
    size, limit_s = job.world_size, job.deadline_s / 2
    ranks = {"meet": job.meet, "host_ranks": job.host_ranks, "spare_core": job.spare_core, "life": job.life}
    config = TransportConfig(job.scratch, rank, size, loop.device, limit_s, **ranks)  # type: ignore[arg-type]
    inner = choose(job.transport, config) if job.threads is None else threads.Transport(job.threads, config)
    if job.links is None:
        return inner
    return EmulatedTransport(inner, job.links, lambda: loop.slowdown.link, loop.meter.sent)


class GroupBackend:
    """A process group over all ranks, which average and exchange in collectives; a replica that is always whole."""

    def __init__(self, job: Job, rank: int, loop: RankContext) -> None:
        self.job, self.rank, self.loop = job, rank, loop
        self.collectives = Collectives(_transport(job, rank, loop), loop.meter, loop.heart)
        self.transport = self.collectives.transport.name

    def join(self, order: Join) -> None:
        """Leave the present group, and meet the members of the new one."""
        self.collectives.join(order)

    def averaged_weights(self, exact: bool) -> AbstractContextManager[None]:
        """Do nothing: the replica's model is whole, and the same on all ranks."""
        return nullcontext()

    def average_state(self) -> list[Tensor]:
        """Return nothing: all lies in the replica."""
        return []

    def leave(self) -> None:
        """Leave the group, and be in none."""
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
        """Do nothing: the replica's model is whole."""

    def close(self) -> None:
        """Leave the group."""
        self.collectives.close()


_PROTOCOLS = {SyncKind.STEP: StepExchange, SyncKind.COLLECTIVE: CollectiveAverage, SyncKind.SNAPSHOT: SnapshotAverage}


def load(name: str) -> type[Backend]:
    """Return the class of backend `name`, from its module. Raises Unusable for one that lacks what its entry says."""
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
    """Run the reducer of the job's backend within: it calls `done` from its thread with each average, or with what went
    wrong. Give None where ranks average among themselves."""
    if SyncKind.SNAPSHOT not in BACKENDS[job.backend].sync:
        yield None
        return
    with _module(job.backend).Reducer(job, done) as reducer:
        yield reducer


def _module(name: str) -> Any:
    return imported("backend", name, BACKENDS[name].module)

"""A rank's process: receives orders, executes them, reports. `ddp.core.worker` decides what comes next.

No rank outlives the parent: a closed channel ends the process, and the kernel kills a process that does not read it."""

from __future__ import annotations

import os
import signal
import traceback
from contextlib import nullcontext, suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol, cast

import torch

from ddp.backends import BACKENDS, SyncKind
from ddp.backends.base import AverageResult, CollectiveAverage, Recuts, SnapshotAverage, StepExchange, load
from ddp.checkpoint.checkpoint import InvalidCheckpoint
from ddp.comm.transports.base import ExchangeBroken, broken
from ddp.core.errors import Corrupted, LinksRefused, OutOfResources, encodable
from ddp.core.messages.commands import Apply, Average, Evaluate, Join, Leave, LoadState, Save, SendState, Stop, Train
from ddp.core.messages.events import Alive, AverageFailed, Failed, Snapshot
from ddp.core.messages.join_events import Left
from ddp.core.rounds.rounds import IN_STEP
from ddp.core.settings.faults import LASTING, Fault
from ddp.core.worker import Action, Idle, Step, Worker
from ddp.engine import reports
from ddp.engine.fault_injector import FaultInjector, LossyChannel, struck
from ddp.engine.handover import load_sent, send
from ddp.engine.loop import TrainingLoop
from ddp.engine.phase_faults import PhaseInjector
from ddp.engine.round_sketches import ReplicaSketch, RoundSketches
from ddp.permutation import derive
from ddp.process import clock
from ddp.process.channel import PeerGone
from ddp.process.clock import now
from ddp.process.codec import Record
from ddp.process.determinism import deterministic
from ddp.process.error_origin import origin
from ddp.process.meter import Meter
from ddp.process.orphans import bind_rank
from ddp.replica.task import Job

FILES, FILE_BEATS = (Save, SendState, LoadState, Stop), 25
"""Orders that transfer the whole state, which may take longer than the deadline; signs of life sent meanwhile, at most."""


class RankChannel(Protocol):
    """A rank's end of the channel to the coordinator."""

    def send(self, message: Record) -> None:
        """Send one message. Raises PeerGone."""
        ...

    def receive(self, timeout_s: float) -> list[Any]:
        """Return all messages that are there; wait up to `timeout_s` for the first. Raises PeerGone."""
        ...

    def lose(self) -> None:
        """Lose the next message."""
        ...

    def close(self) -> None:
        """Close the channel."""
        ...


def main(job: Job, rank: int, connection: Connection) -> None:
    """Run a rank in this process, which was forked for it."""
    bind_rank()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    clock.shift(job.clock_shift)
    try:
        with deterministic(job.step.deterministic):
            notes = job.scratch / f"lost-{rank}" if job.phase_faults else None
            obey(job, rank, LossyChannel(connection, notes))
    except PeerGone:
        os._exit(1)  # the parent is gone; there is nobody to tell


def obey(job: Job, rank: int, channel: RankChannel) -> None:
    """Run a rank until it is ordered to stop; report any exception before that as `Failed`. Raises PeerGone."""
    try:
        RankLoop(job, rank, channel).run()
    except PeerGone:
        raise
    except (Exception, KeyboardInterrupt, SystemExit) as error:  # interrupts do not come here: the task raised it
        with suppress(PeerGone):
            channel.send(_failure(rank, error))
        channel.close()


def _failure(rank: int, error: BaseException) -> Failed:
    """Return the event that reports `error` to the coordinator."""
    if isinstance(error, InvalidCheckpoint):  # not a bug: no traceback
        return Failed(now(), rank, _clean(str(error), 2_000), "", kind="torn")
    if isinstance(error, OutOfResources | Corrupted):  # not a bug either; the message says it all
        line = _clean(str(error), 2_000)
        return Failed(now(), rank, line, line, kind="refused" if isinstance(error, LinksRefused) else "explained")
    text = _clean(f"{type(error).__name__}: {error}", 2_000)
    trace = _clean("".join(traceback.format_exception(error)), 200_000)
    return Failed(now(), rank, text, trace, _clean(origin(error), 2_000))


def _clean(text: str, most: int) -> str:
    """Return `text` in characters that a message can carry; shorten a long one to its beginning and end."""
    text = encodable(text)
    return text if len(text) <= most else f"{text[: most // 2 - 5]} ... {text[-(most // 2) :]}"


class RankLoop:
    """Runs the orders of one rank, which the worker's state machine puts in turn."""

    def __init__(self, job: Job, rank: int, channel: RankChannel, meter: type[Meter] = Meter) -> None:
        self._job, self._rank, self._channel = job, rank, channel
        self._worker = Worker()
        self.loop = self._loop = TrainingLoop(job, rank, channel.send, meter=meter)
        self._phases = PhaseInjector(job, rank, self._loop.slowdown.slow_down, channel.lose)
        self._writing = self._loop.heart.limited(FILE_BEATS)
        self._phases.meet("start")
        self._sketches = RoundSketches(self._loop.replica, self._loop.meter)
        self._away = 0.0
        """Seconds that the last snapshot kept this rank from training."""
        self._backend = load(job.backend)(job, rank, self._loop)
        recut = self._backend.recut if isinstance(self._backend, Recuts) else None
        # After the backend is made, which needs the optimizer's initial state.
        kept = self._backend.average_state()
        # In shared memory, other ranks may have moved these values on meanwhile.
        self._loop.restore([values.clone() for values in kept] if job.life else kept, recut)
        faults, slowdown, self._before = self._faults_left(), self._loop.slowdown, self._loop.total_steps
        self._faults = FaultInjector(
            faults, rank, slowdown, channel.lose, self._flip, self._loop.total_steps, job.scratch
        )

    def _faults_left(self) -> tuple[Fault, ...]:
        """Return the faults still to come; a restarted rank goes on counting steps from the last fault that it met."""
        if not self._job.life:
            return self._job.faults
        met = struck(self._job.scratch, self._rank)
        self._loop.total_steps = max([self._loop.total_steps, *(fault.step for fault in met)])
        return tuple(fault for fault in self._job.faults if fault not in met or fault.kind in LASTING)

    @torch.no_grad()
    def _flip(self, fault: Fault) -> None:
        """Flip a bit of one of the replica's parameters, the same bit in every run."""
        parameters = self._loop.replica.state.parameters
        place = derive(self._job.seed, "flip", fault.step)
        values = parameters[place % len(parameters)].view(-1)
        width = 8 * values.element_size()
        bits = values.view({16: torch.int16, 32: torch.int32, 64: torch.int64}[width])
        bit = min(int(fault.value), width - 1)
        bits[place % len(bits)] ^= (1 << bit) - (1 << width if bit == width - 1 else 0)  # the highest bit is the sign

    def run(self) -> None:
        """Execute orders until one says stop."""
        try:
            self._obey_all()
        finally:
            self._loop.meter.flush()
            self._loop.close()

    def _obey_all(self) -> None:
        self.come()
        while not self._worker.stopped:
            self._receive(self._channel.receive(0.0))
            before = self._worker
            self._worker, action = before.act()
            try:
                self._phases.enter(action, self._loop)
                with self._writing if isinstance(action, FILES) else nullcontext():
                    self.act(action)
            except (ExchangeBroken, RuntimeError) as error:
                self._broke(action, before, broken(error))
        self._backend.close()

    def come(self) -> None:
        """Report that the rank is ready."""
        if self._job.life:
            self._loop.come(self._backend.transport)
        else:
            self._loop.ready(self._backend.transport)

    def share_steps(self) -> None:
        """Exchange gradients with other ranks in every step from now on."""
        if self._loop.replica.gradient_sync is None:
            self._loop.replica.gradient_sync = cast(StepExchange, self._backend).gradient_sync(self._loop.replica)

    def act(self, action: Action) -> None:
        """Execute an order or train a granted step, and report it."""
        loop, backend = self._loop, self._backend
        since = now() if isinstance(action, Step) else loop.pause()
        match action:
            case Step():
                self._faults.meet(loop.total_steps)
                loop.train(action)
            case Idle():
                self._wait()
            case Average():
                self._average(action, since)
            case Apply():
                self._apply(action.round, since)
            case Join() | Leave():
                self._regroup(action)
            case LoadState() if action.joins:
                self._channel.send(load_sent(self._job.scratch, action.round, loop, backend))
            case SendState():
                self._channel.send(send(self._job.scratch, action, loop, backend, since))
            case LoadState():
                change = cast(CollectiveAverage, backend).load_state(action.round)
                self._contributed(action.round, change, now(), ReplicaSketch())
            case Evaluate():
                loop.evaluate(action, backend.averaged_weights(exact=loop.steps == 0))
            case Save():
                loop.save(action, backend.average_state(), backend.averaged_weights(exact=loop.steps == 0))
            case Stop():
                backend.finish()
                loop.finish()

    def _wait(self) -> None:
        began = now()
        while not (orders := self._channel.receive(self._job.deadline_s)):
            pass
        self._loop.meter.add("wait", began)
        self._receive(orders)

    def _receive(self, orders: list[Any]) -> None:
        for order in orders:
            if isinstance(order, Train) and order.chunk.parts > 1:
                self.share_steps()
            self._worker = self._worker.receive(order)
        if orders:  # prefetch exactly the batches that are granted now
            self._loop.expect(self._worker.ahead())

    def _average(self, order: Average, since: float) -> None:
        loop, backend, rank = self._loop, self._backend, self._rank
        loop.report()
        order = self._sketches.begin(order)
        before = self._sketches.replica(order.round)
        if SyncKind.SNAPSHOT in BACKENDS[self._job.backend].sync:
            if loop.keeper is not None:
                loop.keeper.watch.rests(f"the snapshot of round {order.round}", loop.version)
            cast(SnapshotAverage, backend).snapshot(order)
            kept = before.optimizer if self._job.averaging.optimizer_state else ()
            self._channel.send(Snapshot(now(), rank, order.round, *loop.contribute(order.round), before.model, kept))
            self._away = now() - since
            return
        if loop.keeper is not None:
            loop.keeper.average(order.round)
        change = cast(CollectiveAverage, backend).average(order, loop.samples)
        self._contributed(order.round, change, since + change.seconds, before)

    def _apply(self, round: int, since: float) -> None:
        loop, before = self._loop, self._sketches.replica(round)
        if loop.keeper is not None:
            loop.keeper.average(round)
        change = cast(SnapshotAverage, self._backend).apply(round, exact=loop.steps == 0)
        loop.version += 1
        self._averaged(round, (0, 0), change, since - self._away, before)

    def _contributed(self, round: int, change: AverageResult, since: float, before: ReplicaSketch) -> None:
        contribution = self._loop.contribute(round)
        self._loop.version += 1
        self._averaged(round, contribution, change, since, before)

    def _averaged(
        self, round: int, contribution: tuple[int, int], change: AverageResult, since: float, before: ReplicaSketch
    ) -> None:
        after, average = ReplicaSketch(), ""
        if self._loop.keeper is not None:  # before the sketch of the average below, which must not change the replica
            self._loop.keeper.watch.averaged(self._loop.version)
        if before.model:  # else the rank got the average in another way
            after = self._sketches.replica(round)
            average = self._sketches.average(after, self._backend.averaged_weights(exact=self._loop.steps == 0))
        away_s = max(now() - since, 0.0)
        self._channel.send(reports.averaged(self._rank, round, contribution, change, away_s, before, after, average))

    def _regroup(self, order: Join | Leave) -> None:
        """Join a new group, or leave the present one. Watch the state from the first step on, as that may distribute it."""
        loop, keeper = self._loop, self._loop.keeper if self._loop.total_steps > self._before else None
        backend = cast(StepExchange | CollectiveAverage, self._backend)
        loop.report()
        with keeper.watch.regroups(order.generation, loop.version) if keeper is not None else nullcontext():
            backend.join(order) if isinstance(order, Join) else backend.leave()
        left = Left(now(), self._rank, order.generation, self._worker.begun)
        self._channel.send(Alive(now(), self._rank) if isinstance(order, Join) else left)

    def _broke(self, action: Action, before: Worker, error: ExchangeBroken) -> None:
        """Undo the step that a broken collective was part of, report the failure and stop training."""
        if isinstance(action, Step):
            self._worker = before
            self._loop.replica.undo()
            if self._loop.keeper is not None:
                self._loop.keeper.watch.undone(self._loop.total_steps)
        self._loop.report()
        round = action.round if isinstance(action, Average) else IN_STEP
        steps = before.offset if self._loop.replica.gradient_sync is not None else self._loop.steps
        self._worker = self._worker.broke()
        self._channel.send(AverageFailed(now(), self._rank, round, _clean(str(error), 2_000), steps))

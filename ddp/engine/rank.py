"""A rank's process: receives orders, obeys, reports. The worker of `ddp.core` decides what comes next.

Nothing here outlives the parent: a closed channel ends the process, and the kernel one that cannot look.
"""

from __future__ import annotations

import os
import signal
import traceback
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, cast

from ddp.backends import BACKENDS, Acts
from ddp.backends.base import AverageResult, CollectiveAverage, SnapshotAverage, StepExchange, load
from ddp.checkpoint.checkpoint import Torn
from ddp.comm.transports.base import ExchangeBroken, broken
from ddp.core.commands import Apply, Average, Evaluate, Join, LoadState, Save, SendState, Stop, Train
from ddp.core.errors import Exhausted
from ddp.core.events import Alive, Averaged, AverageFailed, Failed, Shared, Snapshot
from ddp.core.rounds import IN_STEP
from ddp.core.worker import Action, Idle, Step, Worker
from ddp.engine.fault_injector import LossyChannel, mishaps
from ddp.engine.loop import TrainingLoop
from ddp.process import clock
from ddp.process.channel import PeerGone
from ddp.process.clock import now
from ddp.process.origin import origin
from ddp.process.orphans import bind_rank
from ddp.replica.task import Job


def main(job: Job, rank: int, connection: Connection) -> None:
    """Entry point of the process."""
    bind_rank()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    clock.shift(job.clock_shift)
    channel = LossyChannel(connection)
    try:
        RankLoop(job, rank, channel).run()
    except PeerGone:
        os._exit(1)  # the parent is gone; nobody is left to tell
    except Torn as error:  # nobody's defect: said without a traceback
        with suppress(PeerGone):
            channel.send(Failed(now(), rank, _clean(str(error), 2_000), ""))
        channel.close()
    except Exhausted as error:  # nor this, and the line itself says all that there is to know
        line = _clean(str(error), 2_000)
        with suppress(PeerGone):
            channel.send(Failed(now(), rank, line, line))
        channel.close()
    except (Exception, KeyboardInterrupt) as error:  # which no signal brings here: the task raises it
        text = _clean(f"{type(error).__name__}: {error}", 2_000)
        with suppress(PeerGone):
            where = _clean(origin(error), 2_000)
            channel.send(Failed(now(), rank, text, _clean(traceback.format_exc(), 200_000), where))
        channel.close()


def _clean(text: str, most: int) -> str:
    """`text` in characters that a message can carry; of a long one, its beginning and its end."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[: most // 2 - 5]} ... {text[-(most // 2) :]}"


class RankLoop:
    """The loop of one rank around the worker's state machine."""

    def __init__(self, job: Job, rank: int, channel: LossyChannel) -> None:
        self._job, self._rank, self._channel = job, rank, channel
        self._worker = Worker()
        self._loop = TrainingLoop(job, rank, channel.send)
        self._away = 0.0
        """Seconds that the last snapshot kept this rank from training."""
        self._backend = load(job.backend)(job, rank, self._loop)
        self._loop.restore(self._backend.kept())  # behind the backend, which is to see an optimizer that begins
        self._mishaps = mishaps(job.faults, rank, self._loop.slowdown.slow_down, channel.lose, self._loop.total_steps)

    def run(self) -> None:
        """Obey until told to stop."""
        try:
            self._obey_all()
        finally:
            self._loop.meter.flush()
            self._loop.close()

    def _obey_all(self) -> None:
        self._loop.ready(self._backend.transport)
        while not self._worker.stopped:
            self._receive(self._channel.receive(0.0))
            before = self._worker
            self._worker, action = before.act()
            try:
                self._obey(action)
            except (ExchangeBroken, RuntimeError) as error:
                self._broke(action, before, broken(error))
        self._backend.close()

    def _obey(self, action: Action) -> None:
        loop, backend, rank = self._loop, self._backend, self._rank
        since = now() if isinstance(action, Step) else loop.pause()
        match action:
            case Step():
                if self._mishaps is not None:
                    self._mishaps.meet(loop.total_steps)
                loop.train(action)
            case Idle():
                self._wait()
            case Average():
                self._average(action, since)
            case Apply():
                change = cast(SnapshotAverage, backend).apply(action.round, exact=loop.steps == 0)
                loop.version += 1
                self._averaged(action.round, 0, 0, change, self._away + now() - since)
            case Join():
                cast(StepExchange | CollectiveAverage, backend).join(action)
                self._channel.send(Alive(now(), rank))
            case SendState():
                cast(CollectiveAverage, backend).send_state(action.round)
                self._channel.send(Shared(now(), rank, action.round))
            case LoadState():
                change = cast(CollectiveAverage, backend).load_state(action.round)
                self._contributed(action.round, change)
            case Evaluate():
                loop.evaluate(action, backend.consensus(exact=loop.steps == 0))
            case Save():
                loop.save(action, backend.kept(), backend.consensus(exact=loop.steps == 0))
            case Stop():
                backend.settle()
                loop.finish()

    def _wait(self) -> None:
        began = now()
        orders: list[Any] = []
        while not orders:
            orders = self._channel.receive(self._job.deadline_s)
        self._loop.meter.add("wait", began)
        self._receive(orders)

    def _receive(self, orders: list[Any]) -> None:
        for order in orders:
            shared = isinstance(order, Train) and order.chunk.parts > 1
            if shared and self._loop.replica.in_step is None:
                self._loop.replica.in_step = cast(StepExchange, self._backend).in_step(self._loop.replica)
            self._worker = self._worker.receive(order)
        if orders:  # only what is granted is read ahead, and no longer what was taken back
            self._loop.expect(self._worker.ahead())

    def _average(self, order: Average, since: float) -> None:
        loop, backend, rank = self._loop, self._backend, self._rank
        loop.report()
        if Acts.SNAPSHOT in BACKENDS[self._job.backend].acts:
            before = cast(SnapshotAverage, backend).snapshot(order.round)
            steps, samples = loop.contribute(order.round)
            self._channel.send(Snapshot(now(), rank, order.round, steps, samples, before))
            self._away = now() - since
            return
        change = cast(CollectiveAverage, backend).average(order, loop.samples)
        self._contributed(order.round, change, max(now() - since - change.seconds, 0.0))

    def _contributed(self, round: int, change: AverageResult, away_s: float = 0.0) -> None:
        steps, samples = self._loop.contribute(round)
        self._loop.version += 1
        self._averaged(round, steps, samples, change, away_s)

    def _averaged(self, round: int, steps: int, samples: int, change: AverageResult, away_s: float) -> None:
        figures = steps, samples, change.seconds, change.bytes, change.divergence
        seen = change.before, change.after, change.average
        self._channel.send(Averaged(now(), self._rank, round, *figures, *seen, away_s, change.distance))

    def _broke(self, action: Action, before: Worker, error: ExchangeBroken) -> None:
        """A collective broke: undo the step that it was part of, say so and stand still."""
        if isinstance(action, Step):
            self._worker = before
            self._loop.replica.undo()
        self._loop.report()
        round = action.round if isinstance(action, Average) else IN_STEP
        steps = before.offset if self._loop.replica.in_step is not None else self._loop.steps
        self._worker = self._worker.broke()
        self._channel.send(AverageFailed(now(), self._rank, round, _clean(str(error), 2_000), steps))

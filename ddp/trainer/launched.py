"""Runs a script under torchrun, srun or mpirun: rank 0's process runs the script as usual, every other process serves
one rank.

All processes run the same script, so the task is not sent over the network: each process builds it from its own
functions and data. A process other than rank 0 does not return from `Trainer.run`. Knows no harness.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import NoReturn
from weakref import WeakValueDictionary

from ddp.core.errors import EngineError, ProtocolError
from ddp.launcher.environment import Placement, read
from ddp.process.scratch import scratch
from ddp.remote.head import HeadNode
from ddp.remote.job_message import Catalogue
from ddp.remote.launched_node import serve_rank0
from ddp.remote.launched_process import LaunchedProcess, process_of
from ddp.remote.rendezvous import RemoteRank, RendezvousServer
from ddp.replica.task import Job, Task
from ddp.trainer import ray_train
from ddp.trainer.handle import RunHandle, end_all
from ddp.trainer.task import Parts, pack

LOOPBACK = "127.0.0.1"
PRELOAD = ("ddp.trainer.task",)
BIND = "DDP_BIND"
"""Environment variable with the address, the interface or the network that rank 0 listens on."""
FAILED = 5


def script_task(trainer: int, samples: int, evaluated: int) -> Task:
    """Stand for the script's own task in an order sent to another process; only the number of its `Trainer` and those of
    its samples are sent. Raises AssertionError: the receiver must replace it with its own task."""
    raise AssertionError(f"the task of {samples} and {evaluated} samples of Trainer {trainer} was not put in place")


CATALOGUE: Catalogue = {"ddp.trainer": (script_task, (int, int, int))}


def _sizes(parts: Parts) -> tuple[int, int]:
    return len(parts.dataset), len(parts.eval_dataset)


@dataclass
class Party:
    """The processes that a launcher started for this script; at least two."""

    placement: Placement
    _made: WeakValueDictionary[int, Parts] = field(default_factory=WeakValueDictionary)
    """Parts of each `Trainer`, by its number: how many were made before it. All processes make them in the same order."""
    _count: int = 0
    _known: int | None = None
    """Number of `Trainer`s made before the first run: the other processes have these. None: there was no run."""
    _head: HeadNode | None = field(default=None)
    _dismissed: bool = False
    _dismissing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def leads(self) -> bool:
        """Return whether this process is rank 0."""
        return self.placement.rank == 0

    def _process(self) -> LaunchedProcess:
        return process_of(self.placement, os.environ)

    def number(self, parts: Parts) -> None:
        """Give the parts of a new `Trainer` their number."""
        self._made[self._count] = parts
        self._count += 1

    def settle(self) -> None:
        """Choose where rank 0 listens, and with it gloo's interface; called in rank 0. Raises ValueError."""
        self._head = self._head or HeadNode(self._process(), CATALOGUE, "ddp")
        self._head.settle_address(os.environ.get(BIND, LOOPBACK))

    def provide(self, parts: Parts) -> ScriptRanks:
        """Return a provider of ranks in the other processes; called in rank 0. Raises ValueError, OSError, RankLost."""
        if self._dismissed:
            raise ValueError("the other workers of Ray Train ended with the first run: train in one")
        self._known = self._count if self._known is None else self._known
        number = next(number for number, made in self._made.items() if made is parts)
        if number >= self._known:
            raise ValueError(
                f"a Trainer was made after the first run under {self.placement.launcher}, where the other processes still "
                "are: make all of them before the first run, or give it a script of its own"
            )
        self._head = self._head or HeadNode(self._process(), CATALOGUE, "ddp")
        self._head.listen(os.environ.get(BIND, LOOPBACK))
        return ScriptRanks(self._head.rendezvous, (number, *_sizes(parts)))

    def serve(self, parts: Parts) -> NoReturn:
        """Serve one rank of rank 0's runs until rank 0's script ends (in a worker of Ray Train: until the run ends).
        Called in every process but rank 0, in the first run; `parts`: those of that run.

        Raises SystemExit at the end; ProtocolError if rank 0 runs another trainer or has other data; ValueError if the
        functions or data cannot be sent to the rank's process."""
        quietly = ray_train.quiet_end() if ray_train.within(self.placement) else None
        first = {id(parts): pack(parts)}  # what cannot be sent raises here, before anything is waited for
        place, key = self._found()
        with ExitStack() as folders:

            def prepare_job(job: Job) -> Job:
                order: partial[Task] = job.task  # type: ignore[assignment]
                number, *sizes = order.args
                own = self._made.get(number)
                if own is None:
                    raise ProtocolError(
                        f"rank 0 runs Trainer {number} (the first is 0), which this process does not have: make the same "
                        "ones, in the same order, in every process"
                    )
                if tuple(sizes) != _sizes(own):
                    here = f"this process {_sizes(own)}: is the data the same?"
                    raise ProtocolError(f"rank 0 has {tuple(sizes)} samples in Trainer {number}, {here}")
                packed = first.pop(id(own), None) or pack(own)
                folders.close()  # the run before has ended
                folder = folders.enter_context(scratch(packed.bytes))
                return replace(job, task=packed.deliver(folder), preload=PRELOAD)

            try:
                code = serve_rank0(place, key, CATALOGUE, PRELOAD, prepare_job)
            except (EngineError, OSError) as error:
                code = _ended(place.rank, error)
            else:
                if quietly is not None:  # rank 0 reports errors of the run
                    quietly()
        raise SystemExit(code)

    def _found(self) -> tuple[LaunchedProcess, bytes]:
        """Return this process's place and its key, once it has found rank 0's host. Raises SystemExit if it finds
        none."""
        try:
            place = self._process()
            return place, place.key()
        except (ValueError, OSError) as error:
            raise SystemExit(_ended(self.placement.rank, error)) from None

    def followed(self, run: RunHandle) -> RunHandle:
        """Return `run`. Under Ray Train, dismiss the other workers when the run ends: Ray Train ends no worker
        before all workers have finished."""
        if ray_train.within(self.placement):
            threading.Thread(target=self._follow, args=(run,), name="dismissing", daemon=True).start()
        return run

    def _follow(self, run: RunHandle) -> None:
        run.wait()
        self._dismiss()
        if self._head is not None:
            self._head.rendezvous.close()

    def dismiss(self) -> None:
        """Tell the other processes that the script has ended."""
        end_all()
        self._dismiss()

    def _dismiss(self) -> None:
        with self._dismissing:
            if self._dismissed:
                return
            self._dismissed = True
            try:
                head = self._head or HeadNode(self._process(), CATALOGUE, "ddp")
            except ValueError:  # there is no rank 0 to connect to
                return
            head.dismiss(1 if getattr(sys, "last_value", None) is not None else 0)


def _ended(rank: int, error: Exception) -> int:
    """Print in one line why a process other than rank 0 ends, and return its exit code."""
    print(f"ddp: rank {rank} ends: {error}", file=sys.stderr)
    return FAILED


@dataclass(frozen=True)
class ScriptRanks:
    """Provides ranks in the processes that a launcher started with the same script."""

    rendezvous: RendezvousServer
    task: tuple[int, int, int]
    """Arguments of `script_task`."""

    def prepare_job(self, job: Job) -> Job:
        """Return the job for the ranks on this host."""
        return self.rendezvous.prepare_job(job)

    def runner(self, job: Job, rank: int) -> RemoteRank:
        """Return the process that runs `rank` of the job."""
        return self.rendezvous.runner(replace(job, task=partial(script_task, *self.task)), rank)


@cache
def party() -> Party | None:
    """Return the processes that a launcher started together with this one; None if this process is the only one.
    Raises ValueError for environment variables that contradict each other."""
    placement = read(os.environ)
    if placement is None or placement.world_size == 1:
        return None
    if ray_train.within(placement):
        ray_train.quiet_end()
    together = Party(placement)
    if together.leads:
        atexit.register(together.dismiss)
    return together


def number(parts: Parts) -> None:
    """Give the parts of a new `Trainer` their number, if a launcher started this process together with others."""
    if (together := party()) is not None:
        together.number(parts)

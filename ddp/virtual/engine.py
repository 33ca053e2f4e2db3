"""`virtual`: all ranks of a run in one process, in virtual time, with real training and real decisions.

Owns the costs of operations and their record. Slow devices and links, which a real run would emulate by waiting, are costs
here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from ddp.backends import BACKENDS, SyncKind, world_of
from ddp.backends.allreduce import collectives
from ddp.backends.snapshot import snapshot_bytes
from ddp.core.errors import Diverged, EngineError, RankLost
from ddp.core.messages.commands import Abort
from ddp.core.messages.events import Averaged
from ddp.core.messages.measurements import Slice
from ddp.core.settings.virtual_time import CONSTANT
from ddp.engine import solo
from ddp.engine.solo import Emit
from ddp.gradients import step_gradients
from ddp.process.clock import now
from ddp.process.codec import encode
from ddp.process.determinism import deterministic
from ddp.replica.memory.flat import FlatState
from ddp.replica.norms import least_samples
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.sim import Costs, Simulation
from ddp.sim.distributions import distribution
from ddp.sim.work import RankWork
from ddp.virtual.eligibility import MANY, unfit
from ddp.virtual.sequential import SequentialRanks
from ddp.virtual.vectorised import VectorisedRanks

LATENCY_S, WIRE_S, COPY_S, REDUCE_S = 1e-4, 1e-3, 1e-4, 1e-3
"""Seconds of a message, a collective, a copy of a replica and an average of snapshots, unless links are emulated."""
PARTS = (("data", 0.05), ("forward", 0.3), ("backward", 0.6), ("optimizer", 0.05))
"""Fractions of a step's time in its slices. With more than `MOST` ranks, `FEW` slices are recorded."""
FEW, MOST = (("data", 0.05), ("forward", 0.95)), 64
EVALUATED = 1 / 3
"""Time of a sample in an evaluation, relative to a sample in a step."""
DRAWN = 4096
"""Number of step times drawn for a rank; after these, they repeat."""


class VirtualRanks(RankWork, AbstractContextManager[Any], Protocol):
    """Ranks that compute, and what their replicas are alike in before training."""

    @property
    def replica(self) -> Replica:
        """Return a replica."""
        ...


def run(job: Job, emit: Emit) -> None:
    """Train `job` in virtual time, which begins now. Raises RankFailed, Diverged; KeyboardInterrupt passes through."""
    if job.world_size == 1:
        solo.run(job, emit)
        return
    threads = torch.get_num_threads()
    try:
        with deterministic(job.step.deterministic), ranks_of(job) as ranks, solo.stepping(job, emit) as emit:
            play(job, ranks, emit)
    finally:
        torch.set_num_threads(threads)


def ranks_of(job: Job) -> VirtualRanks:
    """Return the ranks, by the path that the job asks for. Raises ValueError if that path cannot train the job."""
    check_path(job)
    path = job.virtual.path
    together = path == "vectorised" or (path == "auto" and job.world_size >= MANY and not unfit(job))
    return VectorisedRanks(job) if together else SequentialRanks(job)


def check_path(job: Job) -> None:
    """Raise ValueError if the path that the job asks for cannot train it."""
    if job.virtual.path == "vectorised" and job.world_size > 1 and (why := unfit(job)):
        raise ValueError(f"virtual.path=vectorised: {why}; use virtual.path=sequential")


def play(job: Job, ranks: VirtualRanks, emit: Emit) -> None:
    """Simulate the run in virtual time, which begins now."""
    begin, slices = now(), defaultdict[int, list[bytes | Slice]](list)
    parts = PARTS if job.world_size <= MOST else FEW
    handed = defaultdict[int, list[int]](list)

    def listen(at: float, record: Any) -> None:
        if isinstance(record, Averaged):
            handed[record.rank].append(record.bytes)
        emit(replace(record, at=begin + at) if hasattr(record, "at") else record, begin + at)

    def measured(rank: int, kind: str, start: float, stop: float, seq: int) -> None:
        size, whole = costs.bytes if kind in ("exchange", "copy") else 0, stop - start
        for part, share in parts if kind == "forward" else ((kind, 1.0),):
            length = share * whole
            lasted = Slice(begin + start, rank, part, length, seq, size)
            slices[rank].append(lasted if kind == "exchange" else encode(lasted))
            start += length

    samples, least = ranks.replica.samples, least_samples(ranks.replica.model)
    world = world_of(job.backend, job.world_size, samples, job.batch_size, job.epochs, deadline_s=math.inf, least=least)
    costs = costs_of(job, ranks.replica)
    simulation = Simulation(job.policy, world, costs, tick_s=math.inf, limit_s=math.inf, keep=False)
    simulation.work, simulation.listen, simulation.measured = ranks, listen, measured
    try:
        simulation.run()
    finally:
        for rank, lines in slices.items():
            with (job.scratch / f"slices-{rank}.jsonl").open("ab") as file:
                file.write(b"".join(line + b"\n" for line in _encoded(lines, handed[rank])))
    if simulation.status != "ok":
        abort = simulation.aborted
        raise _error(abort) if abort is not None else EngineError(simulation.status)


def _encoded(slices: Iterable[bytes | Slice], handed: Sequence[int]) -> Iterator[bytes]:
    """Encode a rank's slices. If every exchange has an answer, its bytes are those in `handed`."""
    slices = list(slices)
    exchanges = sum(isinstance(each, Slice) for each in slices)
    sizes = iter(handed if len(handed) == exchanges else ())
    for each in slices:
        yield each if isinstance(each, bytes) else encode(replace(each, bytes=next(sizes, each.bytes)))


def _error(abort: Abort) -> EngineError:
    return (
        Diverged(f"{abort.reason}; lower the learning rate") if abort.status == "diverged" else RankLost(abort.reason)
    )


def step_times(job: Job) -> Callable[[int, int], float]:
    """Return a function of a rank and a number of its steps, whose value is the seconds of that step."""
    given, speeds = job.virtual, job.speeds or (1.0,) * job.world_size
    series: list[list[float]] = []
    for rank in range(job.world_size if given.steps != CONSTANT else 0):
        dice = np.random.default_rng((job.seed, rank))
        series.append(distribution(given.steps, "virtual.steps").draw(DRAWN, dice).tolist())
    return lambda rank, done: given.step_s / speeds[rank] * (series[rank][done % DRAWN] if series else 1.0)


def costs_of(job: Job, replica: Replica) -> Costs:
    """Return the costs: of steps by `job.virtual` and `job.speeds`, of collectives and messages by `job.links`."""
    size, speeds = job.world_size, job.speeds or (1.0,) * job.world_size
    evaluated = EVALUATED * job.virtual.step_s / job.batch_size * len(replica.data[1][0]) / size
    sent, count = _sent(job, replica.state)
    return Costs(
        step_times(job),
        by_samples=True,
        latency_s=LATENCY_S,
        wire_s=WIRE_S,
        links=job.links,
        bytes=sent,
        collectives=count,
        reduce_s=REDUCE_S,
        copy_s=COPY_S,
        evaluate_s=lambda rank: evaluated / speeds[rank],
    )


def _sent(job: Job, state: FlatState) -> tuple[int, int]:
    """Return the bytes of an average or a snapshot, and the number of collectives. Ranks report the bytes of an average of
    replicas."""
    if SyncKind.SNAPSHOT in BACKENDS[job.backend].sync:
        return snapshot_bytes(job.scratch, 0) or state.bytes, 1
    return step_gradients.sent(state) if job.policy.every_step else (state.bytes, collectives(state, job.averaging))

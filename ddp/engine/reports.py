"""Builds the larger events that a rank reports, field by field. Knows neither when they are due nor where they go."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ddp.backends.base import AverageResult
from ddp.core.messages.event_parts import Files, Lasting, Sketch, WorkSeconds
from ddp.core.messages.events import Averaged, Finished, Progress, Ready
from ddp.engine.fault_injector import struck
from ddp.engine.pending import Pending
from ddp.engine.round_sketches import ReplicaSketch
from ddp.process.clock import now
from ddp.process.meter import peak_rss_bytes
from ddp.replica.memory.flat import sizes
from ddp.replica.norms import least_samples
from ddp.replica.replica import Replica
from ddp.replica.task import Job


def ready(job: Job, rank: int, replica: Replica, device: str, transport: str, lasting: Lasting) -> Ready:
    """Return the event that describes a rank's initial state."""
    sketcher, (parameters, frozen) = replica.sketcher, sizes(replica.model)
    return Ready(
        rank=rank,
        samples=replica.samples,
        parameters=parameters,
        digest=replica.state.digest(),
        device=device,
        transport=transport,
        loader=replica.feed.kind,
        note=replica.note,
        host=job.host,
        clock_error_s=job.clock_error_s,
        least=least_samples(replica.model),
        sketched=() if rank else sketcher.groups,
        sketch=sketcher.model(),
        data=replica.record.content,
        optimizer=sketcher.optimizer(replica.optimizer) if job.resume is not None else (),
        frozen=frozen,
        lasting=lasting,
        hostname=job.hostname,
        at=now(),  # last, as digests and sketches take time
    )


def progress(rank: int, pending: Pending, replica: Replica, after: int, visited: int, work: WorkSeconds) -> Progress:
    """Return the event that reports the training in `pending`, and reset what the replica recorded of it."""
    return Progress(
        now(),
        rank,
        epoch=pending.epoch,
        steps=pending.steps,
        samples=pending.samples,
        busy_s=pending.busy_s,
        loss_sum=pending.loss_sum(),
        lr=replica.lr,
        scalars=replica.scalars.drain(),
        after=after,
        visited=visited,
        exchanged=replica.exchanged(),
        work=work,
    )


def averaged(
    rank: int,
    round: int,
    contribution: tuple[int, int],
    result: AverageResult,
    away_s: float,
    before: ReplicaSketch,
    after: ReplicaSketch,
    average: Sketch,
) -> Averaged:
    """Return the event that says that a rank holds the average of a round. `contribution`: its (steps, samples) in the
    average; `before`, `after`, `average`: sketches of the replica, and of what it took for the average."""
    steps, samples = contribution
    return Averaged(
        now(),
        rank,
        round,
        steps,
        samples,
        seconds=result.seconds,
        bytes=result.bytes,
        divergence=result.divergence,
        away_s=away_s,
        distance=result.distance,
        sketch_before=before.model,
        sketch_after=after.model,
        sketch_average=average,
        optimizer_before=before.optimizer,
        optimizer_after=after.optimizer,
    )


def finished(
    job: Job, rank: int, replica: Replica, device: torch.device, kept: Files, saving_s: float, numbers: Sequence[str]
) -> Finished:
    """Return the event that says what a rank ends with. `saving_s`: seconds in which it saved state. `numbers`: digests
    of generators over time."""
    on_device = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    digest, sketch, met = replica.state.digest(), replica.sketcher.model(), tuple(map(str, struck(job.scratch, rank)))
    work = replica.figures.work()
    peak = peak_rss_bytes()
    return Finished(now(), rank, digest, peak, on_device, sketch, kept, work, met, tuple(numbers), saving_s)

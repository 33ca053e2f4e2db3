"""What tests of the audit share: a job that is trained, and what an audit of it finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.audit.audit import audit
from bench.audit.audit_input import MEASURED, SHARDED, AuditOrder, norms_of, reports_of, works_of
from bench.audit.documented.schedule_places import breaks
from bench.results.audit_file import AuditReport
from ddp.backends import is_torch_native
from ddp.core.messages.events import Evaluated, Finished, Ready
from ddp.core.policies import POLICIES
from ddp.replica.task import Job, Task, epoch_samples

Order = Callable[..., AuditOrder]


def evaluations(records: list[Any]) -> Iterator[tuple[int, float, float]]:
    """(epoch, loss, metric) of what was evaluated."""
    events = [record for record in records if isinstance(record, Evaluated)]
    for epoch in sorted({event.epoch for event in events}):
        parts = [event for event in events if event.epoch == epoch]
        size = sum(event.samples for event in parts)
        yield epoch, sum(event.loss_sum for event in parts) / size, sum(event.metric_sum for event in parts) / size


def ordered(job: Job, records: list[Any], **changes: Any) -> AuditOrder:
    """The order for a job that was trained."""
    ready = next(record for record in records if isinstance(record, Ready))
    ends = [record for record in records if isinstance(record, Finished)]
    last = [record for record in records if isinstance(record, Evaluated) and record.epoch == job.epochs - 1]
    size = sum(event.samples for event in last)
    order = AuditOrder(
        kept=job.scratch,
        run_id="w1-s0-test",
        model="toy",
        task=job.task,
        data="toy",
        augment=False,
        seed=job.seed,
        epochs=job.epochs,
        world_size=job.world_size,
        lr_scale=job.lr_scale,
        max_grad_norm=job.max_grad_norm,
        own_buffers=is_torch_native(job.backend),
        planned=True,
        unbroken=changes.get("planned", True),
        recorded=tuple(file for record in ends for file in record.kept),
        initial=ready.digest,
        reports=tuple(reports_of(records)),
        device=ready.device,
        eval=sum(event.metric_sum for event in last) / size,
        eval_loss=sum(event.loss_sum for event in last) / size,
        params_sha256=ends[0].digest,
        evaluations=tuple(evaluations(records)),
        shown=tuple((e.epoch, e.rank, e.loss_sum, e.metric_sum) for e in records if isinstance(e, Evaluated)),
        norms=norms_of(records) if job.backend in MEASURED else (),
        works=works_of(records),
        in_shards=job.backend in SHARDED and job.world_size > 1,
        one_process=job.world_size == 1,  # as the engine of one rank is
        own_batches=not job.policy.every_step,
        step=job.step,
        batch_size=job.batch_size,
        length=epoch_samples(job),
        untouched=not (job.averaging.optimizer_state or job.averaging.resets),
        resets=job.averaging.resets,
        breaks=tuple(sorted(breaks(records))),
    )
    return replace(order, **changes)


def audited(job: Job, records: list[Any], task: Callable[[], Task] | None = None, **changes: Any) -> AuditReport:
    """The audit of a job, by a task that is sound (default: the job's)."""
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    try:
        return audit(ordered(job, records, **({"task": task} if task is not None else {}), **changes))
    finally:
        torch.set_num_threads(threads)
        torch.set_rng_state(state)


def train_alone(folder: Path, task: Callable[[], Task], **fields: Any) -> tuple[Job, list[Any]]:
    """A job on one rank that is trained in this process, and its records."""
    from ddp.engine import solo

    defaults: dict[str, Any] = {"epochs": 3, "batch_size": 8, "seed": 3, "world_size": 1, "audit": "w1-s3-test"}
    job = Job(task=task, policy=POLICIES["sync"](), backend="nccl", scratch=folder, **(defaults | fields))
    folder.mkdir(exist_ok=True)
    records: list[Any] = []
    threads = torch.get_num_threads()
    try:
        solo.run(job, lambda record, at: records.append(record))
    finally:
        torch.set_num_threads(threads)
    return job, records


def different(report: AuditReport) -> list[str]:
    """What an audit found, one line each."""
    return [str(item) for item in report.items if item.outcome == "different"]

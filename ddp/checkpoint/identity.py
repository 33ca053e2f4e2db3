"""Identifies checkpoints: the run that may resume from one, and the origin of each part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ddp.core.settings.steps import PLAIN
from ddp.replica.task import Job

Origin = dict[str, str | int | None]


SIZED_FIELDS = ("world_size", "batch_size", "lr_scale", "steps", "speed_hint", "partition_ratios")
"""Fields that may differ if the run is resumed with another number of ranks."""


@dataclass(frozen=True)
class RunIdentity:
    """Settings that a run must share with the run that it resumes from."""

    world_size: int
    policy: str
    backend: str
    seed: int
    epochs: int
    batch_size: int
    lr_scale: float
    max_grad_norm: float | None
    settings: dict[str, Any]
    """Settings of the policy and of averaging."""
    step: dict[str, Any] = field(default_factory=dict)
    """Settings of a step that are not the defaults, and the number of steps if it is set."""

    @staticmethod
    def of(job: Job) -> RunIdentity:
        """Return the identity of a job. With one rank, policy and backend have no effect and are left out, with their
        settings."""
        several, rates = job.world_size > 1, (job.lr_scale, job.max_grad_norm)
        policy, backend = (type(job.policy).__name__, job.backend) if several else ("", "")
        settings = _as_read(job.policy, job.averaging.resolved()) if several else {}
        step = job.step.given | ({} if job.steps is None else {"steps": job.steps})
        trained = job.seed, job.epochs, job.batch_size, *rates
        return RunIdentity(job.world_size, policy, backend, *trained, settings, step)

    def difference(self, other: RunIdentity) -> str:
        """Describe the first difference from `other`, with both values; empty: none. If both runs have several ranks but
        different numbers of them, fields in `SIZED_FIELDS` may differ."""
        plain = {"steps": None, **vars(PLAIN)}
        these, those = (
            {**vars(run), **run.settings, **plain, **run.step, "settings": None, "step": None} for run in (self, other)
        )
        resized = self.world_size != other.world_size and may_resize(self.world_size, other.world_size)
        for name in these:
            if resized and name in SIZED_FIELDS:
                continue
            if these[name] != those.get(name):
                return f"of a run with {name}={those.get(name)}, this one has {these[name]}"
        return ""


def may_resize(before: int, now: int) -> bool:
    """Return whether a run of `before` ranks may resume with `now` ranks. It may not from or to one rank, which trains
    differently."""
    return min(before, now) > 1


def other_epochs(before: int, now: int, saved: RunIdentity, job: Job, drop_last: bool = False) -> str:
    """Describe the difference between the samples of an epoch at the checkpoint and `now`; empty: none."""
    if before == now:
        return ""
    together = saved.batch_size * saved.world_size
    counted = (drop_last or job.steps is not None) and job.batch_size * job.world_size != together
    remedy = f"; keep batch_size x world_size at {together}" if counted else ""
    return f"the checkpoint is of {before} training samples, there are {now} now{remedy}"


def _as_read(*parts: Any) -> dict[str, Any]:
    """Return the fields of all parts as they are read from a file, with lists instead of tuples."""
    return {
        name: value for part in parts for name, value in msgspec.msgpack.decode(msgspec.msgpack.encode(part)).items()
    }


def origin(run: str, index: int, rank: int | None) -> Origin:
    """Return the origin recorded in a part: run, checkpoint, and rank (None: the model). It prevents confusion of parts."""
    return {"run": run, "index": index, "rank": rank}

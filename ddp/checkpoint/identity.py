"""Says what a checkpoint is of: the run that may resume from it, and in each of its parts whose part it is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ddp.core.step_settings import PLAIN
from ddp.replica.task import Job

Origin = dict[str, str | int | None]


SIZED_FIELDS = ("world_size", "batch_size", "lr_scale", "steps", "speed_hint", "partition_ratios")
"""What may be another where a run goes on with another number of ranks."""


@dataclass(frozen=True)
class RunIdentity:
    """What a run must have in common with the one that it resumes from."""

    world_size: int
    policy: str
    backend: str
    seed: int
    epochs: int
    batch_size: int
    lr_scale: float
    max_grad_norm: float | None
    settings: dict[str, Any]
    """Of the policy, and of averaging."""
    step: dict[str, Any] = field(default_factory=dict)
    """Settings of a step that are not as by themselves, and the number of steps if it is set."""

    @staticmethod
    def of(job: Job) -> RunIdentity:
        """Return the identity of a job. With one rank, policy and backend mean nothing, nor do their settings."""
        several, rates = job.world_size > 1, (job.lr_scale, job.max_grad_norm)
        policy, backend = (type(job.policy).__name__, job.backend) if several else ("", "")
        settings = _as_read(job.policy, job.averaging.resolved()) if several else {}
        step = job.step.given | ({} if job.steps is None else {"steps": job.steps})
        trained = job.seed, job.epochs, job.batch_size, *rates
        return RunIdentity(job.world_size, policy, backend, *trained, settings, step)

    def difference(self, other: RunIdentity) -> str:
        """Return the first thing in which a run of the `other` identity differs, with both values; empty: none. With another
        number of several ranks, what hangs on that may differ, too."""
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
    """Return whether a run of `before` ranks may go on with `now`: one rank trains another program."""
    return min(before, now) > 1


def _as_read(*parts: Any) -> dict[str, Any]:
    """Return the fields of all parts as they come back from a file, where a tuple is a list."""
    return {
        name: value for part in parts for name, value in msgspec.msgpack.decode(msgspec.msgpack.encode(part)).items()
    }


def origin(run: str, index: int, rank: int | None) -> Origin:
    """Return what a part says of itself, so that none is taken for another: run, checkpoint, and rank (None: the
    model)."""
    return {"run": run, "index": index, "rank": rank}

"""What a checkpoint is of: the run that it can be gone on with as, and in each of its parts whose part it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from ddp.replica.task import Job

Origin = dict[str, str | int | None]


@dataclass(frozen=True)
class RunIdentity:
    """What a run must have in common with the one that it goes on from."""

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

    @staticmethod
    def of(job: Job) -> RunIdentity:
        """Of a job. With one rank, policy and backend mean nothing, nor do the settings of either."""
        paired = job.world_size > 1
        policy, backend = (type(job.policy).__name__, job.backend) if paired else ("", "")
        rates = job.lr_scale, job.max_grad_norm
        chosen = _as_read((job.policy, job.averaging.resolved()) if paired else ())
        settings = {name: value for part in chosen for name, value in part.items()}
        return RunIdentity(job.world_size, policy, backend, job.seed, job.epochs, job.batch_size, *rates, settings)

    def difference(self, other: RunIdentity) -> str:
        """The first thing in which a run of the `other` is another one, and what it is here and there; empty: none."""
        ours, theirs = ({**vars(one), **one.settings, "settings": None} for one in (self, other))
        for name in ours:
            if ours[name] != theirs.get(name):
                return f"of a run with {name}={theirs.get(name)}, this one has {ours[name]}"
        return ""


def _as_read(value: Any) -> Any:
    """As it comes back from a file, where a tuple is a list."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def origin(run: str, index: int, rank: int | None) -> Origin:
    """Said in every part, so that none is taken for another: the run, the checkpoint, and whose it is (None: the model)."""
    return {"run": run, "index": index, "rank": rank}

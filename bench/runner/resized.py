"""`resume=RUN world_size=N`: a run resumed with another number of ranks is a new run, which records its origin.

Owns the keys that may be set with a new size, and the record of earlier sizes in the configuration. Reads no
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench.config.config import Config
from ddp.checkpoint.identity import may_resize
from ddp.core.policies import meets_every_step

_POLICY = ("policy.speed_hint", "policy.partition_ratios")
_CLUSTER = ("cluster.speeds", "cluster.absent", "cluster.faults", "cluster.links")
SIZED_KEYS = ("world_size", "train.batch_size", "train.global_batch_size", *_POLICY, *_CLUSTER)
"""Keys that may be set with another number of ranks."""


def resizes(settings: Mapping[str, Any], saved: Mapping[str, Any]) -> bool:
    """Return whether the command line asks for another number of ranks than the run has. Raise ValueError if either
    number is one: a single rank trains without a backend."""
    before, now = saved.get("world_size"), settings.get("world_size")
    if now is None or now == before:
        return False
    if not may_resize(before or now, now):
        raise ValueError(
            f"world_size={now} contradicts the run, which has {before}: a run can go on with another number where both "
            "are two or more; leave world_size out, or begin a run of its own without resume"
        )
    return True


def sized(settings: Mapping[str, Any], command: Config, own: Config) -> Config:
    """Return the configuration `own` of a run, changed to the number of ranks in `command`. In modes that synchronize
    every step, and for a number of steps, the global batch stays the same, unless the command sets another; otherwise
    each rank keeps its batch. Raise ValueError if the global batch cannot be divided."""
    train, cluster = own.train, own.cluster
    if "train.batch_size" in settings or "train.global_batch_size" in settings:
        each, together = command.train.batch_size, command.train.global_batch_size
        train = replace(train, batch_size=each, global_batch_size=together)
    elif (meets_every_step(own.mode.policy) or train.steps is not None) and train.batch_size is not None:
        assert own.world_size is not None
        assert command.world_size is not None
        whole = train.batch_size * own.world_size
        each = whole // command.world_size
        if each * command.world_size != whole:
            raise ValueError(
                f"world_size={command.world_size}: the global batch of {whole} samples cannot be cut into so many; give "
                f"train.global_batch_size={each * command.world_size}, or another, beside it"
            )
        train = replace(train, batch_size=each)
    if cluster.speeds:  # ranks that come are like the others, or as fast as they can be
        size, alike = command.world_size or 0, len(set(cluster.speeds)) == 1
        more = [cluster.speeds[0] if alike else 1.0] * (size - len(cluster.speeds))
        cluster = replace(cluster, speeds=[*cluster.speeds[: size if alike else None], *more])
    names = [key.partition(".")[2] for key in _CLUSTER if key in settings]
    cluster = replace(cluster, **{name: getattr(command.cluster, name) for name in names})
    policy = own.policy | {key.partition(".")[2]: settings[key] for key in _POLICY if key in settings}
    for key in _POLICY:
        each = policy.get(key.partition(".")[2])
        if each is not None and not (isinstance(each, (list, tuple)) and len(each) == command.world_size):
            raise ValueError(
                f"{key}={each} is not of {command.world_size} ranks; give {key} beside world_size, null for none"
            )
    return replace(own, world_size=command.world_size, train=train, cluster=cluster, policy=policy)


def lineage(saved: Mapping[str, Any], world_size: int, samples: int) -> list[dict[str, int]]:
    """Return the record of earlier numbers of ranks: for each, the ranks, the batch of one rank, and the samples that
    the model had seen at its end. `saved`: configuration of the resumed run; `samples`: samples seen when it is
    resumed."""
    before: list[dict[str, int]] = list(saved.get("resized") or ())
    if saved["world_size"] == world_size:
        return before
    batch = saved["train"]["batch_size"] * saved["train"].get("accumulate", 1)
    return [*before, {"world_size": saved["world_size"], "batch_size": batch, "samples": samples}]

"""Settings of the training, read from the resolved configuration of a run, which may be malformed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.config.user_parts import TASK
from bench.results.runfolder import group_of
from ddp.core.settings.steps import MOST_PARTS
from ddp.core.settings.steps import NAMES as STEP

LARGEST = 1e100
"""Largest measured value: the squares of larger numbers overflow, so they have no mean and no deviation."""


def norm_limit(config: Mapping[str, Any]) -> float | None:
    """Return `train.max_grad_norm` of a resolved configuration, which may be malformed; None: no limit."""
    limit = group_of(config, "train").get("max_grad_norm")
    return float(limit) if isinstance(limit, int | float) and abs(limit) <= LARGEST else None


def micro_batches(config: Mapping[str, Any]) -> int:
    """Return `train.accumulate`, the micro-batches of a step, of a resolved configuration, which may be malformed."""
    parts = group_of(config, "train").get("accumulate")
    return parts if isinstance(parts, int) and 0 < parts <= MOST_PARTS else 1


def step_settings(config: Mapping[str, Any], global_batch: int) -> str:
    """Return, as text, the settings of a step that are not the default, from a resolved configuration, which may be
    malformed. With `train.steps` also the number of samples, as each step trains `global_batch`."""
    train = group_of(config, "train")
    given = {key: train[key] for key in STEP if key in train}
    settings = [f"{key} {value}" for key, value in given.items() if isinstance(value, str | int | float)]
    steps = train.get("steps")
    return ", ".join(
        [f"{steps * global_batch:,} samples", *settings]
        if isinstance(steps, int) and abs(steps) <= LARGEST
        else settings
    )


def digests(config: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return (what it is of, digest) of each part of the task that is the user's own: the code and the data of a script,
    the files of a model or data set. Empty for the project's own tasks."""
    script = {part: group_of(config, "training").get(part) for part in ("code", "data")}
    files = {f"{kind}'s code": group_of(group_of(config, "code"), kind).get("sha256") for kind in TASK}
    return tuple((part, digest) for part, digest in {**script, **files}.items() if isinstance(digest, str))

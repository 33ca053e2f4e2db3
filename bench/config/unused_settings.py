"""Settings of the user that have no effect in the mode. Pure.

They are noted, not refused: a sweep has them for its other modes, and printed commands repeat all settings of a cell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bench.config.config import Config
from ddp.core.policies import meets_every_step
from ddp.engine.modes import backend_of, engine_of


def moot(settings: Mapping[str, Any], config: Config, mode: str) -> list[str]:
    """Return a line for each key of `settings` that has no effect in this run."""
    reasons: dict[str, str] = {}
    if settings.get("backend") == config.mode.backend:
        settings = {key: value for key, value in settings.items() if key != "backend"}
    for group, why in (*_meaningless(config), *_of_others(settings, config)):
        for key in settings:
            if key == group or key.startswith(f"{group}."):
                reasons.setdefault(key, why)
    return [f"{key} has no effect in mode={mode}: {why}" for key, why in sorted(reasons.items())]


def of_other_policy(word: str, config: Config) -> bool:
    """Return whether an override, or its key, is a setting of a policy that this run does not have."""
    group, _, name = word.partition("=")[0].partition(".")
    return group == "policy" and bool(name) and name not in config.policy


def _of_others(settings: Mapping[str, Any], config: Config) -> Iterator[tuple[str, str]]:
    """Yield each setting that a sweep has for its other policies."""
    for key in settings:
        if of_other_policy(key, config):
            yield key, f"it is left out, as policy={config.policy['name']} has no such setting"


def _meaningless(config: Config) -> Iterator[tuple[str, str]]:
    """Yield each setting or group of settings without effect, and why; of several reasons the best one comes first."""
    mode, backend, policy = config.mode, backend_of(config.mode), config.policy
    averages = backend is not None and backend.averages
    if mode.policy is None or (backend is not None and not averages):
        yield "policy", "it has no policy"
    if mode.backend is None:
        names = ("backend", "averaging", "cluster.links")
        yield from ((key, "it has no backend, and no averages of replicas") for key in names)
    elif not averages:
        yield from (("backend", "it has its own"), ("averaging", "it averages no replicas"))
    if mode.backend == "nccl" and meets_every_step(mode.policy):
        yield "averaging", "it averages gradients inside the step, and no replicas"
    if mode.backend == "cpu":
        yield from (("averaging.wire", "it has no collectives"), ("cluster.transport", "it has no collectives"))
    if not engine_of(config.engine.name).virtual:
        yield "virtual", "its time is real"
    elif config.world_size == 1:
        yield "virtual", "one rank trains in real time"
    if engine_of(config.engine.name).in_place:
        yield "cluster.transport", "it has no collectives"
        for key in ("cluster.deadline_s", "cluster.tolerate_loss"):
            yield key, "no rank of one process can be lost alone"
    if "guard" in policy and (policy["guard"] in ("none", "growth") or policy["no_divergence_guard"]):
        yield "policy.divergence_threshold", "only policy.guard=level goes by it"
    if policy.get("partition_ratios") is not None:
        for key in ("policy.dispatch", "policy.speed_hint"):
            yield key, "policy.partition_ratios fixes the parts of the ranks"
    if config.loader.kind == "resident":
        yield "loader.prefetch", "loader.kind=resident reads nothing ahead"
    if config.checkpoint.every == 0:
        for key in ("checkpoint.unit", "checkpoint.spacing_s"):
            yield key, "checkpoint.every=0 makes no checkpoints"

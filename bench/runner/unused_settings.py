"""Settings that a user gave and that mean nothing to the mode. Pure.

Each is noted, not refused: a sweep has them for its other modes, and a printed command for the cell as it was trained.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from bench.runner.config import Config
from bench.runner.modes import backend_of, engine_of
from ddp.core.policies import meets_every_step


class _Rule(NamedTuple):
    keys: tuple[str, ...]
    """Settings, or the groups that they are of."""
    applies: Callable[[Config], bool]
    """Whether they mean nothing."""
    why: str


def _one_policy(config: Config) -> bool:
    backend = backend_of(config.mode)
    return config.mode.policy is None or (backend is not None and not backend.averages)


def _no_backend(config: Config) -> bool:
    return config.mode.backend is None


def _no_averages(config: Config) -> bool:
    return _no_backend(config) or _one_policy(config)


def _with_backend(name: str) -> Callable[[Config], bool]:
    return lambda config: config.mode.backend == name


def _in_step(config: Config) -> bool:
    return _with_backend("nccl")(config) and meets_every_step(config.mode.policy)


def _one_process(config: Config) -> bool:
    return engine_of(config.engine.name).one_process


def _resident(config: Config) -> bool:
    return config.loader.kind == "resident"


def _unguarded(config: Config) -> bool:
    policy = config.policy
    return "guard" in policy and (policy["guard"] in ("none", "growth") or bool(policy["no_divergence_guard"]))


_RULES = (
    _Rule(("policy",), _one_policy, "it has no policy"),
    _Rule(("backend",), _no_backend, "it has no backend, and no averages of replicas"),
    _Rule(("averaging",), _no_averages, "it has no backend, and no averages of replicas"),
    _Rule(("averaging",), _in_step, "it averages gradients inside the step, and no replicas"),
    _Rule(("averaging.wire", "cluster.transport"), _with_backend("cpu"), "it has no collectives"),
    _Rule(("cluster.transport",), _one_process, "it has no collectives"),
    _Rule(("cluster.deadline_s", "cluster.tolerate_loss"), _one_process, "no rank of one process can be lost alone"),
    _Rule(("policy.divergence_threshold",), _unguarded, "only policy.guard=level goes by it"),
    _Rule(
        ("policy.dispatch", "policy.speed_hint"),
        lambda config: config.policy.get("partition_ratios") is not None,
        "policy.partition_ratios fixes the parts of the ranks",
    ),
    _Rule(("loader.prefetch",), _resident, "loader.kind=resident reads nothing ahead"),
    _Rule(
        ("checkpoint.unit", "checkpoint.spacing_s"),
        lambda config: config.checkpoint.every == 0,
        "checkpoint.every=0 makes no checkpoints",
    ),
)


def moot(settings: Collection[str], config: Config, mode: str) -> list[str]:
    """Return a line for each key of `settings` that means nothing to this run."""
    reasons: dict[str, str] = {}
    for rule in _RULES:
        for key in settings:
            if any(key == name or key.startswith(f"{name}.") for name in rule.keys) and rule.applies(config):
                reasons.setdefault(key, rule.why)
    return [f"{key} means nothing to mode={mode}: {why}" for key, why in sorted(reasons.items())]

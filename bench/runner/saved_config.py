"""Reads the configuration in a run folder back, typed. Knows neither checkpoints nor commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from bench.config.config import Choice, ClusterConfig, Config, DataConfig, ModelConfig, ProfileConfig, TrainConfig
from bench.config.user_parts import named_by
from bench.results.runfolder import CONFIG
from ddp.core.policies import DEFAULT
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.loader import Loading
from ddp.core.settings.virtual_time import VirtualTime


def config_of(saved: dict[str, Any], folder: Path) -> Config:
    """Return the configuration in a run folder, typed. Raise ValueError for an invalid one."""
    try:
        return Config(
            model=_typed({"name": named_by(saved, "model", saved["model"]), "depth": saved.get("depth")}, ModelConfig),
            engine=_typed({"name": saved["engine"]}, Choice),
            policy=_policy(saved["policy"]),
            backend=_typed({"name": saved["backend"] or "nccl"}, Choice),
            averaging=_typed(saved["averaging"] or {}, Averaging),
            world_size=msgspec.convert(saved["world_size"], int),
            seed=msgspec.convert(saved["seed"], int),
            recipe=msgspec.convert(saved["recipe"], str),
            train=_typed(saved["train"], TrainConfig),
            data=_typed(_data(saved), DataConfig),
            loader=_typed(saved.get("loader", {}), Loading),
            cluster=_typed(saved["cluster"], ClusterConfig),
            checkpoint=_typed(saved["checkpoint"], Checkpointing),
            profile=_typed(saved.get("profile", {}), ProfileConfig),
            audit=msgspec.convert(saved.get("audit", True), bool),
            virtual=_typed(saved.get("virtual") or {}, VirtualTime),
            timing=msgspec.convert(saved.get("timing", True), bool),
        )
    except (KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
        why = f"not the configuration of a run ({type(error).__name__}: {error})"
        raise ValueError(f"{folder / CONFIG}: {why}") from error


def _data(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the data settings, with a user's own data set named by its file or module. Early runs named no data
    set."""
    data: dict[str, Any] = saved["data"]
    return data | {"name": named_by(saved, "data", data["name"])} if "name" in data else data


def _policy(saved: Any) -> dict[str, Any]:
    """Return the policy's settings as a configuration has them; a run on one rank has none."""
    policy = {"name": DEFAULT} if saved is None else msgspec.convert(saved, dict[str, Any])
    return policy | {"name": msgspec.convert(policy["name"], str)}


def _typed(saved: Any, kind: type[Any]) -> Any:
    checked = msgspec.convert(saved, kind, strict=True)
    return kind(**{name: getattr(checked, name) for name in saved})

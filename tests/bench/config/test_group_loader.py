"""The points of a sweep are composed as Hydra composes them, whatever varies, whoever brings the members of groups."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hydra import initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import OmegaConf

from bench.base.paths import CONF
from bench.config.composed import register, typed
from bench.config.group_loader import GroupLoader
from bench.config.sweep_points import points
from ddp.backends import BACKENDS
from tests.slow import every

SWEEPS = (
    ("model=mlp,lenet", "mode=solo,cpu_async,zero2", "train.lr=0.1,1e-3"),
    ("engine=elche,graph", "policy=cadence,sync", "backend=nccl,cpu"),
    ("mode=cpu_async,nccl_cadence", "policy=cadence,sync"),  # both choose a policy
    ("mode=nccl_cadence,cpu_cadence", "policy.anchor=3,4", "cluster.speeds=[1.0,0.5],[]"),
    # Back and forth between choices.
    ("seed=1,2", "model=mlp,lenet,vit", "mode=nccl_cadence,solo,cpu_qsr", "train.lr=0.1"),
    ("experiment=ci,scaling_strong", "model=mlp,lenet", "hydra.job.name=a"),
    ("train={lr:0.1,epochs:2},{lr:0.2}", "seed=1,2"),
    ("+train.lr=null", "world_size=1,2", "data.name=digits", "logger=none,tensorboard"),
)


def compose(words: tuple[str, ...], *constant: str) -> list[tuple[Any, Any]]:
    """Return each point as the loader composes it and as Hydra does."""
    loader = GlobalHydra.instance().config_loader()
    master = loader.load_configuration("config", list(constant), RunMode.MULTIRUN)
    fast = GroupLoader(loader)
    pairs = []
    for point in points([*words, *constant], loader):
        ours, theirs = (each.load_sweep_config(master, list(point)) for each in (fast, loader))
        pairs.append((OmegaConf.to_container(ours), OmegaConf.to_container(theirs)))
        if not any(word.startswith("+") for word in words):
            assert typed(ours) == typed(theirs)
            assert OmegaConf.get_type(ours.policy) is OmegaConf.get_type(theirs.policy)
    return pairs


@pytest.mark.parametrize("words", every(2, [(words,) for words in SWEEPS]), ids=" ".join)
def test_a_point_is_composed_as_hydra_does(words: tuple[str, ...]) -> None:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for ours, theirs in compose(words, "recipe=quick", "hydra.verbose=true"):
            assert ours == theirs


def test_where_no_choice_varies_a_point_is_the_master_with_its_settings() -> None:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        pairs = compose(("seed=1,2", "policy.base=3,4"), "model=lenet", "mode=cpu_qsr", "train.epochs=2")
        assert len(pairs) == 4
        for ours, theirs in pairs:
            assert ours == theirs


def test_a_choice_is_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        hydras = Mock(wraps=loader.load_sweep_config)
        monkeypatch.setattr(loader, "load_sweep_config", hydras)
        fast = GroupLoader(loader)
        every = points(["model=mlp,lenet,vit", "mode=nccl_sync,cpu_async,zero2,nccl_qsr", "seed=1,2"], loader)
        assert len({fast.point(master, list(point)).model.name for point in every}) == 3
        assert hydras.call_count == 1 + 2 + 3


def test_members_of_a_users_own_folder_are_composed_by_hydra(tmp_path: Path) -> None:
    """What they change beside their group may be anything."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model/mine.yaml").write_text("# @package _global_\nmodel: {name: mlp, depth: 8}\nworld_size: 2\n")
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        own = f"hydra.searchpath=[file://{tmp_path}]"
        for ours, theirs in compose(("model=mine,lenet", "mode=solo,nccl_sync", "seed=0,1"), own):
            assert ours == theirs


def test_a_member_that_came_since_is_registered_and_nothing_else_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    register()
    store = ConfigStore.instance()
    monkeypatch.setattr(store, "repo", deepcopy(store.repo))
    known = store.repo["schema.yaml"]
    register()
    assert store.repo["schema.yaml"] is known
    monkeypatch.setitem(BACKENDS, "late", BACKENDS["nccl"])
    register()
    assert "late.yaml" in store.repo["backend"]
    store.repo.clear()
    register()
    assert "schema.yaml" in store.repo


def test_errors_are_hydras() -> None:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        master = loader.load_configuration("config", [], RunMode.MULTIRUN)
        fast = GroupLoader(loader)
        for words in (["seed=no"], ["nonsense=1"], ["model=nonsense"], ["train.lr=[1]"]):
            with pytest.raises(HydraException) as ours:
                fast.point(master, words)
            with pytest.raises(HydraException) as theirs:
                loader.load_sweep_config(master, words)
            assert str(ours.value) == str(theirs.value)
        assert fast.point(master, ["seed=3"]).seed == 3

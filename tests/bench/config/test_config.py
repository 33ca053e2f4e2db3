"""Composition: groups, presets and types, through Hydra's own compose."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bench.base.paths import CONF
from bench.command.verbs.listing import _modes
from bench.config.composed import register, typed
from bench.config.config import Config
from bench.config.hydra_errors import complain, known_keys
from bench.config.overrides import in_our_words, readable
from bench.models import MODELS
from ddp.backends import BACKENDS, paired_backends
from ddp.core.messages.commands import Plan
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.engine import ENGINES, EngineSpec
from ddp.engine.modes import mode_name, modes
from ddp.settings import check_policy


def composed(*overrides: str) -> Config:
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return typed(compose("config", overrides=list(overrides)))


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_brings_its_documented_defaults(name):
    assert composed(f"policy={name}").policy == {"name": name} | asdict(POLICIES[name]())


def test_a_frozen_policy_takes_overrides():
    assert composed("policy=cadence", "policy.overhead_target=0.2").policy["overhead_target"] == 0.2


def test_what_the_recipe_leaves_to_the_user_can_be_said():
    train = composed("train.max_grad_norm=5", "train.lr_scale_ratio=0.5").train
    assert (train.max_grad_norm, train.lr_scale_ratio, train.epochs) == (5.0, 0.5, None)
    assert composed().train.max_grad_norm is composed().train.lr_scale_ratio is None


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_a_choice(name):
    assert composed(f"model={name}").model.name == name


@pytest.mark.parametrize("mode", modes())
def test_a_preset_is_named_as_the_mode_it_makes(mode):
    config = composed(f"mode={mode}")
    assert config.engine.name in ENGINES
    assert config.backend.name in BACKENDS
    assert config.mode.name == mode


def test_every_pair_of_policy_and_backend_has_a_preset():
    assert modes().keys() >= {f"{backend}_{policy}" for policy in POLICIES for backend in paired_backends()}


def test_a_new_engine_that_takes_backends_replaces_no_mode(monkeypatch: pytest.MonkeyPatch):
    """`mode=nccl_cadence` was trained by it, and it had no modes of its own."""
    before = modes()
    monkeypatch.setitem(ENGINES, "threaded", EngineSpec("threaded", backends=True))
    after = modes()
    assert {name: after[name] for name in before} == before
    own = after.keys() - before.keys()
    assert {"threaded_nccl_cadence", "threaded_zero1"} <= own == {name for name in own if name.startswith("threaded_")}


def test_a_new_policy_has_its_modes_by_itself(monkeypatch: pytest.MonkeyPatch):
    """Register one as its line does: each pair is a choice, is listed, and its own command means the same cell."""
    monkeypatch.setitem(POLICIES, "often", POLICIES["cadence"])
    try:
        for mode in ("nccl_often", "cpu_often"):
            config = composed(f"mode={mode}")
            assert (config.mode.name, config.policy["name"]) == (mode, "often")
            assert mode in _modes()
    finally:
        for mode in ("nccl_often", "cpu_often"):
            del ConfigStore.instance().repo["mode"][f"{mode}.yaml"]
        del ConfigStore.instance().repo["policy"]["often.yaml"]


@pytest.mark.parametrize("backend", [name for name, spec in BACKENDS.items() if not spec.averages])
def test_what_was_an_engine_is_a_backend(backend):
    """In command lines of before, and whatever policy and backend are said beside it."""
    config = composed(f"engine={backend}", "policy=cadence", "backend=cpu")
    assert (config.engine.name, config.policy, config.backend.name) == ("elche", {"name": "sync"}, backend)
    assert config == composed(f"mode={backend}") == composed(f"backend={backend}")
    assert config.mode.name == mode_name(backend, "", None) == backend


def test_a_preset_equals_its_parts():
    assert composed("mode=nccl_cadence") == composed("policy=cadence", "backend=nccl")
    assert composed("mode=cpu_async") == composed("backend=cpu", "policy=async")


def test_the_command_line_beats_the_preset():
    config = composed("mode=cpu_async", "policy=sync")
    assert (config.backend.name, config.policy["name"]) == ("cpu", "sync")


def test_hydra_leaves_no_folder_and_no_log():
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        hydra = compose("config", return_hydra_config=True).hydra
    assert hydra.run.dir == "."
    assert hydra.output_subdir is None
    assert hydra.job.chdir is False
    assert OmegaConf.to_container(hydra.job_logging) == OmegaConf.to_container(hydra.hydra_logging)
    assert OmegaConf.select(hydra.job_logging, "handlers") is None


def test_the_job_needs_nothing_that_hydra_resolves_late():
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        assert "${" not in OmegaConf.to_yaml(compose("config"))


@pytest.mark.parametrize("said", ["+foo=1", "+train.foo=1", "~model"])
def test_what_hydra_lets_through_is_refused(said):
    with pytest.raises(OmegaConfBaseException) as caught:
        composed(said)
    assert "\n" not in complain(caught.value)


def test_known_keys_are_what_can_be_said():
    assert known_keys() >= {"seed", "model", "mode", "train.epochs", "cluster.speeds", "policy.anchor", "data.dir"}
    assert not known_keys() & {"train", "policy.name", "model.name"}


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("data.path=~/flowers", "data.path='/home/me/flowers'"),
        ("output=~", "output='/home/me'"),
        ("output='~/a'", "output='./~/a'"),  # said in quotes, it is a folder of that name
        ('resume="~"', 'resume="./~"'),
        ("train.lr=~", "train.lr='~'"),
        ("output=/tmp/x/ü", "output='/tmp/x/ü'"),
        ("+output=/tmp/x—y", "+output='/tmp/x—y'"),
        ("output=a=b", "output='a=b'"),
        ("output=/tmp/a b/x", "output=/tmp/a b/x"),
        ("output=it's", r"output='it\'s'"),
        ("output=/tmp/[x](1)", "output='/tmp/[x](1)'"),
        ("output=2026_11_29", "output='2026_11_29'"),  # else 20261129
        ("data.path=1e5", "data.path='1e5'"),
        ("output=true", "output='true'"),
        ("resume=null", "resume=null"),
        ("output=a,b", "output=a,b"),  # several, of a sweep
        ("seed=range(0,x;)", "seed=range(0,x;)"),  # what it was to be is not known
        ("cluster.speeds=[1", "cluster.speeds=[1"),
        ("a;b=ü", "a;b=ü"),
        ("wat", "wat"),
    ],
)
def test_text_that_hydra_has_no_place_for_is_quoted(said, meant, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    assert readable(said) == meant
    assert readable(meant) == meant


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("data_dir=a=b", "data.dir=a=b"),
        ("+experiment=ci", "experiment=ci"),
        ("+seed=1", "+seed=1"),
        ("-m", "-m"),
        ("model=all", "model=glob(*)"),
        ("mode=all", "mode=glob(*)"),
        ("output=all", "output=all"),
    ],
)
def test_other_words_for_our_keys(said, meant):
    assert in_our_words(said) == meant


def test_a_policy_whose_first_plan_gives_a_rank_no_step_is_refused():
    """Its run waited for ever."""

    class Standing:
        def init(self, world: World) -> tuple[None, Plan]:
            return None, Plan((0,) * world.size, (0,) * world.size, False, 0, False, 0, "every 0 steps")

    with pytest.raises(ValueError, match=r"counts=\(0, 0\).*2 ranks need 2 counts of 1 or more"):
        check_policy(Standing(), 2)

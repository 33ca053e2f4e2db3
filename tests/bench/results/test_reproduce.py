"""The command that a run folder makes again of itself: it means this cell and no other."""

from __future__ import annotations

import copy
import shlex
from functools import cache
from types import SimpleNamespace
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from bench.base.paths import CONF
from bench.config.composed import register, typed
from bench.config.config import Choice, ClusterConfig, Config, DataConfig, ModelConfig, ProfileConfig, TrainConfig
from bench.config.config_checks import Machine
from bench.config.overrides import setting
from bench.config.plan import plan
from bench.config.spec import RunSpec
from bench.models.data import DATA
from bench.results.rerun_command import command
from bench.results.runfolder import Run, resuming
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.loader import Loading
from tests.bench.planned import SETUP

MODES = {  # name -> (engine, policy, backend)
    "solo": ("solo", "cadence", "nccl"),
    "nccl_sync": ("elche", "sync", "nccl"),
    "nccl_cadence": ("elche", "cadence", "nccl"),
    "cpu_async": ("elche", "async", "cpu"),
    "graph_cadence": ("graph", "cadence", "nccl"),
    "zero2": ("zero2", "cadence", "nccl"),
    "torch_ddp": ("torch_ddp", "cadence", "nccl"),
}
RATES = st.floats(1e-9, 1e6)
TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp")), min_size=1)
AVERAGING = st.one_of(
    st.builds(Averaging, gamma=st.floats(0, 9), wire=st.sampled_from(["float64", "float32", "bfloat16"])),
    st.builds(Averaging, outer=st.just("nesterov"), outer_lr=RATES | st.none(), optimizer_state=st.booleans()),
    st.builds(Averaging, elastic=st.floats(0, 1, exclude_min=True)),
)
LOADING = st.builds(
    Loading,
    kind=st.sampled_from(["auto", "resident", "streaming"]),
    prefetch=st.integers(1, 99) | st.none(),
    memory_max_usage=st.floats(0, 1, exclude_min=True),
)
DATA_CONFIGS = st.one_of(
    st.just(DataConfig()),
    st.builds(
        DataConfig,
        name=st.just("text_file"),
        path=TEXTS.filter(lambda text: text.strip() and text != "???"),
        seq_len=st.integers(1, 99),
    ),
    st.just(DataConfig(name="synthetic", shape=[3, 8, 8], classes=4)),
)
FAULTS = st.sampled_from([[], ["1@40:crash"], ["0@3:slow*1000000", "1@7:slow*2.123456789"]])


@st.composite
def configs(draw: st.DrawFn) -> Config:
    engine, policy, backend = MODES[draw(st.sampled_from(sorted(MODES)))]
    size = 1 if engine == "solo" else draw(st.integers(2, 3))
    own = {"anchor": draw(st.integers(1, 50))} if policy == "cadence" and draw(st.booleans()) else {}
    cluster = ClusterConfig(
        speeds=draw(st.one_of(st.just([]), st.lists(st.floats(0.01, 1), min_size=size, max_size=size))),
        device=draw(st.sampled_from(["auto", "cpu"])),
        transport=draw(st.sampled_from(["auto", "gloo"])),
        tolerate_loss=draw(st.booleans()),
        faults=draw(FAULTS) if size > 1 and engine != "graph" else [],
    )
    return Config(
        model=ModelConfig("mlp", draw(st.sampled_from([None, 32]))),
        engine=Choice(engine),
        policy={"name": policy} | own,
        backend=Choice(backend),
        averaging=draw(AVERAGING),
        world_size=size,
        seed=draw(st.integers(0, 2**31 - 1)),
        train=TrainConfig(
            lr=draw(RATES),
            lr_scale_ratio=draw(RATES | st.none()),
            max_grad_norm=draw(RATES | st.none()),
            steps=draw(st.integers(1, 10**6) | st.none()),
            precision=draw(st.sampled_from(["bf16", None])),
            accumulate=draw(st.integers(1, 10) | st.none()),
        ),
        data=draw(DATA_CONFIGS),
        loader=draw(LOADING),
        cluster=cluster,
        profile=ProfileConfig(steps=draw(st.integers(0, 9)) if engine != "graph" else 0),
    )


def planned(config: Config) -> RunSpec:
    return plan(config, SETUP, DATA, Machine(cores=2)).spec


def folder(spec: RunSpec) -> Run:
    """As much of the run as its command is made of."""
    about: dict[str, Any] = {name: getattr(spec, name) for name in ("model", "depth", "mode", "engine", "world_size")}
    about |= {name: getattr(spec, name) for name in ("recipe", "data", "batch_size", "lr", "seed")}
    about |= {"epochs_planned": spec.epochs, "emulated_speeds": list(spec.speeds)}
    metrics: Any = SimpleNamespace(**about, scripted_faults=list(map(str, spec.faults)))
    return Run(CONF, metrics, spec.config)


@cache
def preset(model: str, mode: str) -> DictConfig:
    """The configuration that these words alone make."""
    register()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", overrides=[model, mode])


def resolved(words: list[str]) -> Config:
    """As Hydra composes it; the settings are put into what the groups make, which takes it most of its time."""
    groups = [word for word in words if word.startswith(("model=", "mode="))]
    config = copy.deepcopy(preset(*groups))
    for override in OverridesParser.create().parse_overrides([word for word in words if word not in groups]):
        OmegaConf.update(config, override.key_or_group, override.value())
    return typed(config)


@settings(max_examples=30, deadline=None, phases=[Phase.explicit, Phase.generate])  # shrinking takes minutes
@given(st.data())
def test_the_command_means_the_same_cell_and_run(data: st.DataObject) -> None:
    """Read by a shell and by Hydra, to the last digit, whatever is said of what is part of a cell."""
    spec = planned(data.draw(configs()))
    words = shlex.split(command([folder(spec)]))
    assert words[:3] == ["python", "-m", "bench"]
    again = planned(resolved(words[3:]))
    assert (again.config_hash, again.run_id) == (spec.config_hash, spec.run_id), words


def test_a_folder_of_somebody_else_gives_a_command_and_no_more() -> None:
    """Nothing in it is run by the shell that it is pasted into, and a group that is none is left out."""
    spec = planned(Config(ModelConfig("mlp"), Choice("elche"), {"name": "cadence"}, Choice("nccl")))
    run = folder(spec)
    run.metrics.model, run.metrics.recipe = "mlp; touch x", "$(touch y)"
    hostile = Run(CONF, run.metrics, {"train": 5, "cluster": [], "policy": {"name": []}, "loader": "x", "data": None})
    words = shlex.split(command([hostile]))
    assert words[3:6] == ["model='mlp; touch x'", "mode=nccl_cadence", "world_size=2"]
    assert "recipe='$(touch y)'" in words
    assert setting("a", "x y") == "'a='\"'\"'x y'\"'\"''"


def test_a_path_is_text_whatever_is_in_it() -> None:
    """A comma, a bracket or `${` in the folder's name, and the printed command was refused."""
    for name in ("a, b", "[a]", "{a: b}", "${a}", "\\${a", "\\\\${a} \\", "$", 'it\'s "a" = b'):
        (word,) = shlex.split(resuming(CONF / name))[3:]
        override = OverridesParser.create().parse_override(word)
        assert OmegaConf.create({"it": override.value()})["it"] == str(CONF / name)


def test_how_often_a_rank_is_restarted_is_a_number() -> None:
    spec = planned(
        Config(
            ModelConfig("mlp"), Choice("elche"), {"name": "cadence"}, Choice("nccl"), cluster=ClusterConfig(restart="2")
        )
    )
    words = command([folder(spec)])
    assert " cluster.restart=2 " in words
    assert planned(resolved(shlex.split(words)[3:])).config_hash == spec.config_hash


def test_numbers_are_short_where_that_says_all() -> None:
    words = [setting("x", value) for value in (1.0, 0.1, 60.0, 0.1234567, 1e-5, None, True, 3)]
    assert words == ["x=1", "x=0.1", "x=60", "x=0.1234567", "x=1e-05", "x=null", "x=true", "x=3"]
    assert [setting("x", value) for value in ("null", "12", "a/b.txt", "../a")] == [
        "'x='\"'\"'null'\"'\"''",
        "'x='\"'\"'12'\"'\"''",
        "x=a/b.txt",
        "x=../a",
    ]

"""The plan: resolution, and identity of cells and runs."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.config.config import Choice, ClusterConfig, DataConfig, ModelConfig, ProfileConfig, TrainConfig
from bench.config.config_checks import Machine
from bench.config.plan import plan
from bench.models.data import DATA, DataOptions
from ddp.core.policies import POLICIES
from ddp.replica.task import epoch_samples
from tests.bench.planned import BASE, SETUP, planned

FOLDERS = st.text().filter(lambda text: text.strip() and "\0" not in text)
NAME = "w2-s0-6724010d"
"""Run id of `BASE` since there are plans. What is added later must not rename the cells that do not use it."""


def test_what_is_left_open_is_the_recipes():
    run = planned()
    assert (run.spec.epochs, run.spec.batch_size, run.spec.lr, run.spec.data) == (3, 32, 0.1, "digits")
    assert (run.job.epochs, run.job.batch_size, run.job.policy) == (3, 32, POLICIES["cadence"]())
    assert run.spec.config["train"] == {"epochs": 3, "batch_size": 32, "lr": 0.1}


def test_what_is_said_wins():
    run = planned(train=TrainConfig(epochs=1, lr=1), data=DataConfig(name="mnist", dir="d"), policy={"name": "sync"})
    assert (run.spec.epochs, run.spec.lr, run.spec.data, run.spec.mode) == (1, 1.0, "mnist", "nccl_sync")
    assert run.job.task.args[1].epochs == 1
    assert run.job.task.args[2] == "d"


def test_a_job_travels_to_a_process():
    assert pickle.loads(pickle.dumps(planned().job)).world_size == 2


def test_world_size_is_the_modes_own():
    assert planned().spec.world_size == 2
    assert planned(engine=Choice("solo")).spec.world_size == 1


def test_solo_has_neither_policy_nor_backend():
    spec = planned(engine=Choice("solo")).spec
    assert (spec.mode, spec.policy, spec.backend) == ("solo", None, None)
    other = planned(engine=Choice("solo"), policy={"name": "sync"}, backend=Choice("cpu")).spec
    assert other.run_id == spec.run_id


def test_graph_mode_has_a_policy_and_no_backend():
    spec = planned(engine=Choice("graph"), policy={"name": "sync"}).spec
    assert (spec.mode, spec.policy, spec.backend, spec.world_size) == ("graph_sync", "sync", None, 2)
    other = planned(engine=Choice("graph"), policy={"name": "sync"}, backend=Choice("cpu")).spec
    assert other.run_id == spec.run_id
    windows = planned(engine=Choice("graph")).spec
    assert (windows.mode, windows.config["policy"]["name"]) == ("graph_cadence", "cadence")


def test_the_rate_grows_with_the_ranks_as_the_recipe_says():
    assert planned(world_size=3).job.lr_scale == planned(world_size=3).spec.lr_scale == 2.0


def test_the_ratio_of_the_recipe_can_be_overruled():
    run = planned(world_size=3, train=TrainConfig(lr_scale_ratio=0))
    assert (run.job.lr_scale, run.spec.config["train"]["lr_scale_ratio"]) == (1.0, 0.0)


def test_a_limit_on_gradients_reaches_the_job():
    assert planned().job.max_grad_norm is None
    run = planned(train=TrainConfig(max_grad_norm=5))
    assert (run.job.max_grad_norm, run.spec.config["train"]["max_grad_norm"]) == (5.0, 5.0)


def test_a_step_of_micro_batches_is_one_step():
    run = planned(train=TrainConfig(batch_size=8, accumulate=4))
    assert (run.job.batch_size, run.spec.batch_size, run.job.step.accumulate) == (32, 32, 4)
    assert (run.spec.config["train"]["batch_size"], run.spec.config["train"]["accumulate"]) == (8, 4)
    assert planned(train=TrainConfig(global_batch_size=64, accumulate=4)).spec.config_hash == run.spec.config_hash
    assert planned(train=TrainConfig(accumulate=1, precision="fp32")).spec.config_hash == planned().spec.config_hash


def test_a_run_of_steps_has_one_epoch_unless_it_is_told_otherwise():
    run = planned(train=TrainConfig(steps=12))
    assert (run.job.steps, run.job.epochs, epoch_samples(run.job)) == (12, 1, 12 * run.job.batch_size * 2)
    run = planned(train=TrainConfig(steps=12, epochs=3))
    assert (run.spec.epochs, epoch_samples(run.job)) == (3, 4 * run.job.batch_size * 2)


def test_the_configuration_is_json():
    spec = planned(cluster=ClusterConfig(speeds=[1.0, 0.5])).spec
    assert json.loads(json.dumps(spec.config)) == spec.config


@given(seed=st.integers(0, 2**31 - 1), other=st.integers(0, 2**31 - 1))
def test_the_seed_is_of_the_run_not_of_the_cell(seed, other):
    one, two = planned(seed=seed).spec, planned(seed=other).spec
    assert one.config_hash == two.config_hash
    assert (one.run_id == two.run_id) == (seed == other)
    assert re.fullmatch(rf"w2-s{seed}-[0-9a-f]{{8}}", one.run_id)


@given(output=FOLDERS, flags=st.tuples(st.booleans(), st.booleans(), st.booleans()), folder=FOLDERS)
def test_where_results_go_does_not_change_what_they_are(output, flags, folder):
    force, report, validate = flags
    other = planned(output=output, force=force, report=report, validate=validate, data=DataConfig(dir=folder)).spec
    assert other.run_id == planned().spec.run_id


@pytest.mark.parametrize(
    "change",
    [
        {"world_size": 1},
        {"train": TrainConfig(epochs=2)},
        {"train": TrainConfig(batch_size=16)},
        {"train": TrainConfig(lr=0.2)},
        {"train": TrainConfig(lr_scale_ratio=1.0)},
        {"train": TrainConfig(max_grad_norm=1.0)},
        {"train": TrainConfig(accumulate=2)},
        {"train": TrainConfig(steps=12)},
        {"train": TrainConfig(precision="bf16")},
        {"data": DataConfig(name="mnist")},
        {"policy": {"name": "async"}},
        {"policy": {"name": "cadence", "anchor": 11}},
        {"backend": Choice("cpu")},
        {"model": ModelConfig("resnet_graph")},
        {"model": ModelConfig("mlp", depth=32)},
        {"cluster": ClusterConfig(speeds=[1.0, 0.4])},
        {"cluster": ClusterConfig(device="cpu")},
        {"cluster": ClusterConfig(transport="gloo")},
        {"cluster": ClusterConfig(faults=["1@40:crash"])},
        {"cluster": ClusterConfig(tolerate_loss=False)},
        {"profile": ProfileConfig(steps=10)},
    ],
    ids=str,
)
def test_whatever_changes_the_result_is_another_cell(change):
    assert planned(**change).spec.config_hash != planned().spec.config_hash


def test_a_depth_is_told_apart_where_it_is_said():
    spec = planned(model=ModelConfig("mlp", depth=32)).spec
    assert (spec.depth, spec.config["depth"], spec.config["model"]) == (32, 32, "mlp")
    assert planned().spec.depth is None
    assert "depth" not in planned().spec.config
    with pytest.raises(ValueError, match=r"model\.depth=32: model mlp is of one depth; leave it out"):
        plan(
            replace(BASE, model=ModelConfig("mlp", depth=32)),
            replace(SETUP, depth=None),
            ("digits", "mnist"),
            Machine(2),
        )


def test_saying_the_default_is_saying_nothing():
    train, model = TrainConfig(epochs=3, global_batch_size=64, lr=0.1, lr_scale_ratio=0.5), ModelConfig("mlp", depth=20)
    said = planned(world_size=2, model=model, train=train, policy={"name": "cadence", "anchor": 10})
    assert said.spec.run_id == planned().spec.run_id


def test_a_fault_script_reaches_the_job_in_order_and_every_output():
    run = planned(cluster=ClusterConfig(faults=["1@40:crash", "0@10:slow*3.0"], tolerate_loss=False))
    assert [str(fault) for fault in run.job.faults] == ["0@10:slow*3", "1@40:crash"]
    assert not run.job.tolerate_loss
    assert run.spec.warnings == ("faults on purpose: 0@10:slow*3, 1@40:crash (rank@its step:kind)",)
    other = planned(cluster=ClusterConfig(faults=["0@10:slow*3", "1@40:crash"], tolerate_loss=False))
    assert other.spec.run_id == run.spec.run_id


def test_without_faults_cells_keep_their_names():
    assert planned().spec.config_hash == planned(cluster=ClusterConfig(faults=[], tolerate_loss=True)).spec.config_hash
    assert planned().spec.run_id == NAME


def test_settings_of_the_data_are_of_the_cell():
    text = replace(SETUP.recipes["quick"], data="pydoc", data_options=DataOptions(seq_len=64))
    setup = replace(SETUP, recipes={"quick": text})
    runs = [
        plan(replace(BASE, data=data), setup, DATA, Machine(cores=2))
        for data in (DataConfig(), DataConfig(seq_len=32), DataConfig(seq_len=64), DataConfig(name="digits"))
    ]
    assert len({run.spec.run_id for run in runs}) == 3
    assert runs[0].spec.run_id == runs[2].spec.run_id
    assert [run.spec.config["data"].get("seq_len") for run in runs] == [64, 32, 64, None]
    assert runs[1].job.task.args[1].data_options.seq_len == 32


@pytest.mark.parametrize(("world_size", "source"), [(1, ""), (2, "virtual")])
def test_one_rank_of_the_virtual_engine_trains_in_real_time(world_size: int, source: str) -> None:
    spec = planned(engine=Choice("virtual"), world_size=world_size).spec
    assert (spec.source, any("virtual clock" in line for line in spec.warnings)) == (source, bool(source))


def test_a_recipe_has_the_settings_of_its_own_data_set():
    """They were left out without a word, and all of mnist was trained."""
    few = replace(SETUP.recipes["quick"], data="mnist", data_options=DataOptions(samples=500))
    run = plan(BASE, replace(SETUP, recipes={"quick": few}), DATA, Machine(cores=2))
    assert run.spec.config["data"]["samples"] == run.job.task.args[1].data_options.samples == 500
    other = plan(
        replace(BASE, data=DataConfig(name="digits")), replace(SETUP, recipes={"quick": few}), DATA, Machine(2)
    )
    assert other.job.task.args[1].data_options.samples is None
    strange = replace(few, data_options=DataOptions(classes=5))
    with pytest.raises(ValueError, match="means nothing to data set mnist"):
        plan(BASE, replace(SETUP, recipes={"quick": strange}), DATA, Machine(cores=2))


@pytest.mark.parametrize(("asked", "trained"), [(None, 56), (20, 20), (32, 32)])
def test_the_depth_of_a_recipe_is_kept_unless_another_is_asked_for(asked: int | None, trained: int):
    """The model's default was trained in its place."""
    deep = replace(SETUP, depth=20, recipes={"quick": replace(SETUP.recipes["quick"], depth=56)})
    run = plan(replace(BASE, model=ModelConfig("mlp", depth=asked)), deep, DATA, Machine(cores=2))
    assert run.spec.depth == run.job.task.args[1].depth == trained

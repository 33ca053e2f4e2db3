"""What the plan refuses, in one line, and what it warns of."""

from __future__ import annotations

import re
from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import pytest

from bench.config.config import Choice, ClusterConfig, DataConfig, ProfileConfig, TrainConfig
from bench.config.config_checks import Machine
from bench.config.link_checks import connects_any
from bench.config.plan import plan
from bench.models.data import DATA
from ddp.core.network.links import parse
from tests.bench.conftest import Bench
from tests.bench.planned import BASE, SETUP, planned


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"world_size": 0}, "between 1 and 64"),
        ({"world_size": -1}, "between 1 and 64"),
        ({"world_size": 65}, "between 1 and 64"),
        ({"world_size": 2, "engine": Choice("solo")}, "leave it out"),
        ({"engine": Choice("graph"), "policy": {"name": "async"}}, "choose one of sync, cadence"),
        ({"engine": Choice("graph"), "cluster": ClusterConfig(faults=["1@40:crash"])}, "use mode=nccl_sync"),
        ({"engine": Choice("elch")}, "did you mean 'elche'"),
        ({"backend": Choice("ncll")}, "did you mean 'nccl'"),
        ({"policy": {"name": "cadense"}}, "did you mean 'cadence'"),
        ({"policy": {"name": "cadence", "ancor": 1}}, "did you mean 'anchor'"),
        ({"policy": {"name": "cadence", "anchor": 0}}, "anchor=1 or more"),
        ({"recipe": "quik"}, "did you mean 'quick'"),
        ({"data": DataConfig(name="minst")}, "did you mean 'mnist'"),
        ({"train": TrainConfig(epochs=0)}, "whole number from 1 to 1000000"),
        ({"train": TrainConfig(batch_size=0)}, "whole number from 1 to 1000000000"),
        ({"train": TrainConfig(lr=0.0)}, "train.lr=0.0 must be a finite number"),
        ({"train": TrainConfig(lr=float("nan"))}, "train.lr=nan must be a finite number"),
        ({"train": TrainConfig(lr_scale_ratio=-1.0)}, "0: the same rate for any world_size"),
        ({"train": TrainConfig(lr_scale_ratio=float("inf"))}, "0: the same rate for any world_size"),
        ({"train": TrainConfig(max_grad_norm=0.0)}, "leave it out for no limit"),
        ({"train": TrainConfig(max_grad_norm=float("nan"))}, "leave it out for no limit"),
        ({"train": TrainConfig(accumulate=0)}, "train.accumulate=0 must be a whole number from 1"),
        ({"train": TrainConfig(steps=0)}, "train.steps=0 must be a whole number from 1"),
        ({"train": TrainConfig(steps=10, epochs=3)}, "cannot be cut into 3 epochs of equally many steps: 9 can"),
        ({"train": TrainConfig(global_batch_size=20, accumulate=4)}, "2 ranks in 4 micro-batches: 16 can"),
        ({"train": TrainConfig(precision="fp8")}, "train.precision='fp8' is not one of fp32, bf16, fp16"),
        ({"train": TrainConfig(precision="fp16"), "backend": Choice("torch_local_sgd")}, "choose one of solo, "),
        ({"seed": -1}, "0 or more"),
        ({"cluster": ClusterConfig(speeds=[1.0])}, "1 values for 2 ranks"),
        ({"cluster": ClusterConfig(speeds=[1.0, 0.0])}, "from 0.01 to 1"),
        ({"cluster": ClusterConfig(speeds=[1.0, 1.5])}, "from 0.01 to 1"),
        ({"cluster": ClusterConfig(speeds=[1.0, float("nan")])}, "from 0.01 to 1"),
        ({"cluster": ClusterConfig(device="gpu")}, "cluster.device"),
        ({"cluster": ClusterConfig(device="cuda")}, "no GPU"),
        ({"cluster": ClusterConfig(deadline_s=0.0)}, "from 0.1 to"),
        *[({"cluster": ClusterConfig(bind=bind)}, "such as 10.0.0.0/24 or eth0") for bind in ("", "10.0.0.300", "x/y")],
        ({"cluster": ClusterConfig(transport="memry")}, "did you mean 'memory'"),
        ({"cluster": ClusterConfig(transport="nccl")}, "needs a GPU for every rank"),
        ({"train": TrainConfig(global_batch_size=33)}, "32 can"),
        ({"train": TrainConfig(global_batch_size=0)}, "2 can"),
        ({"train": TrainConfig(global_batch_size=64, batch_size=32)}, "give one of them"),
        ({"cluster": ClusterConfig(faults=["2@40:crash"])}, "ranks are 0 to 1"),
        ({"cluster": ClusterConfig(faults=["1@40"])}, "of the form RANK@STEP:KIND"),
        ({"cluster": ClusterConfig(faults=["1@40:vanish"])}, "is not one of crash, raise"),
        ({"cluster": ClusterConfig(faults=["0@4:crash"]), "world_size": 1}, "use world_size=2 or more"),
        ({"profile": ProfileConfig(steps=-1)}, "not between 0 and 100"),
        ({"profile": ProfileConfig(steps=101)}, "not between 0 and 100"),
        ({"profile": ProfileConfig(steps=5), "engine": Choice("graph")}, "threads of one process"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_in_one_line(change, remedy):
    with pytest.raises(ValueError, match=re.escape(remedy)) as caught:
        planned(**change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("gpus", "device", "transport", "fits"),
    [
        (2, "auto", "nccl", True),
        (1, "cuda", "nccl", False),
        (1, "auto", "nccl", False),
        (1, "cuda", "gloo", True),
        (2, "auto", "gloo", True),
        (1, "cuda", "memory", False),
        (2, "auto", "memory", False),
        (1, "auto", "memory", True),
        (2, "cpu", "memory", True),
    ],
)
def test_a_transport_suits_where_ranks_are(gpus, device, transport, fits):
    with nullcontext() if fits else pytest.raises(ValueError, match="needs"):
        planned(gpus=gpus, cluster=ClusterConfig(device=device, transport=transport))


def test_who_cannot_share_a_gpu_is_refused():
    shared = {"cluster": ClusterConfig(device="cuda"), "policy": {"name": "sync"}}
    with pytest.raises(ValueError, match=r"torch_fsdp needs a GPU for every rank; use device=cpu"):
        planned(gpus=1, backend=Choice("torch_fsdp"), **shared)
    assert planned(gpus=2, backend=Choice("torch_fsdp"), **shared).spec.world_size == 2
    assert planned(gpus=1, backend=Choice("torch_ddp"), **shared).spec.world_size == 2


def test_profiling_is_of_one_host_and_said():
    run = planned(profile=ProfileConfig(steps=10))
    assert run.job.profile_steps == 10
    assert run.spec.config["profile"] == {"steps": 10}
    assert "profile" not in planned().spec.config
    assert "torch.profiler slows 10 steps" in run.spec.warnings[0]
    with pytest.raises(ValueError, match=r"profile\.steps on 2 hosts"):
        plan(replace(BASE, profile=ProfileConfig(steps=1)), SETUP, ("digits",), Machine(cores=2, hosts=2))


def test_a_reader_is_told_of_what_distorts():
    assert planned().spec.warnings == ()
    assert "4 ranks share 2 cores" in planned(world_size=4).spec.warnings[0]
    assert planned(world_size=4, gpus=4).spec.warnings == ()
    assert "2 ranks share 1 GPU" in planned(gpus=1, cluster=ClusterConfig(device="cuda")).spec.warnings[0]
    emulated = planned(cluster=ClusterConfig(speeds=[1.0, 0.4])).spec
    assert "1/0.4" in emulated.warnings[0]
    assert emulated.speeds == (1.0, 0.4)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (DataConfig(seq_len=8), "data.seq_len means nothing to data set digits"),
        (DataConfig(name="pydoc", seq_len=0), "data.seq_len=0 must be a whole number from 1"),
        (DataConfig(name="pydoc", seq_len=2**70), "must be a whole number from 1"),
        (DataConfig(shape=[3, 32]), r"data.shape=\[3,32\] must be channels, height and width"),
        (DataConfig(shape=[3, -1, 32]), "data.shape=-1 must be"),
        (DataConfig(path=""), "data.path='' is no path"),
    ],
)
def test_settings_of_the_data_that_cannot_be(data, said):
    with pytest.raises(ValueError, match=said) as caught:
        plan(replace(BASE, data=data), SETUP, DATA, Machine(cores=2))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("logger=tensorbord", "did you mean 'tensorboard'"),
        ("cluster.bind=10.0.0.300", "no address, network or interface"),
        ("output=''", "is no path"),
    ],
)
def test_a_plan_refuses_what_the_run_would_refuse(
    bench: Bench, capsys: pytest.CaptureFixture[str], word: str, why: str
) -> None:
    assert bench("model=mlp", "mode=solo", word) == 2
    assert why in capsys.readouterr().err
    assert bench("plan", "model=mlp", "mode=solo", word) == 2
    assert re.search(f"impossible: .*{why}", capsys.readouterr().out)


@pytest.mark.parametrize(
    "ranks", ["", "1:", "0-1:", "0_3:", "0+0:", "0+0_2:", "0-3+1:", "1+0-3:", "2+2+2:", "0+0+1:", "0-1+2-3:"]
)
def test_a_link_is_refused_if_no_pair_of_ranks_uses_it(ranks):
    (rule,) = parse(f"{ranks}ib", 4).rules
    assert connects_any(rule) == any(rule.connects(a, b) for a, b in combinations(range(4), 2))

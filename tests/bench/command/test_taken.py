"""Settings that cannot be, or that nothing would come of: one line with the remedy, before anything is trained."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from ddp.backends import BACKENDS
from tests.bench import fake_engine
from tests.bench.conftest import Bench
from tests.slow import every

HUGE = "10000000000000000000000"
ASYNC, SOLO = "mode=nccl_async", "mode=solo"
OUTER = "averaging.outer=momentum"
installed = pytest.mark.skipif("torchft" not in BACKENDS, reason="torchft is not installed")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        # Whole numbers that no record holds, or that no run comes to the end of.
        (f"train.epochs={HUGE}", f"train.epochs={HUGE} must be a whole number from 1 to 1000000"),
        ("train.epochs=1000001", "from 1 to 1000000"),
        (f"train.batch_size={HUGE}", "must be a whole number from 1 to 1000000000"),
        (f"train.global_batch_size={HUGE}", f"train.global_batch_size={HUGE} must be 2000000000 or less"),
        (f"world_size={HUGE}", "is not between 1 and 64"),
        (f"seed={HUGE}", "must be 0 or more, and below 2**31"),
        ("seed=9223372036854775808", "must be 0 or more, and below 2**31"),
        ("seed=-1", "must be 0 or more, and below 2**31"),
        ("seed=nan", "seed=nan"),
        (f"loader.prefetch={HUGE}", "must be a whole number from 1 to 1000"),
        (f"checkpoint.every={HUGE}", "must be a whole number from 0 (none) to 1000000000"),
        (f"profile.steps={HUGE}", "is not between 0 and 100"),
        (f"{ASYNC} policy.anchor={HUGE}", "is more steps than there are; use 1000000000 or less"),
        (f"{ASYNC} policy.max_anchor={HUGE}", "is more steps than there are; use 1000000000 or less"),
        (f"{ASYNC} policy.max_batch_diff={HUGE}", "is more steps than there are; use 1000000000 or less"),
        (f"{ASYNC} policy.max_overshoot={HUGE}", "must be from 0 to 1000000000"),
        # Numbers that are none, or have no end.
        ("train.lr=1e308", "train.lr=1e+308 must be a finite number from 1e-12 to 1e+06"),
        (f"train.lr={HUGE}", "from 1e-12 to 1e+06"),
        ("train.lr_scale_ratio=1e308", "from 0 to 1e+06; 0: the same rate for any world_size"),
        ("train.max_grad_norm=1e308", "leave it out for no limit"),
        ("cluster.deadline_s=inf", "cluster.deadline_s=inf must be a finite number from 0.1 to 86400"),
        ("cluster.step_s=-1", "cluster.step_s=-1.0 must be a finite number from 0.0001 to 86400"),
        ("mode=graph_sync cluster.step_s=0.01", "cluster.step_s with mode=graph_sync, whose ranks are of one process"),
        ("mode=virtual_nccl_sync cluster.step_s=0.01", "set virtual.step_s"),
        ("checkpoint.spacing_s=1e308", "must be from 0 to 1e+07 seconds"),
        ("checkpoint.spacing_s=nan", "must be from 0 to 1e+07 seconds"),
        (f"{ASYNC} policy.divergence_threshold=inf", "at most 1e+12; no_divergence_guard=true for none"),
        (f"{ASYNC} policy.divergence_threshold=nan", "no_divergence_guard=true for none"),
        (f"{ASYNC} policy.overhead_target=nan", "must lie between 0.01 and 0.5"),
        ("averaging.elastic=nan", "above 0 and at most 1"),
        (f"{OUTER} averaging.outer_lr=1e308", "at most 1e+06, or null for the optimizer's default"),
        (f"{OUTER} averaging.outer_lr=nan", "at most 1e+06, or null for the optimizer's default"),
        (f"{OUTER} averaging.outer_momentum=nan", "must be in [0, 1)"),
        ("averaging.gamma=nan", "gamma=nan must be 0 or more"),
        # Lists of the wrong length, or of parts that are not the whole.
        (f"{ASYNC} policy.partition_ratios=[0.5,0.6]", "are 1.1 of the work, not 1; write [0.4545, 0.5455]"),
        (f"{ASYNC} policy.partition_ratios=[7,3]", "are 10 of the work, not 1; write [0.7, 0.3]"),
        (f"{ASYNC} policy.partition_ratios=[]", "must hold a positive number"),
        (f"{ASYNC} policy.partition_ratios=[1.0]", "2 ranks"),
        (f"{ASYNC} policy.partition_ratios=[nan,1]", "must hold a positive number"),
        (f"{ASYNC} policy.speed_hint=[1,0.5,0.2]", "2 ranks"),
        (f"{ASYNC} policy.speed_hint=[inf,1]", "must hold a positive number"),
        ("cluster.speeds=[1.0]", "cluster.speeds has 1 values for 2 ranks"),
        ("cluster.speeds=[-1,1]", "must be a finite number from 0.01 to 1"),
        # Folders without a name.
        ("output=", "output='' is no path: name one, or leave output out"),
        ("\"output=' '\"", "output=' ' is no path"),
        ("data.dir=''", "data.dir='' is no path"),
        ("resume=''", "resume='' is no path"),
        # What goes wrong where nothing can.
        ("cluster.faults=[1@999999:crash]", "fault 1@999999:crash cannot come: "),
        (f"cluster.faults=[1@{HUGE}:slow]", "cannot come: "),
        ("mode=nccl_sync cluster.faults=[0@5:crash,1@999999:raise]", "fault 1@999999:raise cannot come"),
        ("cluster.faults=[1@5:crash,1@9:stall]", "fault 1@9:stall cannot come: 1@5:crash ends that rank"),
        ("cluster.restart=1 'cluster.faults=[1@5:crash,1@9:stall,1@11:slow]'", "cannot come: 1@9:stall ends that rank"),
        ("cluster.restart=always 'cluster.faults=[1@5:crash,1@5:crash]'", "fault 1@5:crash cannot come"),
        ("mode=nccl_sync 'cluster.faults=[1@5:link]'", "no collective goes over links here; set cluster.links"),
        ("mode=cpu_sync cluster.links=30ms/1gbit 'cluster.faults=[1@5:link]'", "no collective goes over links here"),
        (f"cluster.faults=[1@5:slow*{'9' * 400}]", "steps take 1 to 1e+06 times as long"),
        ("cluster.faults=[2@5:crash]", "ranks are 0 to 1"),
        (f"{SOLO} cluster.faults=[0@5:crash]", "use world_size=2 or more"),
        ("mode=graph_sync cluster.faults=[1@5:crash]", "use mode=nccl_sync"),
        # Links that connect nothing.
        ("'cluster.links=[1:wan_1g_30ms]'", "cluster.links: link '1:wan_1g_30ms' connects no two ranks"),
        ("'cluster.links=[ib,0+0:wan_1g_30ms]'", "link '0+0:wan_1g_30ms' connects no two ranks"),
        ("'cluster.links=[tree]'", "cluster.links: tree is an algorithm without a link"),
        ("'cluster.links=[ring,tree]'", "ring,tree is an algorithm without a link"),
        # What the mode cannot do.
        ("mode=torch_fsdp checkpoint.every=1", "mode=torch_fsdp makes no checkpoints: leave out checkpoint.*"),
        ("mode=torch_zero1 checkpoint.unit=epochs", "mode=torch_zero1 makes no checkpoints: leave out checkpoint.*"),
        ("mode=torch_fsdp cluster.restart=1", "choose nccl_*, cpu_*, zero* or torch_ddp"),
        ("mode=nccl_sync world_size=1 cluster.restart=1", "with world_size=2 or more"),
        ("mode=virtual_nccl_cadence cluster.restart=1", "which makes no checkpoints: choose nccl_*"),
        ("mode=virtual_nccl_cadence cluster.absent=1", "with mode=virtual_nccl_cadence: choose nccl_* or cpu_*"),
        ("mode=virtual_cpu_async cluster.spares=1", "with mode=virtual_cpu_async: choose nccl_* or cpu_*"),
        ("mode=virtual_nccl_sync cluster.compare=5", "cluster.compare is for mode=nccl_sync"),
        pytest.param("mode=torchft_sync cluster.compare=5", "cluster.compare is for mode=nccl_sync", marks=installed),
    ],
)
def test_what_cannot_be_is_one_line(quiet: Bench, capsys: pytest.CaptureFixture[str], words: str, said: str) -> None:
    assert quiet("model=mlp", *shlex.split(words)) == 2
    error = capsys.readouterr().err
    assert error.startswith("bench: ")
    assert said in error
    assert error.count("\n") == 1
    assert not fake_engine.runs
    assert not Path("runs").exists()


@pytest.mark.parametrize("mode", every(2, ["nccl_sync", "nccl_cadence", "cpu_async", "zero1", "torch_ddp"]))
def test_a_fault_at_the_last_step_that_can_come_is_taken(
    quiet: Bench, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    words = ("model=mlp", f"mode={mode}", "train.epochs=2")
    assert quiet(*words, "cluster.faults=[1@1000000:slow]") == 2
    found = re.search(r"at most (\d+) steps of a rank", capsys.readouterr().err)
    assert found is not None
    most = int(found[1])
    assert quiet(*words, f"cluster.faults=[1@{most}:slow]") == 2
    assert quiet(*words, f"cluster.faults=[1@{most - 1}:slow]") == 0


@pytest.mark.parametrize("verb", ["plan", ""])
def test_a_plan_refuses_what_a_run_refuses(quiet: Bench, bench: Bench, verb: str) -> None:
    words = ("model=mlp", "mode=torch_fsdp", "checkpoint.every=1")
    assert (bench(verb, *words) if verb else quiet(*words)) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("mode=solo policy.anchor=5", "policy.anchor has no effect in mode=solo: it has no policy"),
        ("mode=solo cluster.links=[home_100m]", "cluster.links has no effect in mode=solo: it has no backend"),
        ("mode=zero1 backend=nccl", "backend has no effect in mode=zero1: it has its own"),
        ("mode=zero1 policy.anchor=4", "policy.anchor has no effect in mode=zero1: it has no policy"),
        ("mode=zero1 averaging.gamma=0", "averaging.gamma has no effect in mode=zero1: it averages no replicas"),
        ("mode=torch_ddp policy=sync", "policy has no effect in mode=torch_ddp: it has no policy"),
        ("mode=graph_sync averaging.gamma=0", "averaging.gamma has no effect in mode=graph_sync: it has no backend"),
        ("mode=nccl_sync averaging.gamma=0", "averages gradients inside the step"),
        ("mode=cpu_sync averaging.wire=float32", "averaging.wire has no effect in mode=cpu_sync: it has no coll"),
        ("mode=cpu_sync cluster.transport=gloo", "cluster.transport has no effect in mode=cpu_sync"),
        ("mode=solo cluster.tolerate_loss=false", "no rank of one process can be lost alone"),
        ("mode=graph_sync cluster.deadline_s=9", "no rank of one process can be lost alone"),
        ("mode=nccl_cadence policy.guard=none policy.divergence_threshold=1", "only policy.guard=level goes by it"),
        ("policy.no_divergence_guard=true policy.divergence_threshold=1", "only policy.guard=level goes by it"),
        ("policy.partition_ratios=[0.5,0.5] policy.speed_hint=[1,0.5]", "policy.partition_ratios fixes the parts"),
        (
            "mode=virtual_nccl_sync world_size=1 virtual.step_s=9",
            "virtual.step_s has no effect in mode=virtual_nccl_sync",
        ),
        ("loader.kind=resident loader.prefetch=3", "loader.kind=resident reads nothing ahead"),
        ("checkpoint.every=0 checkpoint.unit=averages", "checkpoint.every=0 makes no checkpoints"),
    ],
)
def test_what_means_nothing_to_the_mode_is_told(
    quiet: Bench, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    assert quiet("model=mlp", "train.epochs=1", *words.split()) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert len(notes) == 1
    assert said in notes[0]


@pytest.mark.parametrize(
    "mode", ["solo", "nccl_sync", "nccl_cadence", "cpu_async", "graph_sync", "zero1", "torch_fsdp"]
)
def test_nothing_is_told_of_settings_that_nobody_said(
    quiet: Bench, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    assert quiet("model=mlp", f"mode={mode}", "train.epochs=1", "checkpoint.every=0", "seed=1") == 0
    assert "means nothing" not in capsys.readouterr().out

"""The command as its user meets it: what it writes, prints and returns, with an engine that trains nothing."""

from __future__ import annotations

import gc
import json
import shlex
from pathlib import Path

import pytest
from hydra.core.override_parser.types import Quote, QuotedString

from bench.base.garbage import short_collections
from bench.command import cli
from bench.models import MODELS
from bench.results.rerun_command import command
from bench.results.runfolder import find_runs
from bench.runner import launch
from tests.bench import fake_engine
from tests.bench.command.cli_words import SOLO, folders
from tests.bench.report_parts import undrawn as undrawn


def test_a_run_leaves_a_whole_folder(bench, capsys):
    assert bench(*SOLO) == 0
    (run,), problems = find_runs(Path("runs"))
    assert problems == []
    assert run.metrics.status == "ok"
    assert {"config.json", "metrics.json", "events.jsonl", "timeline.json", "training.log", "report.md"} <= {
        file.name for file in run.path.iterdir()
    }
    assert run.config["config_hash"] == run.metrics.config_hash
    assert run.config["train"]["epochs"] == 2
    said = capsys.readouterr()
    for word in ("accuracy", "speed", "computing", "verdict", "report", str(run.path), "epoch 2/2"):
        assert word in said.out
    assert said.err == ""


def test_events_are_in_the_order_of_time(quiet):
    quiet(*SOLO)
    (run,), _ = find_runs(Path("runs"))
    lines = [json.loads(line) for line in (run.path / "events.jsonl").read_text().splitlines()]
    assert [line["at"] for line in lines] == sorted(line["at"] for line in lines)
    assert sum(line["type"] == "Slice" and line["kind"] == "evaluate" for line in lines) == 2


def test_nothing_but_results_is_left(bench, tmp_path):
    bench(*SOLO)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]
    assert not list(Path("runs").rglob(".*"))


@pytest.mark.parametrize(
    "words",
    [
        "mode=cpu_async cluster.speeds=[1.0,0.5] policy.max_overshoot=4 train.lr=0.5",
        "mode=nccl_cadence cluster.links=[4ms/100mbit,0-1:wan_1g_30ms/jitter2ms] cluster.transport=gloo cluster.device=cpu",
        "mode=nccl_sync cluster.compare=20 cluster.spares=1 cluster.restart=2 train.accumulate=2",
        "mode=nccl_sync world_size=3 cluster.absent=1 train.precision=bf16 profile.steps=3 cluster.tolerate_loss=true",
        "mode=virtual_nccl_cadence world_size=3 virtual.step_s=0.5 virtual.steps=lognormal:0.1 virtual.path=sequential",
        "mode=cpu_sync cluster.tolerate_loss=false averaging.gamma=0.5 loader.kind=streaming cluster.step_s=0.002",
    ],
)
def test_the_folder_alone_tells_how_to_run_the_cell_again(quiet, words):
    quiet("model=mlp", "seed=3", *words.split())
    (run,), _ = find_runs(Path("runs"))
    quiet(*shlex.split(command([run]))[3:], "output=again")
    assert folders("again") == folders()


def test_a_single_run_runs_again_and_a_sweep_does_not(quiet, capsys):
    for _ in range(2):
        assert quiet(*SOLO) == 0
    assert len(fake_engine.runs) == 2
    assert quiet("-m", *SOLO, "seed=0,1") == 0
    assert [job.seed for job in fake_engine.runs[2:]] == [1]
    assert "skipped" in capsys.readouterr().out
    assert quiet("-m", *SOLO, "seed=0,1", "force=true") == 0
    assert len(fake_engine.runs) == 5


def test_while_ranks_wait_the_garbage_collector_looks_at_nothing_old(quiet, monkeypatch):
    """A full collection took 0.2 s, in which the process that all ranks talk to stood still."""
    monkeypatch.setattr(launch, "short_collections", short_collections)
    monkeypatch.setenv("BENCH_FAKE", "watch")
    gc.unfreeze()
    before = len(gc.get_objects())
    assert quiet(*SOLO) == 0
    assert fake_engine.watched[0] < before / 10
    assert len(gc.get_objects()) >= before / 2, "and afterwards at all again"
    gc.freeze()


def test_a_sweep_is_a_cell_each(bench, undrawn, capsys, tmp_path):
    assert bench("-m", "model=glob(l*)", "mode=solo,nccl_sync", "train.epochs=2") == 0
    assert len(folders()) == 2 * sum(name.startswith("l") for name in MODELS) >= 4
    said = capsys.readouterr().out
    assert said.count("verdict") == 1
    assert "reports/runs/report.md" in said
    assert (tmp_path / "reports" / "runs" / "report.md").exists()


def test_policy_and_backend_make_the_mode(quiet):
    assert quiet("-m", "model=mlp", "policy=sync,async", "backend=nccl,cpu", "world_size=1,2", "train.epochs=1") == 0
    assert len(folders()) == 8
    assert {folder.split("/")[1] for folder in folders()} == {"nccl_sync", "nccl_async", "cpu_sync", "cpu_async"}


def test_report_and_validate_read_what_a_run_wrote(bench, quiet, capsys):
    quiet(*SOLO)
    assert bench("report", "runs", "--out", "there") == 0
    assert Path("there/report.md").exists()
    Path("none").mkdir()
    assert bench("validate", "runs", "--baseline", "none") == 4
    assert "NO_BASELINE" in capsys.readouterr().out


def test_a_baseline_is_written_from_five_seeds(bench, quiet, capsys):
    quiet("-m", *SOLO, "seed=range(0,5)")
    assert bench("baseline", "propose", "runs", "--dirty") == 0
    assert "5 proposals" not in capsys.readouterr().out
    assert bench("baseline", "accept", "--baseline", "mine") == 0
    assert "to judge by them: python -m bench validate RUNS --baseline mine" in capsys.readouterr().out
    assert not Path("proposals").exists(), "accepted, it is none any more"
    assert bench("baseline", "propose", "runs", "--dirty") == 0
    assert bench("baseline", "diff", "mine", "proposals") == 0
    assert bench("baseline", "audit", "mine") == 0
    assert "provisional" in capsys.readouterr().out
    assert bench("validate", "runs", "--baseline", "mine") == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]


def test_list_shows_every_member(bench, capsys):
    assert bench("list") == 0
    said = capsys.readouterr().out
    for word in ("resnet_graph", "nccl_cadence", "overhead_target", "solo", "smoke"):
        assert word in said
    assert bench("list", "recipes") == 0
    assert "mlp: quick" in capsys.readouterr().out


def test_doctor_tells_what_runs_here(bench, capsys):
    assert bench("doctor") == 0
    said = capsys.readouterr().out
    for word in ("torch", "gloo", "shared memory", "data digits", "nccl_async"):
        assert word in said


def test_verbs_are_documented():
    judging = {
        "report",
        "validate",
        "more",
        "compare",
        "baseline",
        "rerun",
        "replay",
        "audit",
        "prove",
        "goodput",
        "faults",
        "join",
        "explain",
        "predict",
        "timeline",
        "dashboard",
    }
    assert set(cli.VERBS) == {"run", "plan", "list", "doctor", "status", "cancel"} | judging


@pytest.mark.parametrize("name", ["a=b", "it's, [ü]—x"])
def test_results_lie_where_they_were_sent_whatever_the_folder_is_called(quiet, tmp_path, monkeypatch, name):
    monkeypatch.setenv("HOME", str(tmp_path))
    said = name if "," not in name else QuotedString(name, Quote.double).with_quotes()
    assert quiet("-m", *SOLO, "seed=0,1", f"output={said}") == 0
    assert quiet(*SOLO, "output=~/home") == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "home"])
    assert len(folders(name)) == 2

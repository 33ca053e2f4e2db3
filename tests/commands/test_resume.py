"""`resume=RUN_FOLDER`: commands as processes, killed with all that they started, and gone on with."""

from __future__ import annotations

import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from bench.results.cells import cells
from bench.results.runfolder import METRICS, find_runs, read_records
from bench.validate.checks import CHECKS
from bench.validate.evidence.consistency import legible
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict
from ddp.checkpoint.checkpoint import bound, unbound
from ddp.core.messages.events import Progress, Resumed
from tests.commands.killed_runs import QUIET, SMALL, command, in_model, killed, place
from tests.slow import slow
from tests.warm import ROOT

RECORDED = (
    *("visits", "data", "average", "agreement", "idle"),
    *("windows", "evaluation", "breakdown", "peak_memory", "ledger"),
)
"""The checks that read what ranks recorded."""


def proof(folder: Path) -> set[int]:
    """How often a sample of an epoch is in the model, by `events.jsonl`; what else is recorded fits it."""
    counts = in_model(folder)
    (run,), _ = find_runs(folder)
    legible(run)  # its result follows from what is recorded, before and after it was killed
    (cell,) = cells([run])
    verdicts = {name: CHECKS[name](Case(cell, None)) for name in RECORDED}
    assert [v.line for v in verdicts.values() if isinstance(v, Verdict) and v.name != "PASS"] == []
    assert isinstance(verdicts["data"], Verdict)
    assert len(counts) == run.metrics.samples
    return set(counts.values())


def trained(folder: Path, since: float = -math.inf) -> int:
    """Samples that ranks reported as trained from a time on."""
    records = (record for record in read_records(folder) if isinstance(record, Progress))
    return sum(record.samples for record in records if record.at > since)


@pytest.mark.parametrize("mode", ["nccl_sync", *slow("zero3", "solo", "cpu_sync", "graph_sync", "torch_ddp")])
def test_a_synchronous_run_that_was_killed_ends_as_if_it_had_not_been(warm, tmp_path, mode):
    words = (*SMALL, f"mode={mode}", "train.epochs=8", "checkpoint.every=7", "checkpoint.unit=averages")
    hidden = killed(warm, tmp_path, *words, checkpoint=2)
    reported = trained(hidden)
    assert command(warm, tmp_path, *words, "output=whole", "audit=false")[0] == 0
    code, out, err = command(warm, tmp_path, f"resume={place(hidden)}", *QUIET)
    assert (code, err) == (0, ""), out
    (whole,), _ = find_runs(tmp_path / "whole")
    (cut,), _ = find_runs(tmp_path / "runs")
    bits = mode != "graph_sync"  # its shares follow the speeds of this machine, and so do its last digits
    if bits:
        assert cut.metrics.params_sha256 == whole.metrics.params_sha256
        assert [row.eval for row in cut.metrics.epochs] == [row.eval for row in whole.metrics.epochs]
    assert cut.metrics.samples == whole.metrics.samples
    assert [row.samples for row in cut.metrics.epochs] == [row.samples for row in whole.metrics.epochs]
    losses = [row.train_loss for row in cut.metrics.epochs]
    assert losses == pytest.approx([row.train_loss for row in whole.metrics.epochs], rel=1e-6 if bits else 1e-3)
    seconds = [row.seconds for row in cut.metrics.epochs]
    assert seconds == sorted(seconds)
    assert cut.metrics.resumed is not None
    assert (cut.metrics.resumed.source, cut.metrics.resumed.times) == (str(hidden), 1)
    assert cut.path == place(hidden)
    assert [path.name for path in cut.path.parent.iterdir()] == [cut.path.name], "what was gone on from is gone"
    assert not (cut.path / "checkpoints").exists()
    (resumed,) = (record for record in read_records(cut.path) if isinstance(record, Resumed))
    assert trained(cut.path) == whole.metrics.samples == resumed.samples + trained(cut.path, since=resumed.at)
    assert resumed.again == reported - resumed.samples, "it was 0, unless a rank's loss had ended the run"
    assert cut.metrics.goodput is not None
    assert (cut.metrics.goodput.parts.repeated > 0) == (resumed.again > 0)
    if mode != "solo":
        assert proof(cut.path) == {1}


@pytest.mark.parametrize(
    "mode", [*slow("nccl_async", "cpu_cadence"), "graph_cadence"]
)  # `make resume` has the other pairs
def test_any_run_that_was_killed_trains_every_sample_once(warm, tmp_path, mode):
    words = (
        *SMALL,
        f"mode={mode}",
        "train.epochs=10",
        "checkpoint.unit=averages",
        "policy.anchor=2",
        "policy.max_anchor=2",
    )
    hidden = killed(warm, tmp_path, *words, checkpoint=3)
    code, out, err = command(warm, tmp_path, f"resume={hidden}", *QUIET)
    assert (code, err) == (0, ""), out
    (cut,), _ = find_runs(tmp_path)
    assert proof(cut.path) == {1}
    assert len(cut.metrics.epochs) == 10
    assert cut.metrics.final.eval > 0.9


@pytest.mark.slow
def test_gone_on_twice_the_last_time_from_a_cold_start(warm, tmp_path):
    words = (*SMALL, "mode=cpu_sync", "train.epochs=6", "checkpoint.every=5", "checkpoint.unit=averages")
    first = killed(warm, tmp_path, *words, checkpoint=2)
    latest = max(int(path.name) for path in first.glob("checkpoints/[0-9]*"))
    killed(warm, tmp_path, f"resume={place(first)}", *QUIET, checkpoint=latest + 2)
    cold = [sys.executable, "-m", "bench", f"resume={place(first)}", *QUIET]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    assert subprocess.run(cold, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, timeout=110).returncode == 0
    (cut,), _ = find_runs(tmp_path / "runs")
    assert cut.metrics.resumed is not None
    assert cut.metrics.resumed.times == 2
    assert proof(cut.path) == {1}
    assert command(warm, tmp_path, *words, "output=whole", "audit=false")[0] == 0
    (whole,), _ = find_runs(tmp_path / "whole")
    assert cut.metrics.params_sha256 == whole.metrics.params_sha256
    code, out, _ = command(warm, tmp_path, f"resume={cut.path}", *QUIET)
    assert code == 0
    assert "already finished" in out
    assert json.loads((cut.path / METRICS).read_text())["resumed"]["times"] == 2
    code, _, err = command(warm, tmp_path, f"resume={cut.path}", "model=lenet", *QUIET)
    assert (code, err.count("\n")) == (2, 1)
    assert "model=lenet contradicts the run, which has mlp" in err


@pytest.mark.parametrize("engine", [*slow("solo"), "cpu_cadence"])
def test_a_checkpoint_of_another_model_is_one_line_and_nothing_is_lost(warm, tmp_path, engine):
    words = (*SMALL, f"mode={engine}", "train.epochs=20")
    hidden = killed(warm, tmp_path, *words, checkpoint=1)
    for path in (hidden / "checkpoints").glob("[0-9]*"):
        held = torch.load(path / "model.pt", weights_only=True)
        torch.save(held | {"tensors": [torch.zeros(3)], "kept": [], "state_dict": {}}, path / "model.pt")
        content = (path / "model.pt").read_bytes()
        entry = ["model.pt", len(content), hashlib.sha256(content).hexdigest()]
        body = msgspec.msgpack.decode(unbound((path / "books").read_bytes()))
        body["files"] = [entry if file[0] == "model.pt" else file for file in body["files"]]
        (path / "books").write_bytes(bound(msgspec.msgpack.encode(body)))
    before = {path: path.read_bytes() for path in hidden.rglob("*") if path.is_file()}
    code, _, err = command(warm, tmp_path, f"resume={hidden}", *QUIET)
    assert code == 2
    assert err.count("\n") == 1
    assert "not those of this model" in err
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("mode", "before", "now"), [("nccl_sync", 3, 2), *slow(("zero2", 2, 3), ("cpu_async", 2, 3))])
def test_a_run_goes_on_with_another_number_of_ranks(warm, tmp_path, mode, before, now):
    """As a run of its own, whose results, checks and audit are right; the one before is not touched."""
    words = (*SMALL[:2], *SMALL[3:], "train.batch_size=24", f"mode={mode}", f"world_size={before}", "train.epochs=12")
    words = (*words, "cluster.step_s=0.002")
    hidden = killed(warm, tmp_path, *words, "checkpoint.every=5", "checkpoint.unit=averages", checkpoint=1)
    code, out, err = command(warm, tmp_path, f"resume={place(hidden)}", f"world_size={now}", *QUIET)
    assert (code, err) == (0, ""), out
    (run,), _ = find_runs(tmp_path / "runs")
    assert proof(run.path) == {1}
    m = run.metrics
    assert m.resumed is not None
    assert (m.world_size, m.resumed.ranks, m.resumed.source) == (now, [before], str(hidden))
    together = mode != "cpu_async"
    assert m.batch_size == (24 * before // now if together else 24)
    assert [(each["world_size"], each["batch_size"]) for each in run.config["resized"]] == [(before, 24)]
    (cell,) = cells([run])
    audited = CHECKS["audit"](Case(cell, None))
    assert isinstance(audited, Verdict)
    assert audited.name == "PASS", audited.line
    assert hidden.is_dir()
    assert command(warm, tmp_path, "rerun", str(run.path))[:2] == (
        4,
        f"REFUSED    {run.path}: its number of ranks changed on its way: only its checkpoint leads there\n",
    )


def test_a_mode_without_checkpoints_begins_anew_and_says_so(warm, tmp_path):
    words = (*SMALL[:3], *QUIET, "mode=torch_local_sgd", "train.epochs=2")
    assert command(warm, tmp_path, *words)[0] == 0
    (run,), _ = find_runs(tmp_path / "runs")
    left = run.path.with_name(run.path.name + ".failed")
    run.path.rename(left)
    content = json.loads((left / METRICS).read_bytes())
    (left / METRICS).write_text(json.dumps(content | {"status": "failed"}))
    code, out, _ = command(warm, tmp_path, f"resume={run.path}", "world_size=4", *QUIET)
    assert code == 0, out
    assert "mode=torch_local_sgd makes no checkpoints: the run begins anew" in " ".join(out.split())
    (anew,) = [each for each in find_runs(tmp_path / "runs")[0] if each.metrics.status == "ok"]
    assert (anew.metrics.world_size, anew.metrics.resumed) == (4, None)

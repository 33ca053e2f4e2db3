"""`resume=RUN_FOLDER`: commands as processes, killed with all that they started, and gone on with."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import torch

from bench.results import lease
from bench.results.cells import cells
from bench.results.chain import unlinked
from bench.results.runfolder import METRICS, find_runs, read_records
from bench.results.writer import RunWriter
from bench.runner.earlier_records import earlier
from bench.runner.resized import lineage, resizes
from bench.runner.resume import locate
from bench.validate.checks import CHECKS
from bench.validate.consistency import legible
from bench.validate.findings import Case
from bench.validate.verdict import Verdict
from ddp.checkpoint.checkpoint import bound, find, unbound
from ddp.core.events import Merged
from ddp.core.ledger import Ledger
from ddp.process.codec import encode
from tests.bench.conftest import Bench
from tests.warm import PICTURES, ROOT, Warm, wait_for

QUIET = ("report=false", "validate=false")
SMALL = ("model=mlp", "data.name=digits", "train.batch_size=64", "checkpoint.spacing_s=0", *QUIET)


RECORDED = (
    *("visits", "data", "average", "agreement", "idle"),
    *("windows", "evaluation", "breakdown", "peak_memory", "ledger"),
)
"""The checks that read what ranks recorded."""


def command(warm: Warm, folder: Path, *words: str) -> tuple[int, str, str]:
    """`python -m bench <words>`: its exit code, output and errors."""
    return warm.start(folder, "-m", "bench", *words, env={PICTURES: "none"}).result()


def killed(warm: Warm, folder: Path, *words: str, checkpoint: int) -> Path:
    """A run killed with all its processes some time after that checkpoint; its hidden folder."""
    process = warm.start(folder, "-m", "bench", *words, env={PICTURES: "none"})
    try:
        found = wait_for(lambda: written(folder, checkpoint), process)
    finally:
        process.kill_all()
    assert process.returncode == -signal.SIGKILL, "the run came to its end before it was killed"
    assert found
    return found[0].parents[1]


def written(folder: Path, checkpoint: int) -> list[Path]:
    """The places of that checkpoint or later ones. Folders that come and go meanwhile are not looked into."""
    places = folder.glob("*/*/*/.tmp-*/checkpoints/[0-9]*")
    return [place for place in places if int(place.name) >= checkpoint]


def place(hidden: Path) -> Path:
    """Where the folder of a run would lie."""
    own = lease.in_making(hidden)
    assert own
    return hidden.with_name(own.name)


def in_model(folder: Path) -> Counter[tuple[int, int]]:
    """How often each sample of each epoch is in the model."""
    merged = [record for record in read_records(folder) if isinstance(record, Merged)]
    spans = [(event.epoch, *span) for event in merged for span in event.spans]
    return Counter((epoch, sample) for epoch, start, stop in spans for sample in range(start, stop))


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


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "cpu_sync", "zero3", "graph_sync", "torch_ddp"])
def test_a_synchronous_run_that_was_killed_ends_as_if_it_had_not_been(warm, tmp_path, mode):
    words = (*SMALL, f"mode={mode}", "train.epochs=8", "checkpoint.every=7", "checkpoint.unit=averages")
    hidden = killed(warm, tmp_path, *words, checkpoint=2)
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
    if mode != "solo":
        assert proof(cut.path) == {1}


@pytest.mark.parametrize("mode", ["nccl_cadence", "nccl_async", "cpu_cadence", "cpu_async", "graph_cadence"])
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


@pytest.fixture(scope="module")
def leftover(warm: Warm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hidden folder of a solo run that was killed when it had two checkpoints."""
    folder = tmp_path_factory.mktemp("left")
    return killed(warm, folder, *SMALL, "mode=solo", "train.epochs=200", checkpoint=3)


@pytest.fixture
def left(leftover: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "runs" / "mlp" / "solo" / leftover.name
    shutil.copytree(leftover, copy)
    return copy


def samples(hidden: Path) -> int:
    checkpoint, _ = find(hidden / "checkpoints")
    assert checkpoint is not None
    return checkpoint.books.samples


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(left):
    *earlier_ones, last = sorted((left / "checkpoints").glob("[0-9]*"))
    assert earlier_ones
    before = samples(left)
    with (last / "model.pt").open("r+b") as file:
        file.seek(200)
        file.write(b"torn")
    assert samples(left) < before
    for path in earlier_ones:
        (path / "books").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"model.pt: torn.*run it anew"):
        locate(left)


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("train.epochs=5", "train.epochs=5 contradicts the run, which has 200"),
        ("mode=cpu_sync", "mode=cpu_sync contradicts the run, which has solo"),
        ("seed=3", "seed=3 contradicts the run, which has 0"),
    ],
)
def test_what_contradicts_the_run_is_refused(bench: Bench, capsys, left, word, why):
    assert bench(f"resume={place(left)}", word) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert why in err
    assert left.exists()


def test_what_cannot_be_gone_on_with_is_one_line(left, tmp_path):
    with pytest.raises(ValueError, match="no such run folder"):
        locate(tmp_path / "nowhere")
    shutil.rmtree(left / "checkpoints")
    with pytest.raises(ValueError, match=r"ended before the first one.*run it anew"):
        locate(left)
    config = json.loads((left / "config.json").read_text())
    (left / "config.json").write_text(json.dumps(config | {"checkpoint": {"every": 0}}))
    with pytest.raises(ValueError, match=r"checkpoint\.every=0"):
        locate(left)


def test_a_folder_whose_process_lives_is_not_gone_on_with(left):
    mine = left.with_name(re.sub(r"\d+@", f"{os.getpid()}@", left.name))
    left.rename(mine)
    (mine / "events.jsonl").touch()
    with pytest.raises(ValueError, match="still going on"):
        locate(mine)


def test_a_new_run_leaves_what_can_be_gone_on_with_until_it_is_ok(left):
    writer = RunWriter(left.parents[2], "mlp", "solo", place(left).name)
    assert left.exists()
    writer.commit("failed")
    assert left.exists()
    RunWriter(left.parents[2], "mlp", "solo", place(left).name).commit("ok")
    assert not left.exists()


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
    assert "nothing to go on with" in out
    assert json.loads((cut.path / METRICS).read_text())["resumed"]["times"] == 2
    code, _, err = command(warm, tmp_path, f"resume={cut.path}", "model=lenet", *QUIET)
    assert (code, err.count("\n")) == (2, 1)
    assert "model=lenet contradicts the run, which has mlp" in err


@pytest.mark.parametrize("engine", ["solo", "cpu_cadence"])
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


def without_digests(folder: Path) -> str:
    """Its records, as an earlier version wrote them."""
    return "".join(
        f"{unlinked(line.encode()).decode()}\n" for line in (folder / "events.jsonl").read_text().splitlines()
    )


def test_records_that_were_changed_are_not_gone_on_with(bench: Bench, capsys, left):
    lines = (left / "events.jsonl").read_text().splitlines(keepends=True)
    for place, line in ((3, lines[3].replace('"at":', '"at":1')), (5, ""), (0, ""), (7, lines[6])):
        (left / "events.jsonl").write_text("".join([*lines[:place], line, *lines[place + 1 :]]))
        assert bench(f"resume={left}", *QUIET) == 2
        assert f"{left / 'events.jsonl'}:{place + 1}: " in (err := capsys.readouterr().err)
        assert err.endswith("begin the run anew\n")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[" * 5000, "not the records of a run"),
        ('{"type": "Nothing", "at": 1.0}', "not the records of a run"),
        ('{"type": "Merged", "at": "soon", "rank": 0, "epoch": 0, "spans": []}', "not the records of a run"),
        ("", "not the records of a run"),
    ],
)
def test_records_that_cannot_be_are_one_line(bench: Bench, capsys, left, line, why):
    (left / "events.jsonl").write_text(f"{line}\n{without_digests(left)}")
    assert bench(f"resume={left}", *QUIET) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert why in err
    assert left.exists()
    assert [path for path in left.parent.iterdir() if path != left] == []


def test_samples_that_are_recorded_twice_are_one_line(left):
    source = locate(left)
    manifest = source.checkpoint.manifest
    ledgers = (Ledger(0, 100).merge(((0, 50),)).reopen(),)
    books = replace(manifest.books, epoch_samples=100, begun=1, ledgers=ledgers)
    source = replace(source, checkpoint=replace(source.checkpoint, manifest=replace(manifest, books=books)))
    assert earlier(source, 1.0)
    record = encode(Merged(0.0, 0, 0, ((0, 9), (3, 12)))).decode()
    (left / "events.jsonl").write_text(f"{record}\n{without_digests(left)}")
    with pytest.raises(ValueError, match="counted twice"):
        earlier(source, 1.0)


@pytest.mark.parametrize("key", ["train", "checkpoint", "policy", "model", "seed", "world_size"])
@pytest.mark.parametrize("value", [None, "x", -1, [], {"epochs": "many"}, 1e300])
def test_a_configuration_that_cannot_be_is_one_line(bench: Bench, capsys, left, key, value):
    config = json.loads((left / "config.json").read_text())
    (left / "config.json").write_text(json.dumps(config | {key: value}))
    if config[key] is not value:
        assert bench(f"resume={left}", *QUIET) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
    assert left.exists()


@pytest.mark.parametrize(("mode", "before", "now"), [("nccl_sync", 3, 2), ("zero2", 2, 3), ("cpu_async", 2, 3)])
def test_a_run_goes_on_with_another_number_of_ranks(warm, tmp_path, mode, before, now):
    """As a run of its own, whose results, checks and audit are right; the one before is not touched."""
    words = (*SMALL[:2], *SMALL[3:], "train.batch_size=24", f"mode={mode}", f"world_size={before}", "train.epochs=12")
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


SAVED = {"world_size": 3, "train": {"batch_size": 32, "accumulate": 2}}


def test_what_a_run_keeps_of_the_numbers_of_ranks_before():
    first = lineage(SAVED, 2, 960)
    assert first == [{"world_size": 3, "batch_size": 64, "samples": 960}]
    assert lineage(SAVED, 3, 960) == []
    again = SAVED | {"world_size": 2, "resized": first}
    assert lineage(again, 2, 1_200) == first
    assert [each["world_size"] for each in lineage(again, 4, 1_200)] == [3, 2]


@pytest.mark.parametrize(("before", "now"), [(1, 2), (3, 1)])
def test_one_rank_is_another_program(before, now):
    with pytest.raises(ValueError, match="where both are two or more"):
        resizes({"world_size": now}, {"world_size": before})


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

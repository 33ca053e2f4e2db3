"""`resume=RUN_FOLDER`: commands as processes, killed with all that they started, and gone on with."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from bench.runfolder import METRICS, find_runs, read_records
from ddp.core.events import Merged

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("model=mlp", "train.batch_size=64", "report=false", "validate=false", "checkpoint.spacing_s=0")


def start(folder: Path, *command: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = (sys.executable, "-m", "bench", *command)
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)  # type: ignore[call-overload]


def bench(folder: Path, *command: str) -> tuple[int, str, str]:
    process = start(folder, *command)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def killed(folder: Path, *command: str, checkpoint: int) -> Path:
    """A run killed with all its processes some time after that checkpoint; its hidden folder."""
    process = start(folder, *command)
    try:
        while not (found := written(folder, checkpoint)) and process.poll() is None:
            time.sleep(0.002)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert found, "the run came to its end before that checkpoint"
    return found[0].parents[1]


def written(folder: Path, checkpoint: int) -> list[Path]:
    """The places of that checkpoint. Folders that come and go meanwhile are not looked into."""
    return list(folder.glob(f"*/*/*/.tmp-*/checkpoints/{checkpoint:06}"))


def place(hidden: Path) -> Path:
    """Where the folder of a run would lie."""
    match = re.fullmatch(r"\.tmp-(.*)-\d+", hidden.name)
    assert match
    return hidden.with_name(match[1])


def proof(folder: Path) -> set[int]:
    """How often a sample of an epoch is in the model, by `events.jsonl`."""
    merged = [record for record in read_records(folder) if isinstance(record, Merged)]
    spans = [(event.epoch, *span) for event in merged for span in event.spans]
    counts = Counter((epoch, sample) for epoch, start, stop in spans for sample in range(start, stop))
    (run,), _ = find_runs(folder)
    assert len(counts) == run.metrics.samples
    return set(counts.values())


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "cpu_sync", "zero3"])
def test_a_synchronous_run_that_was_killed_ends_as_if_it_had_not_been(tmp_path, mode):
    words = (*SMALL, f"mode={mode}", "train.epochs=12", "checkpoint.every=7", "checkpoint.unit=averages")
    hidden = killed(tmp_path, *words, "output=cut", checkpoint=2)
    assert bench(tmp_path, *words, "output=whole")[0] == 0
    code, out, err = bench(tmp_path, f"resume={place(hidden)}", "report=false", "validate=false")
    assert (code, err) == (0, ""), out
    (whole,), _ = find_runs(tmp_path / "whole")
    (cut,), _ = find_runs(tmp_path / "cut")
    assert cut.metrics.params_sha256 == whole.metrics.params_sha256
    assert cut.metrics.samples == whole.metrics.samples
    assert [(row.samples, row.eval) for row in cut.metrics.epochs] == [
        (row.samples, row.eval) for row in whole.metrics.epochs
    ]
    losses = [row.train_loss for row in cut.metrics.epochs]
    assert losses == pytest.approx([row.train_loss for row in whole.metrics.epochs])
    seconds = [row.seconds for row in cut.metrics.epochs]
    assert seconds == sorted(seconds)
    assert cut.metrics.resumed is not None
    assert (cut.metrics.resumed.source, cut.metrics.resumed.times) == (str(hidden), 1)
    assert cut.path == place(hidden)
    assert [path.name for path in cut.path.parent.iterdir()] == [cut.path.name], "what was gone on from is gone"
    assert not (cut.path / "checkpoints").exists()
    if mode != "solo":
        assert proof(cut.path) == {1}


@pytest.mark.parametrize("mode", ["nccl_cadence", "nccl_async", "cpu_cadence", "cpu_async"])
def test_any_run_that_was_killed_trains_every_sample_once(tmp_path, mode):
    words = (*SMALL, f"mode={mode}", "train.epochs=12", "checkpoint.unit=averages", "policy.anchor=2")
    hidden = killed(tmp_path, *words, checkpoint=3)
    assert bench(tmp_path, f"resume={hidden}", "report=false", "validate=false")[0] == 0
    (cut,), _ = find_runs(tmp_path)
    assert proof(cut.path) == {1}
    assert len(cut.metrics.epochs) == 12
    assert cut.metrics.final.eval > 0.9


@pytest.fixture(scope="module")
def leftover(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hidden folder of a solo run that was killed when it had two checkpoints."""
    folder = tmp_path_factory.mktemp("left")
    return killed(folder, *SMALL, "mode=solo", "train.epochs=200", checkpoint=3)


@pytest.fixture
def left(leftover: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "runs" / "mlp" / "solo" / leftover.name
    shutil.copytree(leftover, copy)
    return copy


def samples(hidden: Path) -> int:
    from ddp.runtime.checkpoint import find

    checkpoint, _ = find(hidden / "checkpoints")
    assert checkpoint is not None
    return checkpoint.books.samples


def test_a_torn_checkpoint_is_passed_over_for_the_one_before(left):
    latest = sorted((left / "checkpoints").glob("[0-9]*"))
    assert len(latest) == 2
    before = samples(left)
    with (latest[1] / "model.pt").open("r+b") as file:
        file.seek(200)
        file.write(b"torn")
    assert samples(left) < before
    (latest[0] / "books").write_bytes(b"torn")
    from bench.resume import locate

    with pytest.raises(ValueError, match=r"model.pt: torn.*run it anew"):
        locate(left)


def test_what_contradicts_the_run_is_refused(left, tmp_path):
    for word, why in [
        ("train.epochs=5", "train.epochs=5 contradicts the run, which has 200"),
        ("mode=cpu_sync", "mode=cpu_sync contradicts the run, which has solo"),
        ("seed=3", "seed=3 contradicts the run, which has 0"),
    ]:
        code, _, err = bench(tmp_path, f"resume={place(left)}", word)
        assert (code, err.count("\n")) == (2, 1)
        assert why in err
    assert left.exists()


def test_what_cannot_be_gone_on_with_is_one_line(left, tmp_path):
    from bench.resume import locate

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
    from bench.resume import locate

    mine = left.with_name(re.sub(r"\d+$", str(os.getpid()), left.name))
    left.rename(mine)
    (mine / "events.jsonl").touch()
    with pytest.raises(ValueError, match="still going on"):
        locate(mine)


def test_a_new_run_leaves_what_can_be_gone_on_with_until_it_is_ok(left):
    from bench.runfolder import RunWriter

    writer = RunWriter(left.parents[2], "mlp", "solo", place(left).name)
    assert left.exists()
    writer.commit("failed")
    assert left.exists()
    RunWriter(left.parents[2], "mlp", "solo", place(left).name).commit("ok")
    assert not left.exists()


def test_gone_on_twice(tmp_path):
    words = (*SMALL, "mode=cpu_sync", "train.epochs=12", "checkpoint.every=5", "checkpoint.unit=averages")
    first = killed(tmp_path, *words, checkpoint=2)
    done = {path.name for path in first.glob("checkpoints/[0-9]*")}
    latest = max(int(name) for name in done)
    killed(tmp_path, f"resume={place(first)}", "report=false", "validate=false", checkpoint=latest + 2)
    code, out, _ = bench(tmp_path, f"resume={place(first)}", "report=false", "validate=false")
    assert code == 0, out
    (cut,), _ = find_runs(tmp_path / "runs")
    assert cut.metrics.resumed is not None
    assert cut.metrics.resumed.times == 2
    assert proof(cut.path) == {1}
    assert bench(tmp_path, *words, "output=whole")[0] == 0
    (whole,), _ = find_runs(tmp_path / "whole")
    assert cut.metrics.params_sha256 == whole.metrics.params_sha256
    code, out, _ = bench(tmp_path, f"resume={cut.path}", "report=false", "validate=false")
    assert code == 0
    assert "nothing to go on with" in out
    assert json.loads((cut.path / METRICS).read_text())["resumed"]["times"] == 2

"""`bench.load`: run folders as frames."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import bench
from bench.results.runfolder import CONFIG, EVENTS, find_runs
from ddp.core.messages.events import Resumed
from ddp.process.codec import encode
from tests.bench.streams import make_spec, write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in (0, 1):
        folder = write_run(tmp_path / "runs", make_spec(seed=seed))
        (folder / CONFIG).write_text(json.dumps({"run_id": "x", "policy": {"anchor": 10 + seed}, "l": [1, 2]}))
    write_run(tmp_path / "runs", make_spec("solo"))
    return tmp_path / "runs"


def test_a_row_for_each_run_with_its_scalars_and_configuration(runs: Path) -> None:
    frame = bench.load(runs)
    found, _ = find_runs(runs)
    assert list(frame.path) == [str(run.path) for run in found]
    assert list(frame["final.eval"]) == [run.metrics.final.eval for run in found]
    assert list(frame["throughput.samples_per_s"]) == [run.metrics.throughput.samples_per_s for run in found]
    assert list(frame["config.policy.anchor"].dropna()) == [10, 11]
    assert list(frame["config.l"].dropna()) == ["[1, 2]"] * 2
    assert frame.set_index("seed").loc[1, "config_hash"] == found[1].metrics.config_hash


def test_rows_for_epochs_ranks_and_events(runs: Path) -> None:
    found, _ = find_runs(runs)
    epochs = bench.load(runs, what="epochs")
    assert list(epochs.train_loss) == [epoch.train_loss for run in found for epoch in run.metrics.epochs]
    ranks = bench.load(runs, what="ranks")
    who = {"path", "run_id", "model", "mode", "world_size", "seed", "config_hash", "rank"}
    assert {name for name in {*ranks.columns} - who if f"`{name}`" not in (bench.load.__doc__ or "")} == set()
    assert list(ranks.samples_per_s) == [speed for run in found for speed in run.metrics.throughput.per_rank]
    kinds = ["compute", "data", "comm", "wait", "eval", "checkpoint", "other"]
    assert ranks[kinds].sum(axis=1).tolist() == pytest.approx([1.0] * 5)
    events = bench.load(runs, what="events")
    assert len(events) == sum(len((run.path / EVENTS).read_bytes().splitlines()) for run in found)
    assert set(events.model) == {"mlp"}
    trained = events[events.type == "Progress"].groupby("path").samples.sum()
    assert list(trained) == [run.metrics.samples for run in found]
    assert events.since_s.min() == 0


def test_a_column_of_a_row_is_not_replaced_by_a_field_of_its_record(runs: Path) -> None:
    """The seconds since the launch were a list in the row of a resumption."""
    found, _ = find_runs(runs)
    first = events_of(found[0].path / EVENTS)[0]["at"]
    resumed = Resumed(first + 7.0, 1, 2, 64, "elsewhere", since_s=(3.0, 0.5))
    with (found[0].path / EVENTS).open("ab") as file:
        file.write(encode(resumed, first + 7.0) + b"\n")
    events = bench.load(runs, what="events")
    assert events.since_s.dtype == float
    (row,) = events[events.type == "Resumed"].to_dict("records")
    assert row["since_s"] == pytest.approx(7.0)
    assert row["record.since_s"] == [3.0, 0.5]


def events_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_cannot_be_read_is_left_out_with_a_warning(runs: Path) -> None:
    (runs / "bad").mkdir()
    (runs / "bad" / "metrics.json").write_text("{")
    with pytest.warns(UserWarning, match=r"left out: .*bad.metrics.json: not JSON"):
        assert len(bench.load(runs)) == 3
    (runs / "bad" / "metrics.json").unlink()
    found, _ = find_runs(runs)
    with (found[0].path / EVENTS).open("ab") as file:
        file.write(b'{"type":')
    with pytest.warns(UserWarning, match="the rest is left out"):
        assert len(bench.load(runs, what="events")) > 100


def test_what_cannot_be_asked_for_is_said(runs: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'epochs'"):
        bench.load(runs, what="epoch")
    with pytest.raises(ValueError, match="is not a folder"):
        bench.load(runs / "nowhere")
    (runs / "empty").mkdir()
    assert bench.load(runs / "empty").empty


def test_importing_the_harness_imports_no_pandas() -> None:
    code = "import sys, bench; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0

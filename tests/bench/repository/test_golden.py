"""The golden digests that depend on no machine: `make golden` compares the bits of training as well."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.command.verbs.rerun import replay
from bench.results.chain import unlinked
from bench.results.runfolder import EVENTS, METRICS, find_runs
from bench.runner.replay import mislearnt
from bench.validate.evidence import consistency
from bench.validate.evidence.consistency import legible
from benchmarks import golden


def test_results_still_follow_from_their_records():
    """Where this fails, the analysis makes something else of the same records: that is a new `SCHEMA_VERSION`."""
    for run in find_runs(golden.RUNS)[0]:
        legible(run)
        assert mislearnt(run) is None, run.path


@pytest.mark.parametrize("part", ["configurations", "replay"])
def test_digests_are_as_committed(part):
    committed = json.loads(golden.DIGESTS.read_text())
    assert golden.differences(committed[part], golden.PARTS[part]()) == []


def test_a_digest_that_differs_is_named():
    assert golden.differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == [
        "b: 2 committed, 3 now",
        "c: nothing committed, 4 now",
    ]


def test_a_replay_holds_losses_and_metrics_against_the_records(tmp_path, capsys, monkeypatch):
    """Of a run of an earlier version, too, whose result has no seal."""
    monkeypatch.setattr(consistency, "SEALED", sys.maxsize)
    (recorded,) = (golden.RUNS / "mlp" / "nccl_cadence").iterdir()
    folder = Path(shutil.copytree(recorded, tmp_path / recorded.name))
    assert replay(folder) is Exit.OK
    assert "losses and metrics follow from them" in capsys.readouterr().out
    body = json.loads((folder / METRICS).read_text())
    unsealed = [json.loads(unlinked(line)) for line in (folder / EVENTS).read_bytes().splitlines()]
    rows = [row for row in unsealed if row["type"] not in ("RunHeader", "RunEnd")]
    (folder / EVENTS).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    body["record"] = None
    for name, value in (("train_loss", 0.1), ("eval", 0.99), ("samples", 7)):
        epochs = [body["epochs"][0], body["epochs"][1] | {name: value}, *body["epochs"][2:]]
        (folder / METRICS).write_text(json.dumps(body | {"epochs": epochs}))
        assert replay(folder) is Exit.REGRESSION
        assert f"epochs[1].{name} is {value}, and {body['epochs'][1][name]} by the records" in capsys.readouterr().out

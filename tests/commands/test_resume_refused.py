"""What cannot be gone on with is one line, and nothing of it is lost: one killed run, edited in many ways."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bench.command import cli
from bench.config.config import Choice, ClusterConfig, Config, ModelConfig, TrainConfig
from bench.results.chain import unlinked
from bench.results.writer import RunWriter
from bench.runner.earlier_records import earlier
from bench.runner.resized import lineage, resizes, sized
from bench.runner.resume import ResumeSource, TornCheckpoints, agree, locate
from ddp.checkpoint.checkpoint import find
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Lost, Merged
from ddp.core.messages.join_events import Joined
from ddp.core.samples.ledger import Ledger
from ddp.process.codec import decode, encode, stamp
from tests.bench.conftest import Bench
from tests.commands.killed_runs import QUIET, place
from tests.commands.killed_runs import left as left
from tests.commands.killed_runs import leftover as leftover
from tests.slow import few


def samples(hidden: Path) -> int:
    checkpoint, _ = find(hidden / "checkpoints")
    assert checkpoint is not None
    return checkpoint.coordinator.samples


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


def test_a_checkpoint_that_the_records_do_not_tell_of_is_passed_over(left):
    """Records cut before it made the run one to begin anew, though an older checkpoint would do."""
    last, records = locate(left).checkpoint.manifest.index, left / "events.jsonl"
    lines = records.read_text().splitlines(keepends=True)
    saved = next(n for n, line in enumerate(lines) if '"Saved"' in line and f'"index":{last},' in line)
    records.write_text("".join(lines[:saved]) + lines[saved][:20])
    source, told = locate(left), f"{records}: does not tell of checkpoint {last}"
    assert (source.checkpoint.manifest.index, source.notes) == (last - 1, (told,))
    assert decode(earlier(source, 1.0)[-1]).samples == source.checkpoint.coordinator.samples
    records.write_text(lines[0])
    with pytest.raises(TornCheckpoints, match=f"{told}; run it anew"):
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


def without_digests(folder: Path) -> str:
    """Its records, as an earlier version wrote them."""
    return "".join(
        f"{unlinked(line.encode()).decode()}\n" for line in (folder / "events.jsonl").read_text().splitlines()
    )


def test_records_that_were_changed_are_not_gone_on_with(bench: Bench, capsys, left):
    lines = (left / "events.jsonl").read_text().splitlines(keepends=True)
    for number, line in ((3, lines[3].replace('"at":', '"at":1')), (5, ""), (0, ""), (7, lines[6])):
        (left / "events.jsonl").write_text("".join([*lines[:number], line, *lines[number + 1 :]]))
        assert bench(f"resume={left}", *QUIET) == 2
        assert f"{left / 'events.jsonl'}:{number + 1}: " in (err := capsys.readouterr().err)
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


def test_what_was_lost_after_the_checkpoint_is_told(left):
    """A rank that was lost and came back was forgotten, as its records are left out."""
    source, last = locate(left), list(map(stamp, without_digests(left).splitlines()))[-1]
    lost = [
        encode(record, at).decode()
        for at, record in (
            (last + 1.0, Lost(last + 1.0, 1, "gone")),
            (last + 1.0, Drop(1, "gone")),
            (last + 3.0, Joined(last + 3.0, 1, 0)),
        )
    ]
    (left / "events.jsonl").write_text(without_digests(left) + "\n".join([*lost, ""]))
    resumed = decode(earlier(source, 1.0)[-1])
    (row,) = resumed.faults
    assert (row.rank, row.kind, row.back_s) == (1, "lost", pytest.approx(2.0))
    assert row.seconds == pytest.approx(resumed.since_s[0] - 2.0)


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


@pytest.mark.parametrize(
    ("key", "value"),
    few(
        ["train", "checkpoint", "policy", "model", "seed", "world_size"],
        [None, "x", -1, [], {"epochs": "many"}, 1e300],
    ),
)
def test_a_configuration_that_cannot_be_is_one_line(bench: Bench, capsys, left, key, value):
    config = json.loads((left / "config.json").read_text())
    (left / "config.json").write_text(json.dumps(config | {key: value}))
    if config[key] is not value:
        assert bench(f"resume={left}", *QUIET) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1, err
    assert left.exists()


@pytest.mark.parametrize(
    "strange",
    [{"backend": []}, {"backend": {"a": 1}}, {"policy": {"name": [1]}}, {"engine": []}, {"engine": None, "backend": 7}],
)
def test_a_mode_that_cannot_be_is_one_line(tmp_path, capsys, strange):
    """It was a defect of the harness."""
    writer = RunWriter(tmp_path, "mlp", "solo", "w1-s0-abc")
    saved = {"model": "mlp", "engine": "elche", "policy": {"name": "sync"}, "backend": "nccl", "cluster": []} | strange
    (writer.path / "config.json").write_text(json.dumps(saved))
    with pytest.raises(ValueError, match=r"has no checkpoint|no such run|makes no checkpoints"):
        locate(writer.path)
    assert ResumeSource(writer.path, saved, None).output is None  # type: ignore[arg-type]  # it is not asked for
    with pytest.raises(ValueError, match="contradicts the run"):
        agree({"mode": "zero1"}, saved)
    (writer.path / "events.jsonl").touch()
    if "backend" in strange:
        assert cli.dispatch(["join", str(writer.path)]) == 2
        assert "no rank can join a run of this mode" in capsys.readouterr().err
    writer.discard()


@pytest.mark.parametrize("content", [None, '{"seed": 0, '])
def test_a_configuration_that_is_lost_says_what_to_do(bench: Bench, capsys, left, content):
    (left / "config.json").unlink()
    if content is not None:
        (left / "config.json").write_text(content)
    assert bench(f"resume={left}", *QUIET) == 2
    err = capsys.readouterr().err
    assert err.endswith("; put back a readable copy, or run it anew\n")
    assert err.count("\n") == 1


SAVED = {"world_size": 3, "train": {"batch_size": 32, "accumulate": 2}}


def test_what_a_run_keeps_of_the_numbers_of_ranks_before():
    first = lineage(SAVED, 2, 960)
    assert first == [{"world_size": 3, "batch_size": 64, "samples": 960}]
    assert lineage(SAVED, 3, 960) == []
    again = SAVED | {"world_size": 2, "resized": first}
    assert lineage(again, 2, 1_200) == first
    assert [each["world_size"] for each in lineage(again, 4, 1_200)] == [3, 2]


@pytest.mark.parametrize(
    ("speeds", "now", "wanted"),
    [
        ([1.0, 1.0, 1.0], 2, [1.0, 1.0]),
        ([0.5, 0.5, 0.5], 4, [0.5] * 4),
        ([1.0, 1.0, 0.5], 4, [1.0, 1.0, 0.5, 1.0]),
        ([1.0, 1.0, 0.5], 2, [1.0, 1.0, 0.5]),
        ([], 2, []),
    ],
)
def test_speeds_that_are_alike_are_those_of_any_number_of_ranks(speeds, now, wanted):
    """Those that cluster.step_s had filled in were refused. Unequal ones are for their owner to choose."""
    own = Config(ModelConfig("mlp"), Choice("elche"), {"name": "cadence"}, Choice("nccl"), world_size=3)
    own = replace(own, cluster=ClusterConfig(speeds=speeds))
    assert sized({"world_size": now}, replace(own, world_size=now), own).cluster.speeds == wanted


@pytest.mark.parametrize(("steps", "wanted"), [(None, 16), (1200, 24)])
def test_steps_are_as_large_as_before(steps, wanted):
    """An epoch had other samples than at the checkpoint."""
    own = Config(ModelConfig("mlp"), Choice("elche"), {"name": "cadence"}, Choice("nccl"), world_size=3)
    own = replace(own, train=TrainConfig(batch_size=16, steps=steps))
    assert sized({"world_size": 2}, replace(own, world_size=2), own).train.batch_size == wanted


@pytest.mark.parametrize(("before", "now"), [(1, 2), (3, 1)])
def test_one_rank_is_another_program(before, now):
    with pytest.raises(ValueError, match="where both are two or more"):
        resizes({"world_size": now}, {"world_size": before})

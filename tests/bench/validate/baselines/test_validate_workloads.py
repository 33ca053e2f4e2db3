"""What is compared with what: depth, and what changes the training beside it; the commands for what is lacking."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from bench.report.measures.differences import qualities
from bench.report.page import Page
from bench.results.cells import cells
from bench.results.runfolder import CONFIG, find_runs
from bench.validate import Terms, judge
from bench.validate.baselines.folder import load
from bench.validate.baselines.reference import sealed, text
from bench.validate.revisions.revision import accept, write_proposals
from tests.bench.references import FIVE, TODAY, baselines, cell, one, put, verdicts
from tests.bench.streams import make_spec

DEEP = {"depth": 32, "config_hash": "deep"}


def configured(root: Path, mode: str, config: dict[str, Any], seeds: int = 3, **changes: object) -> Path:
    """Runs of one cell with what their `config.json` says."""
    for seed in range(seeds):
        folder = put(root, make_spec(mode, seed=seed, **changes), FIVE[seed])
        (folder / CONFIG).write_text(json.dumps(config))
    return root


def base_of(folder: Path, config: dict[str, Any], **changes: object) -> Path:
    """An accepted solo baseline of runs with such a configuration."""
    write_proposals(configured(folder / "solo", "solo", config, 5, **changes), folder / "p", TODAY)
    accept(folder / "p", folder / "b")
    return folder / "b"


def test_another_depth_is_refused(tmp_path: Path) -> None:
    deep = baselines(tmp_path / "deep", **DEEP)
    refused = one(cell(tmp_path / "runs", "nccl_sync", FIVE), deep, "baseline")
    assert (refused.name, [tuple(row) for row in refused.fields]) == ("REFUSED", [("depth", "32", "-")])
    usual = baselines(tmp_path / "usual")
    refused = one(cell(tmp_path / "other", "nccl_sync", FIVE, **DEEP), usual, "baseline")
    assert [tuple(row) for row in refused.fields] == [("depth", "-", "32")]


def test_the_same_depth_is_compared_with_its_own_solo(tmp_path: Path) -> None:
    """Both depths in one tree, and in one folder of baselines."""
    both = tmp_path / "both"
    for name, changes in (("a", DEEP), ("b", {"config_hash": "usual"})):
        found = baselines(tmp_path / name, **changes)
        for file in found.rglob("*.json"):
            (both / name).mkdir(parents=True)
            (both / name / file.name).write_text(file.read_text())
    runs = cell(tmp_path / "runs", "nccl_sync", FIVE, depth=32)
    cell(runs, "nccl_sync", FIVE)
    found = [v for v in judge([runs], both, Terms(today=TODAY)).verdicts if v.check == "quality"]
    assert [v.name for v in found] == ["PASS", "PASS"]
    assert "mlp of depth 32 solo" in {reference.name.split(" on ")[0] for reference in load(both).references}


def test_the_report_has_the_margin_of_its_depth(tmp_path: Path) -> None:
    base = baselines(tmp_path, **DEEP)
    runs = cell(tmp_path / "runs", "solo", FIVE, **DEEP)
    cell(runs, "nccl_sync", FIVE, depth=32)
    found = cells(find_runs(runs)[0])
    verdicts = tuple(judge([runs], base, Terms(today=TODAY)).verdicts)
    (quality,) = qualities(Page(runs, tmp_path, tuple(found), (), verdicts, load(base)), found)
    assert quality.margin == load(base).references[0].metrics["quality"].margin


LIMITED = {"epochs": 3, "lr": 0.1, "max_grad_norm": 1.0}


@pytest.mark.parametrize(
    ("base", "run", "fields"),
    [
        ({"train": {"epochs": 3}}, {"train": LIMITED}, [("max_grad_norm", "-", "1.0")]),
        ({"train": LIMITED}, {"train": {"epochs": 3}}, [("max_grad_norm", "1.0", "-")]),
        ({"train": LIMITED}, {"train": LIMITED | {"lr_scale_ratio": 1.0, "global_batch_size": 64}}, []),
        (
            {"training": {"schedule": "cosine", "augment": False}},
            {"training": {"schedule": "step", "augment": True}},
            [("training.schedule", "cosine", "step"), ("training.augment", "False", "True")],
        ),
        ({}, {"training": {"schedule": "step", "augment": True}}, []),
        ({"training": {"schedule": "step", "augment": True}}, {}, []),
    ],
)
def test_what_changes_the_training_must_be_equal(
    tmp_path: Path, base: dict[str, Any], run: dict[str, Any], fields: list[tuple[str, str, str]]
) -> None:
    runs = configured(tmp_path / "runs", "nccl_sync", run)
    found = verdicts(runs, base_of(tmp_path, base))
    refused = [tuple(row) for (_, check), v in found.items() if check == "baseline" for row in v.fields]
    assert refused == fields
    assert (("mlp nccl_sync ×2", "quality") in found) == (not fields)


def test_a_baseline_of_the_same_training_is_preferred(tmp_path: Path) -> None:
    plain = base_of(tmp_path / "plain", {"train": {}}, config_hash="plain")
    limited = base_of(tmp_path / "limited", {"train": LIMITED}, config_hash="limited")
    for folder in (plain, limited):
        for file in folder.rglob("*.json"):
            (tmp_path / "both").mkdir(exist_ok=True)
            (tmp_path / "both" / file.name).write_text(file.read_text())
    for name, train in (("a", {}), ("b", LIMITED)):
        runs = configured(tmp_path / "runs" / name, "nccl_sync", {"train": train}, 5)
        assert one(runs, tmp_path / "both", "quality").name == "PASS"


@pytest.mark.parametrize("later", [32, 64])
def test_a_baseline_of_the_same_global_batch_is_preferred(tmp_path: Path, later: int) -> None:
    """Both fit two ranks of 32 each; the later one was taken."""
    for size in (32, 64):
        folder = base_of(tmp_path / str(size), {}, batch_size=size, config_hash=str(size))
        (file,) = folder.rglob("*.json")
        body = json.loads(file.read_text()) | {"created": f"2026-11-{20 if size == later else 10}"}
        (tmp_path / "both").mkdir(exist_ok=True)
        (tmp_path / "both" / file.name).write_text(text(sealed(body)))
    cell = {mode: configured(tmp_path / mode, mode, {}) for mode in ("nccl_sync", "nccl_cadence")}
    wanted = {"nccl_sync": 64, "nccl_cadence": 32}
    for mode, runs in cell.items():
        match = load(tmp_path / "both").match(cells(find_runs(runs)[0])[0])
        assert match is not None
        assert (match.reference.batch_size, match.differing) == (wanted[mode], [])


def words(line: str, start: str) -> list[str]:
    return shlex.split(line[line.index(start) :].partition(", then:")[0].partition("; reproduce:")[0])


def test_more_seeds_go_to_the_tree_of_the_others(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    runs = cell(tmp_path / "my runs", "nccl_cadence", FIVE[:1])
    said = words(one(runs, base).line, "python -m bench")
    assert said[:5] == ["python", "-m", "bench", "-m", "model=mlp"]
    assert {"mode=nccl_cadence", "world_size=2", "seed=1,2", f"output='{runs}'"} <= set(said)


def test_the_command_for_a_baseline_says_all_of_the_training(tmp_path: Path) -> None:
    config = {
        **{"train": LIMITED | {"lr_scale_ratio": 1.0}, "data": {"name": "text", "dir": "d", "seq_len": 9}},
        **{"cluster": {"device": "cpu", "tolerate_loss": False, "speeds": [1.0, 0.5]}, "averaging": {"gamma": 0.5}},
    }
    runs = configured(tmp_path / "runs", "nccl_cadence", config, 1, speeds=(1.0, 0.5), **DEEP)
    told = one(runs, tmp_path / "none", "baseline")
    said = words(told.line, "python -m bench")
    wanted = {"model=mlp", "model.depth=32", "mode=solo", "recipe=quick", "data.name=text", "data.seq_len=9"}
    wanted |= {
        "train.epochs=3",
        "train.batch_size=32",
        "train.lr=0.1",
        "train.max_grad_norm=1",
        "output=runs/baselines",
    }
    assert wanted <= set(said)
    assert f"seed={','.join(map(str, range(20)))}" in said
    alien = ("world_size", "cluster.speeds", "cluster.tolerate", "averaging", "policy", "train.lr_scale_ratio")
    assert not [word for word in said if word.startswith(alien)]
    assert told.line.endswith(
        f"python -m bench baseline propose runs/baselines --mode solo --baseline {tmp_path / 'none'} && "
        f"python -m bench baseline accept --baseline {tmp_path / 'none'}"
    )

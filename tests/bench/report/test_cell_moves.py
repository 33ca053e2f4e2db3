"""Which way a cell moved between two trees, and whether it is the same cell: by the seeds that failed, and its settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.command.verbs.compare_command import side
from bench.report.cell_changes import CellMove, moves
from bench.report.two_sides import row, sentence, write_comparison
from bench.results.chain import seal_of
from bench.results.recompute import digest
from tests.bench.report.test_compare import origin
from tests.bench.streams import make_metrics, make_spec, write_run


def pair_of(root: Path, *sides: list[str] | dict[str, Any]) -> CellMove:
    """Return the move of a cell, given on both sides: the status of each seed, or configurations that differ."""
    for name, given in zip(("old", "new"), sides, strict=True):
        config = given if isinstance(given, dict) else {}
        for seed, status in enumerate(["ok"] * 3 if isinstance(given, dict) else given):
            spec = replace(
                make_spec(seed=seed), config_hash=f"{name}{config}".encode().hex()[:40] if config else "same"
            )
            metrics = make_metrics(spec)
            final = metrics.final.model_copy(update={"eval": 0.97 + 0.001 * (seed % 3)})
            own = {"status": status, "params_sha256": f"{name}{seed}", "final": final}
            path = write_run(root / name, spec, metrics.model_copy(update=own))
            (path / "config.json").write_text(json.dumps(config))
    (move,) = moves(origin(root / "old"), origin(root / "new"))
    return move


@pytest.mark.parametrize(
    ("old", "new", "trend"),
    [
        (["ok"] * 9 + ["failed"], ["ok"] * 2 + ["failed"] * 8, "worse"),
        (["ok"] * 4 + ["failed"], ["failed"] * 5, "worse"),
        (["ok"] * 4 + ["failed"], ["ok"] * 3 + ["failed"] * 2, "same"),
        (["ok"] * 5, ["ok"] * 4 + ["killed"], "same"),
        (["ok"] * 5, ["ok"] * 4 + ["diverged"], "worse"),
    ],
)
def test_more_seeds_that_fail_are_worse_though_one_failed_before(
    tmp_path: Path, old: list[str], new: list[str], trend: str
) -> None:
    move = pair_of(tmp_path, old, new)
    assert move.trend == trend
    if trend == "worse":
        assert move.losses[0] == "status"


def test_settings_that_differ_are_named(tmp_path: Path) -> None:
    """They were compared as if only the code differed."""
    move = pair_of(
        tmp_path, *({"averaging": {"wire": wire}, "audit": wire == "float16"} for wire in ("float64", "float16"))
    )
    assert move.trend == "otherwise"
    assert sentence([move]).endswith("(other `averaging.wire`).")


def test_cells_over_other_links_are_other_cells(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not enough values"):
        pair_of(tmp_path, *({"cluster": {"links": [links]}} for links in ("1-2: 1ms", "1-2: 9ms")))


def test_speeds_far_apart_have_a_ratio(tmp_path: Path) -> None:
    """Their interval had no finite end, and the command ended with a traceback."""
    for name, speed in (("old", 1e90), ("new", 1e-90)):
        for seed in (0, 1):
            metrics = make_metrics(make_spec(seed=seed))
            far = metrics.throughput.model_copy(update={"samples_per_s": speed ** (1 if seed else -1)})
            write_run(tmp_path / name, make_spec(seed=seed), metrics.model_copy(update={"throughput": far}))
    sides = origin(tmp_path / "old"), origin(tmp_path / "new")
    write_comparison(*sides, tmp_path / "out")
    assert "inf" in row(moves(*sides)[0])["samples/s"]


def test_a_run_whose_records_were_cut_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was called identical, bit for bit."""
    for seed in (0, 1):
        path = write_run(tmp_path, make_spec(seed=seed))
        if seed:
            events = path / "events.jsonl"
            body = json.loads((path / "metrics.json").read_text())
            body["record"] = seal_of(events)._asdict()
            body["record"]["result"] = digest(body)
            (path / "metrics.json").write_text(json.dumps(body))
            assert len(side(str(tmp_path), tmp_path).cells[0].runs) == 2
            events.write_bytes(events.read_bytes()[:-200])
    assert len(side(str(tmp_path), tmp_path).cells[0].runs) == 1
    assert "has" in capsys.readouterr().err

"""`bench compare`: what changed between two trees, commits or machines, as a report and as the summary of a CI step."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pandas as pd
import pytest

from bench.base import environment
from bench.base.exitcodes import Exit
from bench.command import cli
from bench.command.verbs.compare_command import side
from bench.report.cell_changes import CellMove, Side, moves
from bench.report.measures.differences import MeanDifference, difference
from bench.report.sections.changes import common
from bench.report.two_sides import row, sentence, step_summary, tiles, write_comparison
from bench.results.cells import cells
from bench.results.runfolder import Run, find_runs
from tests.bench.references import cell, changed_trees, put
from tests.bench.streams import make_metrics, make_spec, write_run

VALUES = (0.970, 0.972, 0.974)
LINES = 30
Capture = pytest.CaptureFixture[str]


def origin(root: Path, name: str = "") -> Side:
    return Side(name or root.name, tuple(cells(find_runs(root)[0])))


@pytest.fixture
def trees(tmp_path: Path) -> tuple[Path, Path]:
    """As `changed_trees` makes them, and `cpu_sync` of one seed."""
    old, new = changed_trees(tmp_path, VALUES)
    for root in (old, new):
        put(root, make_spec("cpu_sync"), 0.97)
    return old, new


def found(trees: tuple[Path, Path]) -> dict[str, CellMove]:
    return {move.pair.now.about.mode: move for move in moves(*map(origin, trees))}


def test_what_is_worse_comes_first_with_its_reason(trees: tuple[Path, Path]) -> None:
    known = found(trees)
    assert {mode: move.trend for mode, move in known.items()} == {
        "nccl_sync": "worse",
        "nccl_cadence": "worse",
        "solo": "same",
        "cpu_sync": "same",  # the same bits
    }
    assert list(known)[:2] == ["nccl_sync", "nccl_cadence"] or list(known)[:2] == ["nccl_cadence", "nccl_sync"]
    assert (known["nccl_sync"].losses, known["nccl_sync"].gains) == (["result"], [])
    assert known["nccl_cadence"].losses == ["status"]
    text = sentence(list(known.values()))
    assert text.startswith("**Worse in 2 of 4 cells**: ")
    assert "accuracy -5.00 pt (-5." in text
    assert "1 ok → 1 failed" in text
    assert text.endswith("No change is shown in the other 2 cells.")


def test_the_other_way_round_it_is_better(trees: tuple[Path, Path]) -> None:
    text = sentence(moves(*map(origin, reversed(trees))))
    assert text.startswith("**Better in 2 of 4 cells**: ")
    assert "accuracy +5.00 pt (+4." in text


@pytest.mark.parametrize(("seeds", "trend"), [(2, "open"), (5, "worse")])
def test_seeds_that_miss_the_target_now_are_no_sameness(tmp_path: Path, seeds: int, trend: str) -> None:
    """The final metrics are as before, so that only the target tells."""
    for root, reached in (("old", True), ("new", False)):
        for seed in range(seeds if reached else seeds + 1):
            spec = make_spec("nccl_sync", seed=seed)
            metrics = make_metrics(spec)
            value = metrics.final.model_copy(update={"eval": 0.97 + 0.001 * (seed % 3)})
            target = (
                metrics.target
                if reached
                else metrics.target.model_copy(update={"reached": False, "samples": None, "seconds": None})
            )
            own = {"final": value, "target": target, "params_sha256": f"{root}{seed}"}
            write_run(tmp_path / root, spec, metrics.model_copy(update=own))
    (move,) = moves(origin(tmp_path / "old"), origin(tmp_path / "new"))
    assert move.trend == trend
    assert row(move)["time to target"] == f"{seeds} of {seeds} → 0 of {seeds + 1}"
    if trend == "worse":
        assert move.losses == ["target"]
        assert f"target reached by {seeds} of {seeds} → 0 of {seeds + 1} seeds" in sentence([move])
        (back,) = moves(origin(tmp_path / "new"), origin(tmp_path / "old"))
        assert (back.trend, back.gains) == ("better", ["target"])


def test_more_seeds_that_all_reach_the_target_are_no_change(tmp_path: Path) -> None:
    for root, seeds in (("old", 2), ("new", 3)):
        for seed in range(seeds):
            write_run(
                tmp_path / root, make_spec("nccl_sync", seed=seed), make_metrics(make_spec("nccl_sync", seed=seed))
            )
    (move,) = moves(origin(tmp_path / "old"), origin(tmp_path / "new"))
    assert move.pair.reached == (1, 1)
    assert move.trend != "open"
    assert "→" not in row(move)["time to target"]


def test_an_edited_result_is_left_out(trees: tuple[Path, Path], capsys: Capture) -> None:
    """It was compared without a word."""
    path = sorted(trees[1].rglob("metrics.json"))[0]
    body = json.loads(path.read_text())
    body["throughput"]["samples_per_s"] = -1.0
    path.write_text(json.dumps(body))
    now = side(str(trees[1]), trees[1])
    assert path.parent not in [run.path for cell in now.cells for run in cell.runs]
    assert capsys.readouterr().err.startswith(f"bench: left out: {path}: throughput.samples_per_s is -1")


def test_nothing_in_common_is_said(tmp_path: Path, trees: tuple[Path, Path]) -> None:
    cell(tmp_path / "other", "solo", VALUES, data="mnist")
    assert sentence(moves(origin(trees[0]), origin(tmp_path / "other"))).startswith("**Nothing to compare**")


def test_one_seed_shows_nothing(tmp_path: Path) -> None:
    for name, value in (("old", 0.97), ("new", 0.96)):
        metrics = make_metrics(make_spec("nccl_sync"))
        own = {"final": metrics.final.model_copy(update={"eval": value}), "params_sha256": name}
        write_run(tmp_path / name, make_spec("nccl_sync"), metrics.model_copy(update=own))
    (move,) = moves(origin(tmp_path / "old"), origin(tmp_path / "new"))
    assert move.trend == "open"
    assert sentence([move]) == "1 cell had too few seeds to tell a change from chance."


def test_a_side_of_equal_seeds_leaves_the_interval_of_the_other() -> None:
    same = difference([0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.1], True)  # their sd is 1e-17
    assert same == MeanDifference(0.0, None, None, 4, 3)
    for sides, sign in ((([0.974, 0.972, 0.976], [0.1] * 3), -1), (([0.1] * 3, [0.974, 0.972, 0.976]), 1)):
        flat = difference(*sides, True)
        assert flat is not None
        assert flat.low is not None
        assert flat.value == pytest.approx(sign * 0.874)
        assert flat.value - flat.low == pytest.approx(4.303 * 0.002 / math.sqrt(3), rel=1e-3)  # t(0.975, 2), Welch


@pytest.mark.parametrize(("before", "trend"), [((0.974, 0.972, 0.976), "worse"), ((0.974,) * 3, "open")])
def test_equal_seeds_are_no_sameness(tmp_path: Path, before: tuple[float, ...], trend: str) -> None:
    """A loss of 47 points was no change, as speeds had an interval."""
    for name, values in (("old", before), ("new", (0.5,) * 3)):
        for seed, value in enumerate(values):
            spec = make_spec("nccl_sync", seed=seed, target=None)
            own = {
                "final": make_metrics(spec).final.model_copy(update={"eval": value}),
                "params_sha256": f"{name}{seed}",
            }
            write_run(tmp_path / name, spec, make_metrics(spec).model_copy(update=own))
    (move,) = moves(origin(tmp_path / "old"), origin(tmp_path / "new"))
    assert move.speed is not None
    assert move.speed.low is not None
    assert move.trend == trend


def test_a_loss_that_rose_is_shown_so(tmp_path: Path) -> None:
    for name, values in (("old", (5.0, 5.1, 5.2)), ("new", (6.0, 6.1, 6.2))):
        for seed, value in enumerate(values):
            spec = make_spec("nccl_sync", seed=seed, metric="perplexity", higher_is_better=False, target=None)
            own = {
                "final": make_metrics(spec).final.model_copy(update={"eval": value}),
                "params_sha256": f"{name}{seed}",
            }
            write_run(tmp_path / name, spec, make_metrics(spec).model_copy(update=own))
    before, now = origin(tmp_path / "old"), origin(tmp_path / "new")
    (move,) = moves(before, now)
    assert (move.trend, row(move)["final metric"]) == ("worse", "+1 (+0.7733 to +1.227)")
    write_comparison(before, now, tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "**+1 [+0.7733, +1.227]**" in text
    assert "+ is better" not in text


def test_the_report_begins_with_the_answer(
    trees: tuple[Path, Path], tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    monkeypatch.setenv("GITHUB_ACTIONS", "false")
    words = ["compare", *map(str, trees), "--out", str(tmp_path / "out")]
    assert cli.dispatch(words) == Exit.OK
    assert "**Worse in 2 of 4 cells**" in capsys.readouterr().out
    assert not (tmp_path / "summary.md").exists()
    text = (tmp_path / "out" / "report.md").read_text()
    head = text.partition("\n## ")[0]
    assert (
        head.index("Worse in 2") < head.index("| cells worse") < head.index("comparison.png") < head.index("| change")
    )
    assert len(head.split()) < 400
    for heading in ("## What changed", "## The two sides"):
        assert heading in text
    assert len(pd.read_csv(tmp_path / "out" / "comparison.csv")) == 3, "one has no results now"
    assert "<details" in (tmp_path / "out" / "report.html").read_text()
    assert cli.dispatch([*words, "--github"]) == Exit.OK
    assert (tmp_path / "summary.md").read_text().startswith("## ")


def many(shift: float) -> Side:
    """Forty cells of three seeds."""
    runs = []
    metrics = make_metrics(make_spec("nccl_sync"))
    for key in range(40):
        for seed, value in enumerate(VALUES):
            final = metrics.final.model_copy(update={"eval": value + shift})
            own = {"final": final, "seed": seed, "config_hash": f"{key:08x}", "params_sha256": str(shift)}
            runs.append(Run(Path(f"{key}-{seed}"), metrics.model_copy(update=own)))
    return Side(f"shift {shift}", tuple(cells(runs)))


def sped(factor: float, **about: object) -> Side:
    """Two cells of three seeds: one is `factor` times as fast, the other one is about something else, too."""
    runs = []
    metrics = make_metrics(make_spec("nccl_sync"))
    for key, (times, own) in enumerate(((factor, {}), (factor**4, about))):
        for seed in range(3):
            speed = metrics.throughput.model_copy(update={"samples_per_s": times * (100 + seed)})
            known = {"throughput": speed, "seed": seed, "config_hash": f"{key:08x}", "params_sha256": "as before"}
            runs.append(Run(Path(f"{key}-{seed}"), metrics.model_copy(update=known | own)))
    return Side(f"{factor} times as fast", tuple(cells(runs)))


@pytest.mark.parametrize("about", [{"env": {"cpu": "another"}}, {"source": "virtual"}])
def test_speeds_of_two_machines_or_clocks_are_no_change(about: dict[str, object]) -> None:
    """They were in the mean of the tile, and counted as changed, though no change was shown."""
    here, there = sped(1.0, env={"cpu": "this one"}), sped(0.5, **about)
    own, other = [CellMove(pair) for pair in common(here.cells, there.cells)]
    assert (own.trend, own.pair.changed) == ("worse", True)
    assert (other.trend, other.pair.changed) == ("same", False)
    known = moves(here, there)
    assert [(tile.value, tile.dim) for tile in tiles(known)[1:2]] == [("0.50 ×", False)]
    assert (tiles([other])[1].value, tiles([other])[1].dim) == (("–", False) if "source" in about else ("0.06 ×", True))


def test_the_summary_of_a_step_is_short_and_its_table_folded() -> None:
    before, now = many(0.0), many(-0.05)
    known = moves(before, now)
    text = step_summary(before, now, known)
    seen, _, folded = text.partition("<details>")
    assert len(seen.splitlines()) <= LINES
    assert folded.count("\n| mlp") == 40
    assert text.rstrip().endswith("</details>")
    assert tiles(known)[0].value == "40 of 40"


def test_commits_and_machines_are_sides_of_one_tree(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    for k, (sha, cpu) in enumerate((("ab12" * 10, "Old CPU"), ("cd34" * 10, "New CPU"))):
        spec = make_spec("nccl_sync")
        own = {"git": {"sha": sha, "dirty": False}, "env": {"cpu": cpu, "cores": 2}}
        metrics = make_metrics(spec).model_copy(update=own)
        write_run(runs / str(k), spec, metrics)
    monkeypatch.setattr(environment, "_git", lambda *words: "cd34" * 10 if "main^{commit}" in words else None)
    for words in (("ab12ab1", "cd34cd3"), ("ab12ab1", "main"), ("old cpu", "New CPU")):
        before, now = (side(word, runs) for word in words)
        assert before.values("commit") == ["ab12ab12ab12"]
        assert now.values("machine") == ["New CPU, 2 cores"]
    assert cli.dispatch(["compare", "nobody", "main", "--runs", str(runs)]) == Exit.USAGE
    said = capsys.readouterr().err
    assert said.startswith("bench: nobody is no folder, nor a commit or machine of the runs in ")
    assert "commits ab12ab12ab12, cd34cd34cd34; machines New CPU, 2 cores, Old CPU, 2 cores" in said
    assert cli.dispatch(["compare", "old cpu", "main", "--runs", str(runs), "--out", str(tmp_path / "out")]) == Exit.OK
    assert "The machines differ" in capsys.readouterr().out
    assert cli.dispatch(["compare", "a", "b", "--runs", str(tmp_path / "none")]) == Exit.USAGE

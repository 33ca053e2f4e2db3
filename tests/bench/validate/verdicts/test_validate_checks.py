"""Checks one by one, each with a run that it must catch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.results.schema import SCHEMA_VERSION, Metrics
from bench.validate import Terms, judge
from bench.validate.checks.curve import course
from bench.validate.evidence.consistency import PRESENCE
from bench.validate.revisions.revision import accept, write_proposals
from tests.bench.references import FIVE, TODAY, TWENTY, baselines, cell, one, with_eval
from tests.bench.streams import make_spec, write_run


def changed(root: Path, mode: str, seeds: int, **changes: object) -> Path:
    """Runs with fields of the result replaced."""
    for seed in range(seeds):
        spec = make_spec(mode, seed=seed)
        metrics: Metrics = with_eval(spec, TWENTY[seed])
        write_run(root, spec, metrics.model_copy(update=changes))
    return root


@pytest.mark.parametrize(("check", "version"), [("volume", SCHEMA_VERSION), ("breakdown", PRESENCE - 1)])
def test_a_rank_that_came_later_sent_less_and_once_had_no_breakdown(tmp_path: Path, check: str, version: int) -> None:
    spec = make_spec("nccl_cadence")
    metrics = with_eval(spec, 0.97)
    sync = metrics.sync.model_copy(update={"bytes": int(metrics.sync.bytes * 0.9)})
    for late in ([], [1]):
        changes = {"sync": sync, "breakdown": [], "late": late, "schema_version": version}
        write_run(tmp_path / str(late), spec, metrics.model_copy(update=changes))
    assert one(tmp_path / "[]", tmp_path / "none", check).name == "FAIL"
    verdicts = judge([tmp_path / "[1]"], tmp_path / "none").verdicts
    assert "FAIL" not in [v.name for v in verdicts if v.check == check]


def test_a_rank_that_came_later_has_a_breakdown(tmp_path: Path) -> None:
    spec = make_spec("nccl_cadence")
    write_run(tmp_path / "run", spec, with_eval(spec, 0.97).model_copy(update={"breakdown": [], "late": [1]}))
    verdicts = judge([tmp_path / "run"], tmp_path / "none").verdicts
    assert "FAIL" in [v.name for v in verdicts if v.check == "breakdown"]


def test_two_runs_of_a_seed_must_have_the_same_bits(tmp_path: Path) -> None:
    for name, sha in (("a", "one"), ("b", "one"), ("c", "two")):
        changed(tmp_path / name, "nccl_sync", 1, params_sha256=sha)
    same = tmp_path / "same"
    same.mkdir()
    (tmp_path / "a").rename(same / "a")
    (tmp_path / "b").rename(same / "b")
    assert one(same, tmp_path / "none", "determinism").name == "PASS"
    (tmp_path / "c").rename(same / "c")
    verdict = one(same, tmp_path / "none", "determinism")
    assert (verdict.name, "params_sha256: one and two" in verdict.line) == ("FAIL", True)


def test_two_machines_promise_no_bits(tmp_path: Path) -> None:
    """Neither two runs of a tree, nor a baseline whose seeds were trained on several machines."""
    there = {"cores": 64, "torch": "2", "cpu": "another"}
    for name, changes in (("a", {}), ("b", {"params_sha256": "other", "env": there})):
        changed(tmp_path / "runs" / name, "nccl_sync", 1, **changes)
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(tmp_path / "runs", tmp_path / "none", "determinism")
    changed(tmp_path / "runs" / "c", "nccl_sync", 1, params_sha256="third", env=there)
    assert one(tmp_path / "runs", tmp_path / "none", "determinism").name == "FAIL"


def test_a_baseline_keeps_the_bits_of_one_machine(tmp_path: Path) -> None:
    runs = cell(tmp_path / "runs", "solo", FIVE)
    (last,) = (path for path in runs.rglob("metrics.json") if "-s4-" in path.parent.name)
    body = json.loads(last.read_text())
    last.write_text(json.dumps(body | {"params_sha256": "other", "env": body["env"] | {"cpu": "another"}}))
    (made,) = write_proposals(runs, tmp_path / "proposals", TODAY)
    assert made.params_sha256 == {seed: f"end {seed}" for seed in "0123"}
    accept(tmp_path / "proposals", tmp_path / "base")
    assert one(cell(tmp_path / "same", "solo", FIVE), tmp_path / "base", "determinism").name == "PASS"


@pytest.mark.parametrize("git", [{"sha": "other"}, {"sha": "abc", "dirty": True}, {"sha": None, "version": "2"}])
def test_two_sources_promise_no_bits(tmp_path: Path, git: dict[str, object]) -> None:
    """An earlier version of the source made the same cell and seed fail."""
    changed(tmp_path / "a", "nccl_sync", 1)
    changed(tmp_path / "b", "nccl_sync", 1, params_sha256="other", git=git)
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(tmp_path, tmp_path / "none", "determinism")
    changed(tmp_path / "c", "nccl_sync", 1, params_sha256="third", git=git)
    assert one(tmp_path, tmp_path / "none", "determinism").name == "FAIL"


def test_modes_that_follow_speeds_promise_no_bits(tmp_path: Path) -> None:
    for name in ("a", "b"):
        changed(tmp_path / name, "nccl_cadence", 1, params_sha256=name)
    (found,) = cells(find_runs(tmp_path)[0])
    assert len(found.runs) == 2
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(tmp_path, tmp_path / "none", "determinism")


def test_bits_are_held_against_the_baseline_of_the_same_source_and_machine(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    assert one(cell(tmp_path / "same", "solo", FIVE), base, "determinism").name == "PASS"
    assert one(changed(tmp_path / "x", "solo", 5, params_sha256="x"), base, "determinism").name == "FAIL"
    with pytest.raises(ValueError, match="expected 1, got 0"):
        one(changed(tmp_path / "y", "solo", 5, params_sha256="x", git={"sha": "other"}), base, "determinism")


def test_seeds_that_miss_the_target(tmp_path: Path) -> None:
    base = baselines(tmp_path, TWENTY)
    metrics = with_eval(make_spec("nccl_sync"), 0.97)
    missed = metrics.target.model_copy(update={"reached": False, "samples": None})
    hit = metrics.target.model_copy(update={"reached": True, "samples": 1})
    assert one(changed(tmp_path / "a", "nccl_sync", 5, target=missed), base, "target").name == "FAIL"
    assert one(changed(tmp_path / "b", "nccl_sync", 5, target=hit), base, "target").name == "PASS"
    runs = changed(tmp_path / "c", "nccl_sync", 5, target=hit)
    for seed in (0, 1):
        spec = make_spec("nccl_sync", seed=seed)
        write_run(runs, spec, with_eval(spec, 0.97).model_copy(update={"target": missed}))
    verdict = one(runs, base, "target")
    assert "3 of 5 seeds reach accuracy" in verdict.line
    assert verdict.name == "INCONCLUSIVE", "2 of 5 against 0 of 20 is p = 0.012"


def diverging(root: Path, statuses: tuple[str, ...], mode: str = "nccl_sync") -> Path:
    for seed, status in enumerate(statuses):
        spec = make_spec(mode, seed=seed)
        metrics = with_eval(spec, TWENTY[seed] if status == "ok" else 0.1 if status == "collapsed" else None)
        write_run(root, spec, metrics.model_copy(update={"status": "ok" if status == "collapsed" else status}))
    return root


def test_a_seed_that_diverged_is_never_left_out(tmp_path: Path) -> None:
    """None: a pass that says how often it may happen. One or two: no pass. More than chance explains: FAIL."""
    base = baselines(tmp_path, TWENTY)
    clean = diverging(tmp_path / "clean", ("ok",) * 3)
    assert "0 of 3 seeds diverged, so at most 63% do (95 %)" in one(clean, base).line
    assert (one(clean, base, "diverged").name, one(clean, base, "status").name) == ("PASS", "PASS")
    for bad in ("diverged", "collapsed"):
        two = diverging(tmp_path / bad, (bad, "ok", bad, "ok", "ok"))
        verdict = one(two, base, "diverged")
        assert (verdict.name, "2 of 5 seeds diverged (0, 2)" in verdict.line) == ("INCONCLUSIVE", True)
        assert judge([two], base, Terms(today=TODAY, allow_inconclusive=True)).code is Exit.INCONCLUSIVE, "not eased"
        assert judge([two], base, Terms(today=TODAY, only=("speed",))).code is Exit.INCONCLUSIVE, "not left out"
        many = diverging(tmp_path / f"{bad}4", (bad,) * 4 + ("ok",) * 4)
        assert one(many, base, "diverged").name == "FAIL"
    assert one(diverging(tmp_path / "all", ("diverged",) * 2), base, "status").name == "FAIL"
    assert one(diverging(tmp_path / "none", ("ok", "diverged")), tmp_path / "nothing", "status").name == "FAIL"


def test_a_seed_that_diverged_once_has_diverged(tmp_path: Path) -> None:
    base = baselines(tmp_path, TWENTY)
    diverging(tmp_path / "runs" / "a", ("diverged", "ok", "ok"))
    diverging(tmp_path / "runs" / "b", ("ok",))
    assert "1 of 3 seeds diverged (0)" in one(tmp_path / "runs", base, "diverged").line


def test_curves_outside_the_band(tmp_path: Path) -> None:
    base = baselines(tmp_path, TWENTY)
    rows = with_eval(make_spec("solo"), 0.97).epochs

    def verdict(name: str, factor: float) -> str:
        epochs = [row.model_copy(update={"train_loss": (row.train_loss or 0.0) * factor}) for row in rows]
        return one(changed(tmp_path / name, "solo", 3, epochs=epochs), base, "curve").name

    assert verdict("same", 1.0) == "PASS"
    assert verdict("worse", 2.0) == "FAIL"
    assert verdict("better", 0.3) == "SUSPICIOUS"
    provisional = baselines(tmp_path / "five")
    assert one(tmp_path / "worse", provisional, "curve").name == "INCONCLUSIVE"


def test_a_value_that_is_missing_is_outside() -> None:
    from bench.validate.baselines.reference import Curve

    metrics = with_eval(make_spec("solo"), 0.97)
    curve = Curve(
        higher_is_better=False, samples=[1] * 3, q10=[0.0] * 3, q50=[1.0] * 3, q90=[9.0] * 3, margin=[0.0] * 3
    )
    rows = [row.model_copy(update={"train_loss": None}) for row in metrics.epochs]
    found = course(curve, "train_loss", [metrics.model_copy(update={"epochs": rows})])
    assert (found.points, found.worse, found.better) == (3, 3, 0)


def test_seeds_that_end_alike_are_refused_here_in_the_baseline_and_against_it(tmp_path: Path) -> None:
    base = baselines(tmp_path)
    assert one(cell(tmp_path / "good", "solo", FIVE), base, "seeds").name == "PASS"
    alike = one(changed(tmp_path / "alike", "solo", 3, params_sha256="copied"), base, "seeds")
    assert (alike.name, alike.exit_code) == ("REFUSED", Exit.REFUSED)
    assert alike.line.startswith("seeds 0 and 1 ended with the same parameters (copied)")
    copied = one(changed(tmp_path / "old", "solo", 1, params_sha256="end 3"), base, "seeds")
    assert copied.name == "REFUSED"
    assert "seed 0 ended with the parameters of the baseline's seed 3 (end 3)" in copied.line
    for name in ("a", "b"):
        changed(tmp_path / "twice" / name, "solo", 1)
    assert one(tmp_path / "twice", base, "seeds").name == "PASS", "a seed that is trained again ends alike"
    with pytest.raises(ValueError, match=r"mlp solo: seeds 0 and 1 ended with the same parameters \(copied\)"):
        write_proposals(changed(tmp_path / "five", "solo", 5, params_sha256="copied"), tmp_path / "out", TODAY)

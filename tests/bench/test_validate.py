from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.exitcodes import Exit
from bench.schema import Metrics
from bench.spec import RunSpec
from bench.validate import Verdict, exit_code, validate, write_baseline
from bench.validate.baseline import read_baseline
from tests.bench.streams import make_metrics, make_spec, write_run

DATE = "2026-11-21"


def with_eval(spec: RunSpec, value: float | None) -> Metrics:
    metrics = make_metrics(spec)
    return metrics.model_copy(update={"final": metrics.final.model_copy(update={"eval": value})})


def put(root: Path, spec: RunSpec, value: float | None) -> Path:
    return write_run(root, spec, with_eval(spec, value))


@pytest.fixture
def baseline(tmp_path: Path) -> Path:
    for seed, value in enumerate([0.970, 0.972, 0.974, 0.976, 0.978]):
        put(tmp_path / "base", make_spec("solo", seed=seed), value)
    path = tmp_path / "baselines" / "structured.json"
    lines = write_baseline(tmp_path / "base", path, created=DATE)
    assert lines == ["mlp on digits, recipe quick: accuracy 0.9740 ± 0.0032 (n=5)"]
    return path


def judge(root: Path, baseline: Path, check: str = "quality") -> Verdict:
    (verdict,) = [v for v in validate(root, baseline) if v.check == check]
    return verdict


@pytest.mark.parametrize(
    ("value", "name"),
    [(0.974, "PASS"), (0.9591, "PASS"), (0.9589, "FAIL"), (0.1, "FAIL"), (1.0, "PASS"), (None, "FAIL")],
)
def test_quality_is_one_sided_with_a_margin(tmp_path: Path, baseline: Path, value: float | None, name: str) -> None:
    put(tmp_path / "runs", make_spec("nccl_cadence"), value)
    verdict = judge(tmp_path / "runs", baseline)
    assert verdict.name == name, verdict
    assert ("reproduce: python -m bench model=mlp mode=nccl_cadence" in verdict.line) == (name == "FAIL")
    if value is not None:
        assert "solo 0.9740 ± 0.0032 (n=5)" in verdict.line
        assert "margin 0.0150 (the floor" in verdict.line
    assert exit_code(validate(tmp_path / "runs", baseline)) == (0 if name == "PASS" else 1)


def test_seeds_of_a_cell_are_judged_together(tmp_path: Path, baseline: Path) -> None:
    for seed, value in enumerate([0.95, 0.98]):
        put(tmp_path / "runs", make_spec("nccl_cadence", seed=seed), value)
    verdict = judge(tmp_path / "runs", baseline)
    assert verdict.name == "PASS"
    assert "0.9650 ± 0.0212 (n=2)" in verdict.line


def test_where_lower_is_better_higher_fails(tmp_path: Path) -> None:
    def lower(mode: str, seed: int, value: float) -> Metrics:
        spec = make_spec(mode, seed=seed, higher_is_better=False, metric="perplexity")
        write_run(tmp_path / mode, spec, with_eval(spec, value))
        return with_eval(spec, value)

    for seed in range(5):
        lower("solo", seed, 3.0 + seed)
    write_baseline(tmp_path / "solo", tmp_path / "b.json", created=DATE)
    lower("nccl_sync", 0, 2.0)
    assert judge(tmp_path / "nccl_sync", tmp_path / "b.json").name == "PASS"
    lower("nccl_async", 0, 20.0)
    verdict = judge(tmp_path / "nccl_async", tmp_path / "b.json")
    assert verdict.name == "FAIL"
    assert "margin 3.9528 (2.5 sd)" in verdict.line


def test_another_workload_is_refused_field_by_field(tmp_path: Path, baseline: Path) -> None:
    put(tmp_path / "runs", make_spec("nccl_cadence", batch_size=64, epochs=9), 0.97)
    verdict = judge(tmp_path / "runs", baseline)
    assert verdict.name == "REFUSED"
    assert "epochs: 3 in the baseline | 9 here; batch_size: 32 in the baseline | 64 here" in verdict.line
    assert exit_code([verdict]) == 4


def test_without_an_entry_there_is_no_baseline(tmp_path: Path, baseline: Path) -> None:
    put(tmp_path / "runs", make_spec("nccl_cadence", model="other"), 0.97)
    assert judge(tmp_path / "runs", baseline).name == "NO_BASELINE"
    assert judge(tmp_path / "runs", tmp_path / "missing.json").name == "NO_BASELINE"
    assert exit_code(validate(tmp_path / "runs", baseline)) == 4


def test_failed_and_diverged_runs(tmp_path: Path, baseline: Path) -> None:
    spec = make_spec("nccl_cadence")
    write_run(tmp_path / "a", spec, make_metrics(spec, status="failed", error="boom"))
    verdict = judge(tmp_path / "a", baseline, "status")
    assert (verdict.name, verdict.exit_code) == ("FAIL", 5)
    assert "boom" in verdict.line
    write_run(tmp_path / "b", spec, make_metrics(spec, status="diverged", error="nan"))
    assert judge(tmp_path / "b", baseline, "status").exit_code == 1
    assert exit_code(validate(tmp_path / "a", baseline)) == 5


def test_a_breakdown_that_does_not_sum_to_one_fails(tmp_path: Path, baseline: Path) -> None:
    spec = make_spec("nccl_cadence")
    metrics = with_eval(spec, 0.97)
    off = [metrics.breakdown[0].model_copy(update={"other": 0.5}), metrics.breakdown[1]]
    write_run(tmp_path / "runs", spec, metrics.model_copy(update={"breakdown": off}))
    assert judge(tmp_path / "runs", baseline, "breakdown").name == "FAIL"


def test_unreadable_folders_are_refused(tmp_path: Path, baseline: Path) -> None:
    folder = put(tmp_path / "runs", make_spec("nccl_cadence"), 0.97)
    (folder.parent / "bad").mkdir()
    (folder.parent / "bad" / "metrics.json").write_text("{")
    verdicts = validate(tmp_path / "runs", baseline)
    assert (verdicts[0].name, verdicts[0].check) == ("REFUSED", "readable")
    assert exit_code(verdicts) == 4


@pytest.mark.parametrize(
    ("codes", "worst"), [([], 4), ([0, 0], 0), ([0, 4], 4), ([4, 1], 1), ([1, 5, 4], 5), ([5, 0], 5)]
)
def test_the_worst_wins(codes: list[int], worst: int) -> None:
    assert exit_code([Verdict("PASS", "c", "x", "", Exit(code)) for code in codes]) == worst


def test_a_baseline_keeps_its_other_workloads(tmp_path: Path, baseline: Path) -> None:
    for seed in range(6):
        put(tmp_path / "more", make_spec("solo", seed=seed, model="another"), 0.9 + seed / 100)
    put(tmp_path / "more", make_spec("nccl_sync", model="another"), 0.1)
    write_baseline(tmp_path / "more", baseline, created=DATE)
    entries = read_baseline(baseline).entries
    assert [entry.model for entry in entries] == ["another", "mlp"]
    assert [seed.eval for seed in entries[1].seeds] == [0.970, 0.972, 0.974, 0.976, 0.978]
    assert len(entries[0].seeds) == 6
    before = baseline.read_bytes()
    write_baseline(tmp_path / "more", baseline, created=DATE)
    assert baseline.read_bytes() == before


def test_a_baseline_is_not_written_from_too_little(tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    put(tmp_path / "runs", make_spec("nccl_sync"), 0.9)
    with pytest.raises(ValueError, match="no solo runs"):
        write_baseline(tmp_path / "runs", out, created=DATE)
    for seed in range(4):
        put(tmp_path / "runs", make_spec("solo", seed=seed), 0.9)
    with pytest.raises(ValueError, match="4 solo seeds, a baseline needs 5"):
        write_baseline(tmp_path / "runs", out, created=DATE)
    spec = make_spec("solo", seed=4)
    write_run(tmp_path / "runs", spec, make_metrics(spec, status="killed"))
    with pytest.raises(ValueError, match="not every solo run finished"):
        write_baseline(tmp_path / "runs", out, created=DATE)
    put(tmp_path / "runs", spec, 0.9)
    for seed in range(5):
        put(tmp_path / "runs", make_spec("solo", seed=seed, epochs=9), 0.9)
    with pytest.raises(ValueError, match="2 configurations"):
        write_baseline(tmp_path / "runs", out, created=DATE)
    assert not out.exists()


def test_a_malformed_baseline_is_one_clear_line(tmp_path: Path, baseline: Path) -> None:
    body = json.loads(baseline.read_text())
    body["entries"][0]["seeds"] = body["entries"][0]["seeds"][:2]
    baseline.write_text(json.dumps(body))
    with pytest.raises(ValueError, match=r"structured.json: entries.0.seeds: .*at least 5"):
        read_baseline(baseline)
    baseline.write_text("{")
    with pytest.raises(ValueError, match=r"structured\.json: file: Invalid JSON"):
        read_baseline(baseline)

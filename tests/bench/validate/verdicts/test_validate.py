"""Verdicts on run folders, from the folder to the line."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.validate import Judgement, Terms, Verdict, judge
from bench.validate.outputs.verdict_text import lines
from tests.bench.references import FIVE, TODAY, TWENTY, baselines, cell, one, put, verdicts, with_eval
from tests.bench.streams import make_metrics, make_spec, write_run

MODE = "nccl_cadence"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return baselines(tmp_path_factory.mktemp("five"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return baselines(tmp_path_factory.mktemp("twenty"), TWENTY)


@pytest.mark.parametrize(
    ("values", "name", "why"),
    [
        ((0.974,), "INCONCLUSIVE", "2 more seeds needed: python -m bench -m model=mlp mode=nccl_cadence"),
        ((0.974, 0.975, 0.973), "PASS", "not inferior"),
        ((0.964, 0.968, 0.966), "INCONCLUSIVE", "2 more seeds needed"),
        ((0.964, 0.968, 0.966, 0.967), "INCONCLUSIVE", "1 more seed needed: python -m bench model=mlp"),
        ((0.5,), "FAIL", "inferiority beyond any test"),
        ((0.90, 0.91, 0.89), "FAIL", "inferiority beyond any test"),
        ((1.0, 1.0, 0.999), "SUSPICIOUS", "--accept-improvement"),
        ((None, 0.97, 0.97), "FAIL", "no accuracy was measured"),
    ],
)
def test_quality(tmp_path: Path, base: Path, values: tuple[float, ...], name: str, why: str) -> None:
    verdict = one(cell(tmp_path, MODE, values), base)
    assert (verdict.name, why in verdict.line) == (name, True), verdict
    assert verdict.reproduce.startswith("python -m bench")
    assert str(verdict).endswith(verdict.reproduce) == (name != "PASS"), "who passes needs no command"
    if None not in values:
        assert "solo 0.9740 ± 0.0029 (n=5)" not in verdict.line
        assert "solo 0.9740 ± 0.0032 (n=5)" in verdict.line
        assert "margin 0.0079 (2.5 sd, over the floor of 0.005)" in verdict.line
        assert "bounds [" in verdict.line


def test_the_reproduce_command_has_all_seeds(tmp_path: Path, base: Path) -> None:
    assert one(cell(tmp_path, MODE, FIVE), base).reproduce.endswith("seed=0,1,2,3,4")


def test_not_shown_fails_only_after_the_last_look_and_against_a_whole_baseline(
    tmp_path: Path, base: Path, whole: Path
) -> None:
    runs = cell(tmp_path, MODE, (0.965, 0.969, 0.966, 0.970, 0.967, 0.968, 0.966, 0.969))
    verdict = one(runs, whole)
    why = "proved worse, and not shown to be within the margin, after the last look at 8 seeds"
    assert (verdict.name, why in verdict.line) == ("FAIL", True)
    luck = cell(tmp_path / "luck", MODE, (0.974, 0.972, 0.96, 0.978, 0.96, 0.97, 0.961, 0.96))
    verdict = one(luck, whole)
    assert (verdict.name, "they scatter too much" in verdict.line) == ("INCONCLUSIVE", True), "nothing fails by luck"
    verdict = one(runs, base)
    assert (verdict.name, "the baseline has 5 seeds, 20 are needed to decide" in verdict.line) == ("INCONCLUSIVE", True)


def test_a_seed_that_is_there_twice_counts_once(tmp_path: Path, base: Path) -> None:
    cell(tmp_path / "a", MODE, (0.974, 0.975))
    cell(tmp_path / "b", MODE, (0.974, 0.975))
    assert "n=2" in one(tmp_path, base).line


def test_seeds_beyond_the_look_wait(tmp_path: Path, whole: Path) -> None:
    line = one(cell(tmp_path, MODE, (0.974, 0.975, 0.973, 0.1)), whole).line
    assert "(n=3, the first of 4)" in line
    assert "not inferior" in line


def test_an_improvement_can_be_accepted(tmp_path: Path, base: Path) -> None:
    runs = cell(tmp_path, MODE, (1.0, 1.0, 0.999))
    assert one(runs, base, accept_improvement=True).name == "PASS"
    assert judge([runs], base, Terms(today=TODAY)).code is Exit.INCONCLUSIVE


def test_where_lower_is_better_higher_fails(tmp_path: Path) -> None:
    lower = {"higher_is_better": False, "metric": "perplexity"}
    base = baselines(tmp_path, (3.0, 4.0, 5.0, 6.0, 7.0), **lower)
    assert one(cell(tmp_path / "b", "nccl_sync", (4.5, 5.0, 4.0), **lower), base).name == "PASS"
    verdict = one(cell(tmp_path / "w", "nccl_async", (20.0, 21.0, 20.5), **lower), base)
    assert verdict.name == "FAIL"
    assert "worse by 15.5000" in verdict.line
    assert "margin 3.9528 (2.5 sd" in verdict.line


def test_seeds_that_scatter_more_are_told(tmp_path: Path, whole: Path) -> None:
    runs = cell(tmp_path, MODE, (0.90, 1.04, 0.95, 1.0, 0.98))
    assert one(runs, whole, "variance").name == "VARIANCE_SHIFT"
    assert "lost updates" in one(runs, whole, "variance").line
    assert one(cell(tmp_path / "s", MODE, FIVE), whole, "variance").name == "PASS"


def test_another_workload_is_refused_field_by_field(tmp_path: Path, base: Path) -> None:
    runs = cell(tmp_path, MODE, (0.97,), batch_size=64, epochs=9)
    verdict = one(runs, base, "baseline")
    assert verdict.name == "REFUSED"
    assert "epochs: 3 in the baseline | 9 here; batch_size: 32 in the baseline | 64 here" in verdict.line
    shown = "\n".join(lines(judge([runs], base, Terms(today=TODAY))))
    assert "epochs      3           9" in shown
    assert (MODE, "quality") not in verdicts(runs, base)
    assert Judgement([verdict], []).code == 4


def test_another_environment_is_refused_unless_allowed(tmp_path: Path, base: Path) -> None:
    spec = make_spec(MODE)
    metrics = with_eval(spec, 0.974)
    write_run(tmp_path, spec, metrics.model_copy(update={"env": {"cores": 2, "torch": "3.1.0", "cpu": "new"}}))
    verdict = one(tmp_path, base, "baseline")
    assert (verdict.name, verdict.exit_code) == ("REFUSED", 4)
    assert [tuple(row) for row in verdict.fields] == [("env.torch", "2", "3.1")]
    judgement = judge([tmp_path], base, Terms(today=TODAY, allowed=("torch",)))
    assert judgement.code is Exit.INCONCLUSIVE
    assert "allowed to differ: torch" in judgement.footer
    typo = judge([tmp_path], base, Terms(today=TODAY, allowed=("torch", "batch_siz"))).footer
    assert typo[-1] == "but nothing differs in: batch_siz"
    for late, allowed in ((TODAY, ("cpu",)), (date(2027, 6, 1), ("torch",)), (TODAY, ("torch", "cpu"))):
        spoken = judge([tmp_path], base, Terms(today=late, allowed=allowed)).footer
        assert spoken[-1] == f"allowed to differ: {', '.join(allowed)}", "refused or expired: they differ all the same"
    (told,) = [v for v in judgement.verdicts if v.check == "baseline"]
    assert (told.name, "env.torch: 2 in the baseline | 3.1 here" in told.line) == ("INCONCLUSIVE", True)


def test_what_was_allowed_to_differ_passes_no_gate(tmp_path: Path) -> None:
    """Against twenty seeds everything passes; but the exit code is not 0."""
    base = baselines(tmp_path / "base", TWENTY)
    for seed in range(3):
        spec = make_spec(MODE, seed=seed)
        metrics = with_eval(spec, 0.974 + seed / 1000)
        write_run(tmp_path / "runs", spec, metrics.model_copy(update={"env": {"cores": 2, "torch": "3.1.0"}}))
    judgement = judge([tmp_path / "runs"], base, Terms(today=TODAY, allowed=("env.torch",)))
    assert {v.name for v in judgement.verdicts if v.check != "baseline"} == {"PASS"}
    assert judgement.code is Exit.INCONCLUSIVE


def test_the_same_cell_is_preferred_to_solo(tmp_path: Path, base: Path) -> None:
    own = baselines(tmp_path, tuple(0.9 + value / 1000 for value in range(5)), mode=MODE)
    for file in base.rglob("*.json"):
        (own / file.name).write_text(file.read_text())
    runs = cell(tmp_path / "runs", MODE, (0.9, 0.901, 0.902))
    found = verdicts(runs, own)
    assert "baseline 0.9020" in found[f"mlp {MODE} ×2", "quality"].line
    for check in ("samples", "curve", "target"):
        assert found[f"mlp {MODE} ×2", check].name == "PASS", found


def test_an_expired_baseline_is_not_compared_with(tmp_path: Path, base: Path) -> None:
    runs = cell(tmp_path, MODE, FIVE)
    late = Terms(today=date(2027, 6, 1))
    (verdict,) = [v for v in judge([runs], base, late).verdicts if v.name != "PASS"]
    assert (verdict.name, verdict.exit_code) == ("EXPIRED", 4)
    assert "expired after 2027-05-20" in verdict.line
    assert judge([runs], base, replace(late, allow_expired=True)).code is Exit.OK


def test_without_an_entry_there_is_no_baseline(tmp_path: Path, base: Path) -> None:
    runs = cell(tmp_path, MODE, (0.97,), model="other")
    assert one(runs, base, "baseline").name == "NO_BASELINE"
    assert one(runs, tmp_path / "missing", "baseline").name == "NO_BASELINE"
    assert judge([runs], base, Terms(today=TODAY)).code is Exit.REFUSED


def test_failed_and_diverged_runs(tmp_path: Path, base: Path) -> None:
    spec = make_spec(MODE)
    write_run(tmp_path / "a", spec, make_metrics(spec, status="failed", error="boom"))
    verdict = one(tmp_path / "a", base, "status")
    assert (verdict.name, verdict.exit_code) == ("FAIL", 5)
    assert "boom" in verdict.line
    write_run(tmp_path / "b", spec, make_metrics(spec, status="diverged", error="nan"))
    assert one(tmp_path / "b", base, "status").exit_code == 1
    assert judge([tmp_path / "a"], base).code == 5


def test_a_breakdown_that_does_not_sum_to_one_fails(tmp_path: Path, base: Path) -> None:
    spec = make_spec(MODE)
    metrics = with_eval(spec, 0.97)
    off = [metrics.breakdown[0].model_copy(update={"other": 0.5}), metrics.breakdown[1]]
    write_run(tmp_path, spec, metrics.model_copy(update={"breakdown": off}))
    assert one(tmp_path, base, "breakdown").name == "FAIL"


def test_unreadable_folders_are_refused(tmp_path: Path, base: Path) -> None:
    folder = put(tmp_path, make_spec(MODE), 0.97)
    (folder.parent / "bad").mkdir()
    (folder.parent / "bad" / "metrics.json").write_text("{")
    first = judge([tmp_path], base).verdicts[0]
    assert (first.name, first.check) == ("REFUSED", "readable")


@pytest.mark.parametrize(
    ("codes", "worst"), [([], 4), ([0, 0], 0), ([0, 3], 3), ([3, 4], 4), ([4, 1], 1), ([1, 5, 4], 5), ([5, 0], 5)]
)
def test_the_worst_wins(codes: list[int], worst: int) -> None:
    assert Judgement([Verdict("PASS", "c", "x", "", Exit(code)) for code in codes], []).code == worst


def test_a_known_failure_is_expected_until_its_last_day(tmp_path: Path, base: Path) -> None:
    folder = tmp_path / "baselines"
    folder.mkdir()
    for file in base.rglob("*.json"):
        (folder / file.name).write_text(file.read_text())
    about = f"cell: mlp {MODE} ×2, data: digits, recipe: quick"
    entry = f"- {{{about}, check: quality, reason: issue 12, until: 2026-12-01}}\n"
    (folder / "expected.yaml").write_text(entry)
    bad, good = cell(tmp_path / "bad", MODE, (0.5,)), cell(tmp_path / "good", MODE, FIVE)
    assert (one(bad, folder).name, one(good, folder).name) == ("XFAIL", "XPASS")
    assert judge([bad], folder, Terms(today=TODAY)).code is Exit.OK
    assert "expected until 2026-12-01: issue 12" in one(bad, folder).line
    assert judge([bad], folder, Terms(today=date(2026, 12, 2))).code is Exit.REGRESSION
    (folder / "expected.yaml").write_text(entry.replace("digits", "mnist"))
    assert one(bad, folder).name == "FAIL"  # of another data set nothing is known
    (folder / "expected.yaml").write_text(entry.replace("quality", "qualty"))
    with pytest.raises(ValueError, match=r"expected.yaml: entry 0: .*did you mean 'quality'"):
        judge([bad], folder)
    (folder / "expected.yaml").write_text(entry.replace("2026-12-01", "2026-13-01"))
    with pytest.raises(ValueError, match=r"expected.yaml: not a list of known failures: entry 0 until: "):
        judge([bad], folder)
    (folder / "expected.yaml").write_text("- {cell: x}\n")
    with pytest.raises(ValueError, match=r"expected.yaml: not a list of known failures"):
        judge([bad], folder)


def test_the_footer_tells_of_the_family(tmp_path: Path, whole: Path, base: Path) -> None:
    runs = cell(tmp_path, MODE, FIVE)
    footer = "\n".join(judge([runs], whole, Terms(today=TODAY)).footer)
    assert "family: 1 tests of levels, 1 of scatter, 2 of rates" in footer
    assert "the chance of any FAIL is at most 1%" in footer
    assert "power for equal cells, last look: at least 1.0000" in footer
    assert "provisional" not in footer
    assert "provisional baselines" in "\n".join(judge([runs], base, Terms(today=TODAY)).footer)


def test_an_optional_check_that_is_none_is_refused(tmp_path: Path, base: Path) -> None:
    with pytest.raises(ValueError, match="did you mean 'rcp'"):
        judge([cell(tmp_path, MODE, FIVE)], base, Terms(optional=("rpc",)))

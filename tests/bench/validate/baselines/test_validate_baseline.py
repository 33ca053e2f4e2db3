"""The life of a baseline: proposed, damaged, audited."""

from __future__ import annotations

import json
import shutil
from datetime import date
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.validate import judge
from bench.validate.baselines.folder import load
from bench.validate.baselines.reference import Broken, digest, read
from bench.validate.baselines.schema import SCHEMA_FILE, json_schema
from bench.validate.revisions.revision import audit, write_proposals
from bench.validate.statistics.target_crossing import crossing
from tests.bench.references import FIVE, TODAY, baselines, cell, put, with_eval
from tests.bench.streams import make_metrics, make_spec, write_run
from tests.bench.validate.baselines.kept_baseline import base as base
from tests.bench.validate.baselines.kept_baseline import the_file


def test_the_schema_is_exported(base: Path) -> None:
    assert SCHEMA_FILE.read_text() == json_schema(), "run: python -m bench.validate.baselines.schema"
    jsonschema.validate(json.loads(the_file(base).read_text()), json.loads(json_schema()))


def test_what_is_kept_of_runs(base: Path) -> None:
    reference = read(the_file(base))
    quality, samples = reference.metrics["quality"], reference.metrics["samples_to_target"]
    assert [value.value for value in quality.values] == list(FIVE)
    assert (quality.margin, quality.margin_why) == (
        pytest.approx(0.007906, abs=1e-6),
        "2.5 sd, over the floor of 0.005",
    )
    assert reference.target.value == pytest.approx(0.974 - 2 * 0.0031623, abs=1e-6)
    assert samples.missed or len(samples.values) == 5
    assert samples.margin >= 0.0953
    assert len(reference.curves["train_loss"].q50) == 3
    assert (reference.seeds, reference.gating, reference.expires) == (5, False, "2027-05-20")
    assert reference.params_sha256 == {seed: f"end {seed}" for seed in "01234"}
    assert the_file(base).parent.name == "mlp-digits-quick"


def test_the_least_margin_of_an_accuracy_in_per_cent_is_in_per_cent(tmp_path: Path) -> None:
    quality = read(the_file(baselines(tmp_path, tuple(100 * value for value in FIVE)))).metrics["quality"]
    assert (quality.unit, quality.margin_why) == ("accuracy", "2.5 sd, over the floor of 0.487")


@pytest.mark.parametrize(
    "edit",
    [
        lambda body: body["metrics"]["quality"].update(margin=0.5),
        lambda body: body["metrics"]["quality"]["values"][0].update(value=0.1),
        lambda body: body.update(expires="2099-01-01"),
        lambda body: body.update(digest="0" * 64),
        lambda body: body.update(extra=1),
        lambda body: body.pop("target"),
        lambda body: body["metrics"]["quality"].update(values=[]),
    ],
)
def test_an_edited_baseline_is_refused_by_name(base: Path, tmp_path: Path, edit: object) -> None:
    path = the_file(base)
    body = json.loads(path.read_text())
    edit(body)  # type: ignore[operator]
    path.write_text(json.dumps(body))
    with pytest.raises(Broken, match=path.name) as error:
        read(path)
    assert "\n" not in str(error.value)
    judgement = judge([cell(tmp_path / "runs", "nccl_sync", FIVE)], base)
    assert (judgement.verdicts[0].name, judgement.verdicts[0].check, judgement.code) == ("REFUSED", "baseline", 4)
    assert path.name in judgement.verdicts[0].line


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe", b'{"digest": NaN}', b"[" * 100_000])
def test_a_damaged_file_is_one_clear_line(base: Path, content: bytes) -> None:
    the_file(base).write_bytes(content)
    with pytest.raises(Broken, match=r"solo-w1-.*\.json") as error:
        read(the_file(base))
    assert "\n" not in str(error.value)


def test_a_sealed_file_that_cannot_be_is_refused_still(base: Path) -> None:
    path = the_file(base)
    body = json.loads(path.read_text())
    body["metrics"]["samples_to_target"]["values"][0]["value"] = 0.0
    path.write_text(json.dumps(body | {"digest": digest(body)}))
    with pytest.raises(Broken, match="no logarithm"):
        read(path)


def test_another_schema_version_is_called_one(base: Path) -> None:
    path = the_file(base)
    body = json.loads(path.read_text()) | {"schema_version": 2, "a_new_field": 1}
    path.write_text(json.dumps(body | {"digest": digest(body)}))
    with pytest.raises(Broken, match="it has schema version 2, but this program reads 1"):
        read(path)


def test_what_is_said_twice_is_refused(base: Path) -> None:
    """A reader sees the first margin, the program the second."""
    path = the_file(base)
    path.write_text(path.read_text().replace('"unit": "fraction"', '"margin": 0.001, "unit": "fraction"'))
    with pytest.raises(Broken, match="'margin' is said twice"):
        read(path)


def test_two_files_of_one_cell_are_refused_by_name(base: Path, tmp_path: Path) -> None:
    path = the_file(base)
    path.with_name("solo-older.json").write_text(path.read_text())
    (verdict, *_) = judge([cell(tmp_path / "runs", "nccl_sync", FIVE)], base).verdicts
    assert (verdict.name, verdict.check) == ("REFUSED", "baseline")
    assert "solo-w1-" in verdict.line
    assert "solo-older.json" in verdict.line


def test_reformatting_is_no_edit(base: Path) -> None:
    path = the_file(base)
    before = read(path)
    path.write_text(json.dumps(json.loads(path.read_text()), sort_keys=True))
    assert read(path) == before


def test_too_little_makes_no_baseline(tmp_path: Path) -> None:
    out = tmp_path / "proposals"

    def refused(match: str, **options: object) -> None:
        with pytest.raises(ValueError, match=match):
            write_proposals(tmp_path / "runs", out, TODAY, **options)  # type: ignore[arg-type]
        assert not out.exists()

    cell(tmp_path / "runs", "solo", FIVE[:4])
    refused("4 seeds, a baseline needs 5")
    refused("no runs of mode nccl_sync", mode="nccl_sync")
    spec = make_spec("solo", seed=4)
    write_run(tmp_path / "runs", spec, make_metrics(spec, status="killed"))
    refused("not every run finished")
    put(tmp_path / "runs", spec, 0.2)
    refused(r"seeds \[4\] lie far from the others")
    assert write_proposals(tmp_path / "runs", out, TODAY, because="a bad seed")[0].because == "a bad seed"
    shutil.rmtree(out)
    next((tmp_path / "runs").rglob("config.json")).unlink()
    refused("has no config.json, which says how it was trained")


def changed_runs(root: Path, git: dict[str, object]) -> Path:
    for seed, value in enumerate(FIVE):
        spec = make_spec("solo", seed=seed)
        write_run(root, spec, with_eval(spec, value).model_copy(update={"git": git}))
    return root


def test_a_changed_tree_makes_no_baseline_unless_said(tmp_path: Path) -> None:
    changed_runs(tmp_path / "runs", {"sha": "abc", "dirty": True})
    with pytest.raises(ValueError, match="uncommitted changes"):
        write_proposals(tmp_path / "runs", tmp_path / "p", TODAY)
    nowhere = changed_runs(tmp_path / "nowhere", {"sha": None, "dirty": None})
    with pytest.raises(ValueError, match="no commit of its source is recorded"):
        write_proposals(nowhere, tmp_path / "p", TODAY)
    assert write_proposals(tmp_path / "runs", tmp_path / "p", TODAY, dirty=True)
    installed = changed_runs(tmp_path / "installed", {"sha": None, "dirty": None, "version": "0.1.0"})
    assert write_proposals(installed, tmp_path / "q", TODAY)


def test_audit_tells_of_age_and_power(base: Path) -> None:
    library = load(base)
    told, sound = audit(library, TODAY)
    assert sound
    assert "provisional" in told[-1]
    assert "2027-05-20" in told[-1]
    told, sound = audit(library, date(2027, 5, 10), frozenset())
    assert "expires soon, provisional, not used" in told[-1]
    assert not audit(library, date(2027, 5, 21))[1]
    the_file(base).write_text("{")
    told, sound = audit(load(base), TODAY)
    assert (sound, told[-1].startswith("broken: ")) == (False, True)


@settings(deadline=None)  # machines are shared
@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0.01, 1))
def test_a_crossing_lies_where_the_target_is_met(values: list[float], target: float) -> None:
    at = [100.0 * (i + 1) for i in range(len(values))]
    found = crossing(at, values, target)
    if found is None:
        assert values[0] < target
        assert values[-1] < target
    else:
        assert at[0] <= found <= at[-1]
        assert max(values) >= target


def test_a_crossing_is_interpolated_and_no_single_peak_makes_one() -> None:
    assert crossing([10, 20, 30, 40], [0.0, 0.5, 1.0, 1.0], 0.75) == pytest.approx(25)
    assert crossing([10, 20, 30, 40, 50], [0.0, 0.0, 1.0, 0.0, 0.0], 0.9) is None
    assert crossing([10, 20], [1.0, 1.0], 0.9) == 10
    assert crossing([], [], 0.9) is None


def test_a_margin_goes_with_the_scale_of_the_metric(tmp_path: Path) -> None:
    """Of squared errors of 1e-7, a margin of 7e-7 passed any loss below eight times as much."""
    for seed in range(5):
        spec = make_spec("solo", seed=seed, metric="mse", higher_is_better=False, target=None)
        made, error = make_metrics(spec), 1e-7 * (1 + 0.01 * seed)
        rows = [row.model_copy(update={"eval": error * (3 - n)}) for n, row in enumerate(made.epochs)]
        final = made.final.model_copy(update={"eval": error, "best": error})
        write_run(tmp_path / "runs", spec, made.model_copy(update={"epochs": rows, "final": final}))
    (reference,) = write_proposals(tmp_path / "runs", tmp_path / "proposals", TODAY)
    assert reference.metrics["quality"].margin == pytest.approx(2.5 * 0.01e-7 * 2.5**0.5)

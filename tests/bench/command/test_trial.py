"""What the first users tripped over."""

from __future__ import annotations

from pathlib import Path

from bench.results.runfolder import find_runs
from bench.validate import judge
from tests.bench.streams import make_metrics, make_records, make_spec, write_run


def test_cells_of_one_label_and_different_workloads_are_told_apart(tmp_path: Path) -> None:
    """A diverged run hid in the green row of a sound one of the same mode."""
    for epochs, status in ((3, "ok"), (4, "diverged")):
        spec = make_spec("solo", 1, epochs=epochs, config_hash=f"{epochs}" * 8, run_id=f"w1-s0-{epochs}")
        metrics = make_metrics(spec, make_records(spec))
        write_run(tmp_path, spec, metrics.model_copy(update={"status": status}))
    verdicts = [verdict for verdict in judge([tmp_path], tmp_path / "none.json").verdicts if verdict.check == "status"]
    assert {verdict.name for verdict in verdicts} == {"PASS", "FAIL"}
    assert len({verdict.cell for verdict in verdicts}) == 2
    assert any("3 epochs" in verdict.cell for verdict in verdicts)


def test_a_nested_result_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "metrics.json").write_text("[" * 100_000)
    runs, problems = find_runs(tmp_path)
    assert not runs
    assert len(problems) == 1

"""What decides a verdict is one short command; and verdicts are said in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from rich.console import Console

from bench.base.exitcodes import Exit
from bench.command import cli
from bench.command.printed.summary import ROOM, Summary, in_words, what_next
from bench.command.printed.summary import judge as judge_runs
from bench.command.verbs.more_command import lacking
from bench.results.runfolder import find_runs
from bench.validate import judge
from bench.validate.verdicts.verdict import remark
from tests.bench import fake_engine
from tests.bench.conftest import Bench
from tests.bench.references import baselines, cell
from tests.bench.streams import make_metrics, make_spec, write_run

MODE = ("model=mlp", "mode=nccl_sync", "world_size=2", "train.epochs=1")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    return baselines(tmp_path, tuple(0.90 + k / 1000 for k in range(20)))


def test_more_trains_the_seeds_that_a_decision_lacks(tmp_path: Path, library: Path) -> None:
    runs = cell(tmp_path / "runs", "nccl_sync", (0.91,))
    (run,) = find_runs(runs)[0]
    verdicts = judge([run.path], library).verdicts
    assert in_words(verdicts) == ["no check failed; 1 seed cannot decide yet, 2 more can"]
    assert what_next(verdicts, run.path) == [("next", f"python -m bench more {run.path}")]
    ((command,), _) = lacking(runs, library)
    assert " seed=1,2" in command
    assert lacking(run.path, library) == ([command], [])
    cell(runs, "nccl_sync", (0.91, 0.911, 0.912))
    assert lacking(runs, library) == ([], [])


def test_what_no_seed_decides_is_named() -> None:
    assert in_words([remark("INCONCLUSIVE", "audit", "mlp solo", "it was killed")]) == [
        "no check failed; not decided: audit"
    ]


def test_a_known_failure_does_not_pass(tmp_path: Path) -> None:
    """All was said to be as good as one device."""
    good, bad, open_ = (remark(name, name, "mlp solo", "why") for name in ("PASS", "XFAIL", "INCONCLUSIVE"))  # type: ignore[arg-type]
    assert in_words([good, bad]) == ["fails as expected: XFAIL; 1 other verdict passes"]
    assert in_words([bad, open_]) == ["fails as expected: XFAIL; no other check failed; not decided: INCONCLUSIVE"]


def test_a_damaged_list_of_known_failures_is_wrong_usage(tmp_path: Path, library: Path, capsys: Capture) -> None:
    runs = cell(tmp_path / "runs", "nccl_sync", (0.91,))
    (library / "expected.yaml").write_text("- {cell: 7}")
    assert judge_runs(Summary(Console()), runs, library, [run.path for run in find_runs(runs)[0]]) == Exit.USAGE
    assert "verdict   none: " in capsys.readouterr().out


def test_more_makes_the_baseline_that_is_lacking(
    bench: Bench, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("bench.timeline.draw", lambda *picture: None)
    (tmp_path / "base").mkdir()
    assert bench(*MODE) == 0
    fake_engine.runs.clear()
    capsys.readouterr()
    assert bench("more", "runs", "--baseline", "base", "--show") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(" ")[3] for line in shown[:2]] == ["-m", "baseline"]
    assert "then, if the proposal is sound: python -m bench baseline accept" in shown[-1]
    assert not fake_engine.runs
    assert cli.dispatch(["more", "nowhere"]) == 2


def test_a_baseline_of_a_script_is_one_line_with_the_command_of_its_solo_run(
    bench: Bench, capsys: Capture, tmp_path: Path
) -> None:
    """There was a line for each mode, whose arguments contradicted what the line asked for."""
    for seed, mode in enumerate(("nccl_sync", "nccl_cadence", "solo")):
        script = {"path": "touch.py", "folder": "/home", "arguments": [mode, str(seed)]}
        spec = make_spec(mode, seed=seed)
        (write_run(tmp_path / "runs", spec, make_metrics(spec)) / "config.json").write_text(
            json.dumps({"script": script})
        )
    (tmp_path / "base").mkdir()
    capsys.readouterr()
    assert bench("more", "runs", "--baseline", "base") == 0
    train, then = capsys.readouterr().out.splitlines()
    assert train.startswith("by hand: train seed=0,1,")
    assert train.endswith("mode='solo', world_size=1: cd /home && python touch.py solo 2")
    assert then.endswith("python -m bench baseline accept --baseline base")


def test_what_failed_is_named_and_cut_short(tmp_path: Path, library: Path) -> None:
    runs = cell(tmp_path / "runs", "nccl_sync", (0.5, 0.51, 0.52, 0.5, 0.51))
    verdicts = judge([runs], library).verdicts
    count, first = in_words(verdicts)
    assert "FAIL" in count
    assert first.startswith("FAIL mlp nccl_sync ×2  quality: ")
    assert len(first) > ROOM
    assert what_next(verdicts, runs) == [("in full", f"python -m bench validate --brief {runs}")]


def test_more_makes_a_baseline_where_the_one_that_is_there_is_not_comparable(tmp_path: Path, library: Path) -> None:
    spec = make_spec("nccl_sync")
    m = make_metrics(spec)
    write_run(tmp_path / "runs", spec, m.model_copy(update={"env": m.env | {"torch": "1.0"}}))
    assert {("REFUSED", "baseline")} <= {(v.name, v.check) for v in judge([tmp_path / "runs"], library).verdicts}
    ((command,), refused) = lacking(tmp_path / "runs", library)
    assert not refused
    assert " mode=solo " in command


def test_more_does_not_say_that_all_is_well_of_what_cannot_be_read(
    bench: Bench, capsys: Capture, tmp_path: Path, library: Path
) -> None:
    runs = cell(tmp_path / "runs", "nccl_sync", (0.91,))
    (run,) = find_runs(runs)[0]
    (run.path / "metrics.json").write_text("{")
    for place in (runs, run.path):
        capsys.readouterr()
        assert bench("more", str(place), "--baseline", str(library)) == Exit.REFUSED
        said = capsys.readouterr().out
        assert "not JSON" in said
        assert "nothing is lacking" not in said

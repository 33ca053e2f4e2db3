"""The check `status`: which losses of ranks a run may end well in spite of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from bench.results.analysis.faults import BEGAN_ANEW
from bench.results.runfolder import CONFIG
from bench.results.schema import FaultRow
from bench.validate import Verdict, judge
from bench.validate.evidence import derivation
from bench.validate.records.run_records import Records
from ddp.core.messages import commands, events
from ddp.core.settings.faults import parse
from ddp.process.codec import Record
from tests.bench.results.test_faults import SPEC, bereft
from tests.bench.streams import make_metrics, make_records, make_spec, write_run

PLAIN = replace(SPEC, faults=())
CONTRADICTS = "rank 1 was granted 8 samples in these steps"


def status(folder: Path) -> Verdict:
    """Return what the check says of a run."""
    (found,) = [verdict for verdict in judge([folder], folder / "none.json").verdicts if verdict.check == "status"]
    return found


@pytest.mark.parametrize(
    ("scripted", "text", "name"),
    [
        ("1@40:raise", "RuntimeError: fault 1@40:raise", "PASS"),
        ("2@40:raise", "RuntimeError: fault 1@40:raise", "FAIL"),
        ("1@40:lose", "ValueError: no", "FAIL"),
        ("1@40:lose", "no room for 4.0 MB of shared memory: enlarge /dev/shm", "PASS"),
        ("1@40:flip", "step 40: a bit has flipped in head.bias", "PASS"),
    ],
)
def test_an_exception_that_no_script_made_is_a_defect(tmp_path: Path, scripted: str, text: str, name: str) -> None:
    metrics = make_metrics(SPEC, bereft(events.Failed(0.0, 1, text, "Traceback"), text))
    folder = write_run(tmp_path, SPEC, metrics.model_copy(update={"scripted_faults": [scripted]}))
    assert status(folder).name == name


@pytest.mark.parametrize(
    ("fault", "reason", "name"),
    [
        ("", CONTRADICTS, "FAIL"),
        ("1@40:lose", CONTRADICTS, "PASS"),
        ("1@40:slow*2", CONTRADICTS, "FAIL"),
        ("", "silent for 2.1 s", "PASS"),
    ],
)
def test_a_rank_that_does_not_do_as_ordered_fails_the_cell(tmp_path: Path, fault: str, reason: str, name: str) -> None:
    """No machine contradicts its orders. A message that is lost on purpose may cost a rank."""
    spec = replace(PLAIN, faults=(parse(fault),) if fault else ())
    found = status(write_run(tmp_path, spec, make_metrics(spec, bereft(None, reason))))
    assert found.name == name
    assert reason in found.line


@pytest.mark.parametrize(
    ("fault", "how", "name"),
    [
        ("", "killed by signal 9", "PASS"),
        ("", "exit code 1", "SUSPICIOUS"),
        ("", "exit code 255", "PASS"),
        ("1@40:slow*2", "exit code 0", "SUSPICIOUS"),
        ("1@40:crash", "exit code 1", "PASS"),
    ],
)
def test_a_program_that_ends_by_itself_is_suspicious(tmp_path: Path, fault: str, how: str, name: str) -> None:
    spec, reason = replace(PLAIN, faults=(parse(fault),) if fault else ()), f"its process is gone ({how})"
    found = status(write_run(tmp_path, spec, make_metrics(spec, bereft(events.Lost(0.0, 1, reason), reason))))
    assert found.name == name
    assert reason in found.line


def test_a_collective_that_broke_without_a_loss_is_named(tmp_path: Path) -> None:
    metrics = make_metrics(PLAIN)
    row = FaultRow(
        seconds=1.0, rank=None, kind="average_failed", text="round 3 broke on rank 1", action="was done again"
    )
    found = status(write_run(tmp_path, PLAIN, metrics.model_copy(update={"faults": [row]})))
    assert found.name == "PASS"
    assert "round 3 broke on rank 1" in found.line


def test_what_a_rank_says_behind_the_loss_of_another_is_let_off(tmp_path: Path) -> None:
    """A message may be lost with a machine."""
    records: list[Record] = bereft(events.Lost(0.0, 1, "gone"), "gone")
    at = max(record.at for record in records if isinstance(record, events.Progress))
    records = [*records, events.Alive(at, 0), commands.Drop(2, CONTRADICTS)]
    metrics = make_metrics(PLAIN, records)
    assert [fault.kind for fault in metrics.faults] == ["lost", "dropped"]
    assert status(write_run(tmp_path, PLAIN, metrics)).name == "PASS"


@pytest.mark.parametrize("tolerated", [True, False])
def test_a_run_that_was_not_to_go_on_without_a_rank_fails(tmp_path: Path, tolerated: bool) -> None:
    folder = write_run(tmp_path, PLAIN, make_metrics(PLAIN, bereft()))
    (folder / CONFIG).write_text(json.dumps({"cluster": {"tolerate_loss": tolerated}}))
    assert status(folder).name == ("PASS" if tolerated else "FAIL")


def test_a_run_that_began_again_with_all_ranks_lost_none(tmp_path: Path) -> None:
    spec = make_spec("nccl_cadence", 3)
    metrics = make_metrics(spec, bereft())
    again = metrics.faults[0].model_copy(update={"action": "all ranks went on from checkpoint 1"})
    folder = write_run(tmp_path, spec, metrics.model_copy(update={"faults": [again]}))
    (folder / CONFIG).write_text(json.dumps({"cluster": {"tolerate_loss": False}}))
    assert status(folder).name == "PASS"


@pytest.mark.parametrize(("fault", "name"), [("1@3:crash", "FAIL"), ("1@900:crash", "PASS"), ("1@3:lose", "PASS")])
def test_a_scripted_loss_that_never_came_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, name: str
) -> None:
    """A lost message need not cost the rank."""
    spec = replace(PLAIN, faults=(parse(fault),))
    every = make_records(spec)
    known = Records(progress=[record for record in every if isinstance(record, events.Progress)])
    monkeypatch.setattr(derivation, "records", lambda run, lost: known)
    found = status(write_run(tmp_path, spec, make_metrics(spec, every)))
    assert found.name == name
    assert ("never occurred" in found.line) is (name == "FAIL")


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("1@40:crash", ""),
        ("1@30:crash", "rank 1 trained 40 steps, but the scripted 1@30:crash occurred later"),
        ("1@200:crash", ""),
        ("2@30:crash", "rank 2 trained 90 steps, but the scripted 2@30:crash never occurred"),
    ],
)
def test_a_scripted_loss_comes_to_its_rank_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, line: str
) -> None:
    """Steps of 20 ms were not reported."""
    spec = replace(PLAIN, faults=(parse(fault),))
    reports = [
        events.Progress(1.0, rank, 0, 5, 160, 0.1, 1.0, 0.1) for rank in (1, 2) for _ in range(8 if rank == 1 else 18)
    ]
    monkeypatch.setattr(derivation, "records", lambda run, lost: Records(progress=reports))
    found = status(write_run(tmp_path, spec, make_metrics(spec, bereft(events.Lost(0.0, 1, "gone"), "gone"))))
    assert found.name == ("FAIL" if line else "PASS")
    assert line in found.line


def test_a_loss_long_before_its_script_is_suspicious(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may take the rank before the script does."""
    spec = replace(PLAIN, faults=(parse("1@900:crash"),))
    reports = [events.Progress(1.0, 1, 0, 5, 160, 0.1, 1.0, 0.1) for _ in range(8)]
    monkeypatch.setattr(derivation, "records", lambda run, lost: Records(progress=reports))
    found = status(write_run(tmp_path, spec, make_metrics(spec, bereft(events.Lost(0.0, 1, "gone"), "gone"))))
    assert found.name == "SUSPICIOUS"
    assert "rank 1 was lost after the 40 steps that it reported, though the script has 1@900:crash" in found.line


@pytest.mark.parametrize(
    ("fault", "met", "name", "line"),
    [
        ("1@3:flip", (), "FAIL", "the scripted 1@3:flip*2 never occurred"),
        ("1@3:lose", (), "FAIL", "the scripted 1@3:lose never occurred"),
        ("1@3:flip", ("1@3:flip*2",), "PASS", "1@3:flip*2 occurred in "),
        ("1@900:lose", (), "PASS", "1@900:lose never occurred in "),
        ("1@3:flip", None, "PASS", ""),  # an earlier version
    ],
)
def test_ranks_say_which_faults_came(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    met: tuple[str, ...] | None,
    name: str,
    line: str,
) -> None:
    spec = replace(PLAIN, faults=(parse(fault),))
    every = make_records(spec)
    known = Records(
        progress=[record for record in every if isinstance(record, events.Progress)],
        finished=[events.Finished(9.0, 1, "", 0, 0, met=met)],
    )
    monkeypatch.setattr(derivation, "records", lambda run, lost: known)
    metrics = make_metrics(spec, every)
    found = status(write_run(tmp_path, spec, metrics))
    assert found.name == name
    assert line in found.line
    # The records of a run that began anew are of its last attempt.
    metrics = metrics.model_copy(update={"warnings": [f"{BEGAN_ANEW} (1 time so far), as there was no checkpoint yet"]})
    assert status(write_run(tmp_path / "anew", spec, metrics)).name == "PASS"


@pytest.mark.parametrize(("text", "name"), [("exit code 0", "FAIL"), ("killed by signal 9", "PASS")])
def test_an_exception_is_not_a_process_that_ended_by_itself(tmp_path: Path, text: str, name: str) -> None:
    """An engine that passes no exception on lost its text."""
    gone = f"its process is gone ({text})"
    metrics = make_metrics(SPEC, bereft(events.Lost(0.0, 1, gone), gone))
    folder = write_run(tmp_path, SPEC, metrics.model_copy(update={"scripted_faults": ["1@40:raise"]}))
    assert status(folder).name == name

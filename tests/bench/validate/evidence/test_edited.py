"""Every edit of what a run leaves, or of a baseline, is refused with the name of the file and of the field or line.

Each leaf of each file is edited in a way of its kind, one at a time; digests are left as they are. For checkpoints see
`tests/runtime/checkpoints/test_checkpoint_contents.py`.
"""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.base import canonical
from bench.results import audit_file, chain
from bench.results.cells import Cell, cells
from bench.results.recompute import digest
from bench.results.runfolder import CONFIG, EVENTS, METRICS, find_runs
from bench.validate import Terms, judge
from bench.validate.baselines.reference import Broken, read
from bench.validate.checks import audit
from bench.validate.evidence.consistency import consistent, legible
from bench.validate.records.reading import reading
from bench.validate.verdicts.findings import Case
from tests.bench.conftest import Bench, faked
from tests.bench.references import baselines
from tests.edits import Keys, edited

RUN = ("model=mlp", "mode=nccl_cadence", "world_size=2", "train.epochs=2")


LOST = Path(__file__).parents[4] / "benchmarks/golden/recorded/lenet/cpu_async/w2-s0-5a05cd5e"
"""A run that lost a rank."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run, as it was written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.timeline.draw", lambda *picture: None)
        assert faked(patch, tmp_path_factory.mktemp("recorded"))(*RUN, "report=false", "validate=false") == 0
        (run,) = find_runs(Path("runs").absolute())[0]
    return run.path


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(recorded, tmp_path / recorded.name))


def refusal(folder: Path) -> str:
    """Why the run is refused; empty: it is not."""
    runs, problems = find_runs(folder)
    if problems:
        return problems[0]
    try:
        legible(runs[0])
    except ValueError as error:
        return str(error)
    return ""


def leaves(body: Any, keys: Keys = ()) -> Iterator[Keys]:
    """The places of all values that hold no others."""
    inner = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    places = [place for key, value in inner for place in leaves(value, (*keys, key))]
    yield from places or [keys]


def edits(value: Any) -> Iterator[Any]:
    """Other values of about the same kind, from the smallest change on."""
    match value:
        case bool():
            yield not value
        case int():
            yield from (value + 1, -value - 1)
        case float():
            yield from (math.nextafter(value, math.inf), value * 1.5 + 0.1)
        case str():
            yield from (value + "x", value[:-1] if value else "y")
        case None:
            yield from (0, "x")
        case list():
            yield [0]
        case dict():
            yield {"x": 0}


def every_edit(body: Any) -> Iterator[tuple[Keys, Any]]:
    """One edit after the other: where, and the whole with it."""
    for keys in leaves(body):
        value = body
        for key in keys:
            value = value[key]
        for other in (*edits(value), KeyError):
            yield keys, edited(body, keys, other)


@pytest.mark.parametrize("name", [METRICS, CONFIG])
def test_every_edit_of_result_and_configuration_is_refused(folder: Path, name: str) -> None:
    assert not refusal(folder), "as it was written it is not"
    body = json.loads((folder / name).read_text())
    count = 0
    for keys, other in every_edit(body):
        (folder / name).write_text(json.dumps(other))
        line = refusal(folder)
        assert line.startswith(f"{folder / name}: "), f"{keys}: {line or 'nobody saw it'}"
        assert any(re.search(rf"\b{key}\b", line) for key in keys if isinstance(key, str)), f"{keys}: {line}"
        count += 1
    assert count > 100


def test_every_edit_of_a_record_is_refused_with_its_line(folder: Path) -> None:
    path, draw = folder / EVENTS, random.Random(0)
    rows = path.read_bytes().splitlines(keepends=True)
    for place, row in enumerate(rows):
        body = json.loads(row)
        lines = [json.dumps(other, separators=(",", ":")).encode() + b"\n" for _, other in every_edit(body)]
        for other in [row.replace(b":", b": ", 1), b"\n", b"", *draw.sample(lines, min(len(lines), 12))]:
            path.write_bytes(b"".join([*rows[:place], other, *rows[place + 1 :]]))
            last = place + 1 == len(rows) and not other
            assert refusal(folder).startswith(f"{path}:{place if last else place + 1}: "), (
                f"line {place + 1}: {other!r}"
            )
        for to in {0, len(rows) - 1, draw.randrange(len(rows))} - {place}:
            moved = [*rows[:place], *rows[place + 1 :]]
            moved.insert(to, row)
            path.write_bytes(b"".join(moved))
            assert refusal(folder).startswith(f"{path}:{min(place, to) + 1}: ")
        path.write_bytes(b"".join([*rows[:place], row, *rows[place:]]))
        assert refusal(folder).startswith(f"{path}:{place + 2}: ")
    path.write_bytes(b"".join(rows))
    assert not refusal(folder)


@pytest.mark.parametrize("name", [METRICS, CONFIG, EVENTS])
def test_a_file_that_is_gone_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert refusal(folder).startswith(f"{folder / name}: ")


def test_the_verdict_is_refused_with_folder_field_and_both_values(folder: Path, tmp_path: Path) -> None:
    judgement = judge([folder], tmp_path / "none")
    assert "REFUSED" not in {v.name for v in judgement.verdicts}
    assert not [line for line in judgement.footer if "unsealed" in line]
    body = json.loads((folder / METRICS).read_text())
    recomputed = body["final"]["eval"]
    (folder / METRICS).write_text(json.dumps(edited(body, ("final", "eval"), 0.99)))
    (verdict,) = judge([folder], tmp_path / "none", Terms()).verdicts
    assert (verdict.name, verdict.check) == ("REFUSED", "readable")
    assert verdict.line == f"{folder / METRICS}: final.eval is 0.99, but {EVENTS} gives {recomputed}"
    with pytest.raises(ValueError, match=f"{folder / METRICS}: record.result is not the digest of its content"):
        consistent(find_runs(folder)[0][0])  # by which a report goes, too


@pytest.mark.parametrize(
    ("how", "status"), [("fail", "failed"), ("lose", "failed"), ("diverge", "diverged"), ("interrupt", "killed")]
)
def test_a_run_that_ended_otherwise_is_sealed_too(
    quiet: Bench, monkeypatch: pytest.MonkeyPatch, how: str, status: str
) -> None:
    monkeypatch.setenv("BENCH_FAKE", how)
    with suppress(KeyboardInterrupt):
        quiet(*RUN)
    (run,) = find_runs(Path("runs"))[0]
    assert run.metrics.status == status
    assert not refusal(run.path)
    body = json.loads((run.path / METRICS).read_text())
    (run.path / METRICS).write_text(json.dumps(body | {"status": "ok"}))
    assert f"status is ok, but {EVENTS} gives {status}" in refusal(run.path)


@pytest.mark.parametrize(("version", "refused"), [(4, False), (5, True)])
def test_what_an_earlier_version_counted_otherwise_is_no_edit(tmp_path: Path, version: int, refused: bool) -> None:
    """Of a run that lost a rank, whose evaluation was divided by two ranks to its end."""
    folder = Path(shutil.copytree(LOST, tmp_path / LOST.name))
    body = json.loads((folder / METRICS).read_text())
    body["time_s"]["eval"] *= 0.7
    body["schema_version"] = version
    body["record"]["result"] = digest(body)
    (folder / METRICS).write_text(json.dumps(body))
    assert bool(refusal(folder)) is refused


@pytest.mark.parametrize(
    ("version", "which", "refused"),
    [
        *((5, "speed", False), (6, "speed", True), (6, "idle", False), (7, "idle", True)),
        *((7, "late", False), (8, "late", True)),
    ],
)
def test_a_result_of_a_version_that_knew_no_absence_is_no_edit(
    tmp_path: Path, version: int, which: str, refused: bool
) -> None:
    folder = Path(shutil.copytree(LOST, tmp_path / LOST.name))
    anew = reading(find_runs(folder)[0][0])
    assert anew is not None
    assert anew.result is not None
    body = json.loads((folder / METRICS).read_text()) | anew.result.model_dump(mode="json", exclude={"record"})
    body["schema_version"] = version
    if which == "speed":
        body["throughput"]["efficiency"] *= 0.7
    elif which == "late":  # so was a rank that never came
        body |= {"late": [1], "faults": [{key: row[key] for key in row if key != "earlier"} for row in body["faults"]]}
    else:  # absence was idle time
        body["timeline"]["idle"][0]["seconds"] += 1.0
    for rank in body["breakdown"] if version == 5 else ():
        del rank["absent"]
    body["record"]["result"] = digest(body)
    (folder / METRICS).write_text(json.dumps(body))
    assert bool(refusal(folder)) is refused


def test_a_result_without_a_seal_is_taken_at_its_word_and_that_is_said(folder: Path, tmp_path: Path) -> None:
    """As an earlier version left it."""
    rows = [chain.unlinked(line) for line in (folder / EVENTS).read_bytes().splitlines()][1:-1]
    (folder / EVENTS).write_bytes(b"".join(b"%b\n" % row for row in rows))
    body = json.loads((folder / METRICS).read_text())
    (folder / METRICS).write_text(json.dumps({**body, "schema_version": 2, "record": None}))
    assert not refusal(folder)
    judgement = judge([folder], tmp_path / "none")
    assert judgement.footer[-1].startswith("unsealed: 1 of 1 run, of an earlier version")


def test_whoever_makes_all_digests_anew_is_held_to_the_records_alone(folder: Path) -> None:
    """What is documented: such an edit of the result is seen, one of records and result together is not."""
    body = json.loads((folder / METRICS).read_text())
    other = edited(body, ("final", "eval"), 0.99)
    other["record"]["result"] = digest(other)
    (folder / METRICS).write_text(json.dumps(other))
    assert "final.eval is 0.99" in refusal(folder)
    rows = [chain.unlinked(line) for line in (folder / EVENTS).read_bytes().splitlines()]
    header = msgspec.json.decode(rows[0])
    header["git"] = {"sha": "another", "dirty": False}
    (folder / EVENTS).write_bytes(
        b"".join(b"%b\n" % line for line in chain.chained([json.dumps(header).encode(), *rows[1:]]))
    )
    other = body | {"git": header["git"], "record": chain.seal_of(folder / EVENTS)._asdict()}
    other["record"]["result"] = digest(other)
    (folder / METRICS).write_text(json.dumps(other))
    assert not refusal(folder)


def test_every_edit_of_a_baseline_is_refused(tmp_path: Path) -> None:
    (path,) = baselines(tmp_path).rglob("*.json")
    body = json.loads(path.read_text())
    assert read(path)
    for _, other in every_edit(body):
        path.write_text(json.dumps(other))
        with pytest.raises(Broken, match=f"^{re.escape(str(path))}: "):
            read(path)


def test_every_edit_of_an_audit_is_refused(folder: Path, tmp_path: Path) -> None:
    (run,) = find_runs(folder)[0]
    items = [
        audit_file.AuditItem(what="step", outcome="different", line="loss: 1 in the run, 2 recomputed", rank=1, step=3),
        audit_file.AuditItem(what="evaluation", outcome="equal", largest=0.25, files=["kept-0-end.state"]),
    ]
    made = audit_file.AuditReport(
        run_id=run.metrics.run_id, params_sha256="0", seconds=1.5, kept=[("kept-0-end.state", 10, "1")], items=items
    )
    audit_file.write_report(folder, made, run.metrics)
    path, count = folder / audit_file.AUDIT, 0
    assert audit_file.read(folder).items == items
    body = json.loads(path.read_text())
    for keys, other in every_edit(body):
        path.write_text(json.dumps(other))
        (cell,) = cells([run])
        found = audit.check(Case(to_be_audited(cell), None))
        assert found is not None
        assert (found.name, str(path) in found.line) == ("REFUSED", True), f"{keys}: {found}"
        count += 1
    assert count > 40


def to_be_audited(cell: Cell) -> Cell:
    """The cell as if its runs were to be audited."""
    runs = tuple(replace(run, config={**run.config, "audit": True}) for run in cell.runs)
    return replace(cell, runs=runs)


def test_two_seeds_of_a_baseline_are_two_runs(tmp_path: Path) -> None:
    (path,) = baselines(tmp_path).rglob("*.json")
    body = json.loads(path.read_text())
    body["params_sha256"]["3"] = body["params_sha256"]["1"]
    body["digest"] = canonical.digest({key: value for key, value in body.items() if key != "digest"})
    path.write_text(json.dumps(body))
    with pytest.raises(Broken, match=r"params_sha256: seeds 1 and 3 ended with the same parameters \(end 1\)"):
        read(path)

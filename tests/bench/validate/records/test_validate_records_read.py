"""What a run has on record is counted: tallies, times, sizes of batches; records that are absent or cannot be read."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.results.analysis.stream import split
from bench.results.cells import cells
from bench.results.runfolder import EVENTS, METRICS, find_runs
from bench.validate import Terms, judge
from bench.validate.checks import breakdown
from bench.validate.evidence import derivation
from bench.validate.records.reading import records
from bench.validate.verdicts.findings import Case
from ddp.core.messages.events import Evaluated, Finished, Progress, Ready
from ddp.tally import MODULUS, tally
from tests.bench.references import TODAY, one
from tests.bench.streams import make_spec
from tests.bench.validate.told import Change, baseline, each, second, told, write


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return baseline(tmp_path_factory.mktemp("base"))


def test_records_that_cannot_be_read_are_refused_by_name(tmp_path: Path, base: Path) -> None:
    folder = write(tmp_path, make_spec("nccl_cadence"))
    with (folder / EVENTS).open("ab") as file:
        file.write(b'{"type":"Progress","at":1}\n')
    (told,) = judge([tmp_path], base, Terms(today=TODAY)).verdicts
    assert (told.name, told.check, f"{EVENTS}:" in told.line) == ("REFUSED", "readable", True)


def test_runs_without_such_records_are_not_judged_by_them(tmp_path: Path, base: Path) -> None:
    folder = write(tmp_path, make_spec("nccl_cadence"))
    (folder / EVENTS).unlink()
    checks = {v.check for v in judge([tmp_path], base, Terms(today=TODAY)).verdicts}
    assert not checks & {"visits", "average", "idle", "rate", "evaluation"}


@pytest.mark.parametrize("slip", [[0, 1, 2, 2], [0, 1, 2], [0, 1, 2, 4], [1, 2, 3, 4], [0, 0, 3, 3]])
def test_a_tally_is_of_the_samples_whatever_their_order(slip: list[int]) -> None:
    assert tally([3, 1, 0, 2]) == tally(range(4)) == (tally([0, 3]) + tally([1, 2])) % MODULUS
    assert 0 <= tally(np.arange(100_000)) < MODULUS
    assert tally(slip) != tally(range(4))


@pytest.mark.parametrize(("batch", "name"), [(5000, "REFUSED"), (16, "FAIL")])
def test_a_rank_that_no_batch_is_left_for_is_no_defect(tmp_path: Path, base: Path, batch: int, name: str) -> None:
    folder = write(tmp_path, make_spec("nccl_cadence"))
    metrics = json.loads((folder / METRICS).read_text())
    for row in metrics["ledger"]["epochs"]:
        row["by_rank"] = [row["samples"], 0]
    metrics["batch_size"] = batch
    (folder / METRICS).write_text(json.dumps(metrics))
    (found,) = [v for v in judge([tmp_path], base, Terms(today=TODAY)).verdicts if v.check == "idle"]
    assert found.name == name
    assert ("1 batch for 2 ranks" in found.line) == ("batch size of 1919 " in found.line) == (name == "REFUSED")


def timed(e: Any) -> Any:
    """The same with evaluations twice as long, or steps."""
    return replace(e, seconds=2 * e.seconds) if isinstance(e, Evaluated) else replace(e, busy_s=2 * e.busy_s)


@pytest.mark.parametrize(
    ("change", "fewer", "line"),
    [
        (lambda records: records, {}, ""),
        (lambda records: records, {(1, "data"): 1}, "rank 1 recorded 89 timings of data"),
        (lambda records: records, {(1, "backward"): 30}, "rank 1 recorded 60 timings of backward"),
        (each(Evaluated, timed), {}, "s of evaluation"),
        (each(Progress, timed), {}, "its steps took"),
        (each(Ready, lambda e: replace(e, at=e.at + 0.5)), {}, "before it reported that it was ready"),
        (each(Finished, second(lambda e: replace(e, at=e.at - 0.5))), {}, "after it reported its end"),
    ],
)
def test_time_is_on_record_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Change, fewer: dict[tuple[int, str], int], line: str
) -> None:
    spec = make_spec("nccl_cadence")
    write(tmp_path, spec, change)
    (run,) = find_runs(tmp_path)[0]
    known = records(run)
    assert known is not None
    known = replace(known, slices=Counter(), seconds=defaultdict(float), spans={}, collectives=defaultdict(list))
    slices = split(told(spec)).slices
    known.add_slices(slices, slices.stop - slices.start)
    known.slices.subtract(fewer)
    took = known.seconds[0, "exchange"] / (len(known.averaged) / 2)  # made-up ranks meet in every step
    known = replace(known, averaged=[replace(event, seconds=took) for event in known.averaged])
    monkeypatch.setattr(derivation, "records", lambda run, lost: known)
    verdict = breakdown.check(Case(cells([run])[0], None))
    assert verdict is not None
    assert (verdict.name, line in verdict.line) == ("FAIL" if line else "PASS", True), verdict.line


def test_batches_have_the_size_that_is_set(tmp_path: Path, base: Path) -> None:
    for name, steps in (("large", 2), ("small", 10)):
        write(
            tmp_path / name, make_spec("nccl_cadence"), each(Progress, lambda e, steps=steps: replace(e, steps=steps))
        )
        verdict = one(tmp_path / name, base, "ledger")
        assert (verdict.name, "the batch size is set to 32" in verdict.line) == ("FAIL", True)

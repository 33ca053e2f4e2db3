"""What ranks trained against the ledger, in runs with faults."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.runfolder import Run
from bench.results.schema import FaultRow
from bench.validate import Terms, judge
from bench.validate.checks import data
from bench.validate.records.reading import unsealed
from bench.validate.records.run_records import Records
from ddp.core.messages.event_parts import DataContent, SetContent
from ddp.core.messages.events import Merged, Progress, Ready, Resumed, Trained
from ddp.core.messages.join_events import Joined, Joining
from ddp.process.codec import Record
from tests.bench.references import TODAY
from tests.bench.streams import make_metrics, make_spec
from tests.bench.validate.told import DATA, each, told, write

SPEC = make_spec("nccl_cadence")
TOLD = told(SPEC)


def of(kind: type[Any]) -> list[Any]:
    return [record for record in TOLD if isinstance(record, kind)]


EPOCH = [[event.at for event in of(Progress) if event.rank and event.epoch == epoch] for epoch in range(3)]
"""When rank 1 reports, by epoch."""
HALFWAY, BEHIND = EPOCH[0][2], EPOCH[0][-1] + 1e-9
BACK = FaultRow(seconds=0.1, rank=1, kind="lost", text="killed", back_s=0.1)
GONE, EARLIER = BACK.model_copy(update={"back_s": None}), BACK.model_copy(update={"earlier": True})


@pytest.mark.parametrize(
    ("fault", "joined", "resumed", "epoch", "sign"),
    [
        (BACK, HALFWAY, None, None, ""),
        (BACK, HALFWAY, None, 0, ""),  # some of it in an earlier life
        (BACK, HALFWAY, None, 1, "rank 1, epoch 1: its trained samples have"),
        (BACK, EPOCH[1][2], None, 2, "rank 1, epoch 2: its trained samples have"),
        (GONE, HALFWAY, None, 1, ""),
        (EARLIER, None, BEHIND, None, ""),
        (EARLIER, None, BEHIND, 0, ""),
        (EARLIER, None, BEHIND, 1, "rank 1, epoch 1: its trained samples have"),
        (EARLIER, None, EPOCH[1][2], 1, ""),
    ],
    ids=lambda value: "" if isinstance(value, FaultRow | float) else None,
)
def test_a_rank_that_is_back_trains_what_enters_the_model(
    fault: FaultRow, joined: float | None, resumed: float | None, epoch: int | None, sign: str
) -> None:
    """It trained a batch again in place of the next one; a rank that had ever been lost was left out."""
    trained = [replace(e, order=e.order + (e.rank == 1 and e.epoch == epoch)) for e in of(Trained)]
    known = Records(
        ready=of(Ready),
        progress=of(Progress),
        trained=trained,
        merged=of(Merged),
        joined=[] if joined is None else [Joined(joined, 1, 0)],
        resumed=[] if resumed is None else [Resumed(resumed, 0, 1, 1920, "there")],
    )
    run = Run(Path("there"), make_metrics(SPEC).model_copy(update={"faults": [fault]}))
    found = next(data._amiss(None, run, known, DATA), "")
    assert sign in found
    assert bool(sign) == bool(found)


@pytest.mark.parametrize(
    ("content", "sign"), [(None, ""), (DATA, ""), (replace(DATA, shared=1), "rank 1 has other data")]
)
def test_a_rank_that_comes_back_has_the_data_of_the_others(
    tmp_path: Path, content: DataContent | None, sign: str
) -> None:
    """Nobody compared it; earlier versions did not record it."""
    back = Joining(BEHIND, 1, 1920, "", data=content)
    run = Run(write(tmp_path, SPEC, lambda records: [*records[:-1], back, records[-1]]), make_metrics(SPEC))
    found = next(data._amiss(None, run, unsealed(run).records, DATA), "")
    assert sign in found
    assert bool(sign) == bool(found)


def test_labels_that_are_drawn_anew_are_no_failure(tmp_path: Path) -> None:
    """Those of the first epoch were taken for what the data set has."""

    def drawn(records: list[Record]) -> list[Record]:
        def relabelled(event: Trained) -> Trained:
            half = event.samples // 2 + event.epoch
            unknown = dict.fromkeys(("content", "wanted", "placed", "placed_wanted"))
            return replace(event, **unknown, labels=(half, event.samples - half))

        data = replace(DATA, training=SetContent(1920))
        return each(Trained, relabelled)(each(Ready, lambda event: replace(event, data=data))(records))

    write(tmp_path, make_spec("solo"), drawn)
    judgement = judge([tmp_path], tmp_path / "none", Terms(today=TODAY))
    assert {verdict.name for verdict in judgement.verdicts if verdict.check == "data"} == {"PASS"}

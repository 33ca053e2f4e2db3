"""What ranks save is what all share; what a rank joins or goes on with is what another sent, or was saved."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from bench.results.schema import FaultRow
from bench.validate.checks import agreement
from bench.validate.records.run_records import Records
from bench.validate.sketches.resumption import begun_otherwise
from bench.validate.sketches.state_copies import joined_otherwise, saved_otherwise
from ddp.core.messages.event_parts import SketchGroup
from ddp.core.messages.events import Averaged, Ready, Resumed, Saved, Shared
from ddp.core.messages.join_events import Joined
from ddp.sketches import encode

GROUPS = (SketchGroup("weight", "parameters", 4, "float32", True),)


def sketch(value: float) -> str:
    return encode(np.array([[value, -value]]), np.array([abs(value)]))


ONE, OTHER = sketch(1.0), sketch(1.001)
READY = Ready(0.0, 0, 100, 4, "", "cpu", "gloo", "resident", "", 0, 0.0, 0, GROUPS)
AVERAGES = [Averaged(1.0, rank, 3, 1, 1, 0.1, 1, 0.1, sketch_after=OTHER, sketch_average=ONE) for rank in (0, 1)]
SAVED = [Saved(2.0, rank, 0, (), sketch=ONE) for rank in (0, 1)]
RECORDS = Records(ready=[READY], averaged=AVERAGES, saved=SAVED)
MOMENTS = ("exp_avg", ONE), ("step", ONE)
JOIN = Records(
    ready=[READY],
    averaged=AVERAGES,
    shared=[Shared(3.0, 0, 4, optimizer=MOMENTS)],
    joined=[Joined(4.0, 1, 4, sketch=ONE, optimizer=MOMENTS)],
)
BACK = Resumed(3.0, 0, 2, 0, "there")
KEPT = [replace(event, optimizer=MOMENTS) for event in SAVED]
AGAIN = [replace(READY, at=4.0, rank=rank, optimizer=MOMENTS) for rank in (0, 1)]
ON = Records(ready=[READY, *AGAIN], saved=KEPT, resumed=[BACK])


def test_the_average_is_saved() -> None:
    assert saved_otherwise(RECORDS) == ""


def test_a_replica_in_its_place_is_named() -> None:
    own = [replace(event, sketch=OTHER) for event in SAVED]
    assert "checkpoint 0, rank 1: the saved model differs from that of rank 0" in saved_otherwise(
        replace(RECORDS, saved=[SAVED[0], own[1]])
    )
    assert "the saved model is not the average of round 3" in saved_otherwise(replace(RECORDS, saved=own))


def test_averages_of_a_process_that_is_gone_are_none_of_the_next() -> None:
    own = [replace(event, sketch=OTHER) for event in SAVED]
    gone = Resumed(1.5, 0, 2, 0, "there")
    assert saved_otherwise(replace(RECORDS, saved=own, resumed=[gone])) == ""


def test_a_rank_joins_with_what_was_sent() -> None:
    assert joined_otherwise(JOIN, {}) == ""


@pytest.mark.parametrize(
    ("joined", "sign"),
    [
        ({"optimizer": ()}, "with optimizer state nothing instead of exp_avg, step"),
        ({"optimizer": (("exp_avg", OTHER), ("step", ONE))}, "a different optimizer state (optimizer.exp_avg"),
        ({"sketch": OTHER}, "a model that differs from the shared one (weight"),
    ],
)
def test_what_was_not_taken_over_is_named(joined: dict[str, object], sign: str) -> None:
    broken = replace(JOIN, joined=[replace(JOIN.joined[0], **joined)])  # type: ignore[arg-type]
    assert sign in joined_otherwise(broken, {})


def test_averaged_moments_are_the_average_s() -> None:
    """The sender has gone on from them, so that only names are compared."""
    moved = (("exp_avg", OTHER), ("step", ONE))
    on = replace(JOIN, joined=[replace(JOIN.joined[0], optimizer=moved)])
    assert joined_otherwise(on, {"optimizer_state": True}) == ""


@pytest.mark.parametrize("settings", [{"optimizer_reset": True}, {"outer": "nesterov"}])
def test_a_rank_that_joins_with_an_average_begins_anew_where_all_do(settings: dict[str, object]) -> None:
    anew = replace(JOIN, joined=[replace(JOIN.joined[0], optimizer=())])
    assert joined_otherwise(anew, settings) == ""
    assert joined_otherwise(anew, {"outer": "nesterov", "optimizer_reset": False})


def test_a_rank_goes_on_with_what_was_saved_though_one_was_lost_before() -> None:
    """After a fault, nobody looked at how ranks went on."""
    fault = FaultRow(seconds=2.5, rank=1, kind="lost", text="killed", earlier=True)
    metrics = SimpleNamespace(faults=[fault], begun_without=[], scripted_faults=[])
    run = cast(Any, SimpleNamespace(metrics=metrics, config={}))
    assert agreement._copies(run, ON) == ""
    anew = replace(ON, ready=[READY, AGAIN[0], replace(AGAIN[1], optimizer=())])
    assert "rank 1 resumed from checkpoint 0 with optimizer state nothing" in agreement._copies(run, anew)


def test_a_rank_that_saved_nothing_goes_on_with_the_state_of_the_first() -> None:
    """It had no moments, and none were missed."""
    other = (("exp_avg", OTHER), ("step", ONE))
    saved = [replace(KEPT[0], lasting=(("steps", "7"),)), replace(KEPT[1], optimizer=other)]
    new = replace(AGAIN[0], rank=2, lasting=(("steps", "8"),))
    assert begun_otherwise(replace(ON, saved=saved, ready=[READY, new])) == ""
    wrong = replace(ON, saved=saved, ready=[READY, replace(new, optimizer=())])
    assert "rank 2 resumed from checkpoint 0 with optimizer state nothing" in begun_otherwise(wrong)


def test_a_checkpoint_that_broke_off_before_an_earlier_resumption_is_none() -> None:
    """A rank that was lost since had saved another state under the number that was given again."""
    broken = [replace(KEPT[1], at=0.5, optimizer=(("exp_avg", OTHER), ("step", ONE)))]
    known = replace(ON, saved=[*broken, KEPT[0]], resumed=[replace(BACK, at=1.0), BACK])
    assert begun_otherwise(known) == ""

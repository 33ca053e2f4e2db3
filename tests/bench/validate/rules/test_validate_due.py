"""What must be on record by a run's settings: sketches of drawn steps and rounds, checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.audit_file import AuditItem, AuditReport
from bench.results.runfolder import Run
from bench.results.schema import Metrics
from bench.validate.checks import audit
from bench.validate.records.run_records import Records
from bench.validate.rules.due_records import unsaved, unsketched_rounds, unsketched_steps
from ddp.core.messages.commands import Save
from ddp.core.messages.event_parts import StepSketch
from ddp.core.messages.events import Averaged, Ending, Evaluated, Progress, Ready, Resumed, RoundClosed, Saved
from ddp.core.periodic.sketching import draw
from ddp.permutation import derive
from tests.bench.streams import make_metrics, make_spec
from tests.bench.validate.sketched import GROUPS

ROUNDS = 60
NONE = (0.0, 0.0)
READY = [Ready(1.0, rank, 8000, 4, "", "cpu", "gloo", sketched=GROUPS) for rank in (0, 1)]
CLOSED = [RoundClosed(2.0 + 0.05 * n, n, (4, 4), NONE, 0.01, NONE, NONE, (False, False)) for n in range(ROUNDS)]
AVERAGED = [Averaged(each.at, rank, each.round, 4, 64, 0.01, 1, 0.1) for each in CLOSED for rank in (0, 1)]
KNOWN = Records(ready=READY, closed=CLOSED, averaged=AVERAGED)
EVERY = set(range(ROUNDS))


@pytest.mark.parametrize(
    ("sketched", "known", "wrong"),
    [
        (EVERY, KNOWN, ""),
        ({n for n in EVERY if n < 40}, KNOWN, ""),
        ({0}, KNOWN, "ranks recorded sketches of 0 averages, "),
        ({0}, replace(KNOWN, resumed=[Resumed(0.5, 0, 0, 0, "there")]), ""),
        ({0}, replace(KNOWN, closed=[replace(each, at=2.0 + each.round / 1e4) for each in CLOSED]), ""),
        ({0}, replace(KNOWN, closed=CLOSED[:4]), ""),
        (EVERY - {0}, KNOWN, "round 0: ranks recorded no sketch"),
    ],
    ids=["all", "most", "the first alone", "gone on with", "quick ones", "few", "not the first"],
)
def test_averages_that_are_far_apart_are_sketched(sketched: set[int], known: Records, wrong: str) -> None:
    found = unsketched_rounds(known, sketched)
    assert wrong in found
    assert bool(wrong) == bool(found)


def stepped(sketched: Callable[[int], bool], model: bool = False) -> tuple[Metrics, Records]:
    """A run of 2 epochs with 250 steps of both ranks together."""
    metrics = make_metrics(make_spec("nccl_sync")).model_copy(update={"batch_size": 16, "seed": 3})
    steps = tuple(StepSketch(n, 16, 32, "a", "b", model=model) for n in range(500) if sketched(n))
    reports = [Progress(3.0 + rank, rank, 1, 500, 8000, 1.0, 1.0, 0.1, exchanged=steps) for rank in (0, 1)]
    return metrics, replace(KNOWN, progress=reports)


def drawn(step: int) -> bool:
    return not step or draw(derive(3, "sketched steps"), step) < 0.02


def test_steps_that_are_drawn_are_sketched() -> None:
    assert unsketched_steps(*stepped(drawn)) == ""
    assert "rank 0 recorded sketches of 1 steps" in unsketched_steps(*stepped(lambda step: not step))
    assert unsketched_steps(*stepped(lambda step: not step, model=True)) == "", "PyTorch's local SGD"
    metrics, known = stepped(lambda step: not step)
    assert unsketched_steps(metrics.model_copy(update={"backend": "torch_fsdp"}), known) == "", "which sketches none"
    assert unsketched_steps(metrics, replace(known, ready=[replace(each, sketched=()) for each in READY])) == ""


def checkpointed(count: int, **settings: Any) -> str:
    """What is said of a run of 60 averages in 3 epochs with so many checkpoints."""
    config = {"train": {"epochs": 3}, "checkpoint": {"every": 1, "unit": "epochs", "spacing_s": 0.0, **settings}}
    ends = [Evaluated(3.0 + epoch, 0, epoch, 10, 1.0, 1.0, 0.1) for epoch in range(3)]
    saved = [Saved(2.5 + 0.1 * n, rank, n, ()) for n in range(count) for rank in (0, 1)]
    metrics = make_metrics(make_spec("nccl_cadence"))
    return unsaved(metrics, replace(KNOWN, evaluated=ends, saved=saved), config)


@pytest.mark.parametrize(
    ("count", "settings", "wrong"),
    [
        (2, {}, False),
        (1, {}, False),
        (0, {}, True),
        (0, {"every": 0}, False),
        (0, {"every": 2}, False),
        (0, {"spacing_s": 2.0}, False),
        (11, {"unit": "averages", "every": 5}, False),
        (6, {"unit": "averages", "every": 5}, True),
        (1, {"unit": "averages", "every": 5}, True),
        (1, {"unit": "averages", "every": 40}, False),
    ],
)
def test_checkpoints_are_made_when_they_are_due(count: int, settings: dict[str, Any], wrong: bool) -> None:
    found = checkpointed(count, **settings)
    assert bool(found) == wrong
    assert not wrong or f"{count} checkpoints were made" in found


@pytest.mark.parametrize(
    ("settings", "at", "ending", "wrong"),
    [
        ({}, (3.0, 5.0), [], ""),
        ({"every": 0}, (3.0, 5.0), [], "2 checkpoints were made, with checkpoint.every=0"),
        ({"spacing_s": 2.0}, (3.0, 5.0), [], ""),
        ({"spacing_s": 2.0}, (1.5, 5.0), [], "checkpoint 0 was ordered 0.5 s after the one before"),
        ({"spacing_s": 2.0}, (3.0, 3.9), [], "checkpoint 1 was ordered 0.9 s after the one before"),
        ({"spacing_s": 2.0}, (3.0, 3.9), [Ending(3.5)], ""),
    ],
)
def test_no_checkpoints_are_made_but_those(
    settings: dict[str, Any], at: tuple[float, ...], ending: list[Ending], wrong: str
) -> None:
    saved = [Saved(at[n] + 0.1, rank, n, ()) for n in range(2) for rank in (0, 1)]
    work: Any = [(at[n], Save(rank, n, not rank, False, "")) for n in range(2) for rank in (0, 1)]
    config = {"train": {"epochs": 3}, "checkpoint": {"every": 1, "unit": "epochs", "spacing_s": 0.0, **settings}}
    known = replace(KNOWN, saved=saved, work=work, endings=ending)
    found = unsaved(make_metrics(make_spec("nccl_cadence")), known, config)
    assert found.startswith(wrong)
    assert bool(found) == bool(wrong)


@pytest.mark.parametrize(
    ("steps", "own", "half"),
    [((0, 90), 100, ""), ((0, 40), 100, "second"), ((60, 90), 100, "first"), ((0, 10), 40, ""), ((), 100, "first")],
)
def test_steps_of_both_halves_are_kept(steps: tuple[int, ...], own: int, half: str) -> None:
    reports = [Progress(3.0, rank, 0, own, 1600, 1.0, 1.0, 0.1) for rank in (0, 1)]
    items = [AuditItem(what="step", outcome="equal", line="", rank=0, epoch=0, step=step) for step in steps]
    report = AuditReport(run_id="", params_sha256=None, seconds=1.0, kept=[], items=items)
    run = Run(Path(), make_metrics(make_spec("nccl_cadence")), {})
    known = audit._kept_steps(run, replace(KNOWN, progress=reports))
    assert audit._unkept_half(run, report, known) == half
    graph = Run(Path(), run.metrics.model_copy(update={"engine": "graph"}), {})
    assert audit._unkept_half(graph, report, known) == "", "where a window of many steps is one"
    assert audit._unkept_half(run, report, None) == "", "an earlier version"

"""The checks that read a run's records: each passes what is true, and catches what it is for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results.runfolder import CONFIG
from bench.validate import Terms, judge
from bench.validate.baselines.folder import load
from ddp.core.messages.event_parts import StepSketch
from ddp.core.messages.events import Averaged, Evaluated, Finished, Progress, Ready, Snapshot, Trained
from ddp.core.settings.faults import parse
from ddp.tally import MODULUS, tally
from tests.bench.references import TODAY, one
from tests.bench.streams import make_spec
from tests.bench.validate.sketched import mixed, put, sketch
from tests.bench.validate.told import DATA, Change, baseline, each, mean, model, second, write

RECORDED = ("visits", "data", "average", "idle", "rate", "evaluation", "agreement")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return baseline(tmp_path_factory.mktemp("base"))


def test_baselines_keep_rates_and_what_was_evaluated(base: Path) -> None:
    (reference,) = load(base).references
    assert reference.sets is not None
    assert (reference.sets.training, reference.sets.evaluated, reference.sets.content) == (1920, 100, 50.0)
    assert reference.rates[-1] == (1.0, 1.0)


@pytest.mark.parametrize("mode", ["solo", "nccl_sync", "nccl_cadence", "cpu_async"])
def test_what_is_true_passes(tmp_path: Path, base: Path, mode: str) -> None:
    write(tmp_path, make_spec(mode))
    judgement = judge([tmp_path], base, Terms(today=TODAY))
    found = {v.check: v.name for v in judgement.verdicts if v.check in RECORDED}
    assert set(found.values()) == {"PASS"}
    alone = {"visits", "data", "rate", "evaluation", "idle"}
    assert set(found) == (alone if mode == "solo" else set(RECORDED))


def exchanged(change: Callable[[StepSketch], StepSketch]) -> Callable[[Any], Any]:
    """The change of every sketched step."""
    return lambda event: replace(event, exchanged=tuple(map(change, event.exchanged)))


SHORT = each(Progress, lambda e: replace(e, visited=(e.visited - tally([7]) + tally([8])) % MODULUS))


def trained(**change: Any) -> Change:
    """The change of what rank 1 tells of epoch 1."""
    return each(Trained, second(lambda e: replace(e, **change) if e.epoch == 1 else e))


def ordered_alike(records: list[Any]) -> list[Any]:
    """Every epoch in the order of the first."""
    events = [event for event in records if isinstance(event, Trained)]
    orders = {event.at: events[place % (len(events) // 3)].order for place, event in enumerate(events)}
    return [replace(e, order=orders[e.at]) if isinstance(e, Trained) else e for e in records]


SHARED = replace(DATA, shared=2, pairs=((3, 7), (11, 30)))
DATA_DEFECTS: dict[str, Change] = {
    "other labels": trained(content=1),
    "other samples than granted": trained(content=7 * 961, wanted=7 * 961),
    "the same order in every epoch": ordered_alike,
    "orders of another seed": trained(order=5),
    "later epochs are not told of": lambda records: [e for e in records if not isinstance(e, Trained) or not e.epoch],
    "a label too often": trained(labels=(1, 3)),
    "trained on the test set": each(Ready, lambda e: replace(e, data=SHARED)),
    "ranks with other data": each(
        Ready, second(lambda e: replace(e, data=replace(DATA, training=replace(DATA.training, content=2))))
    ),
    "data unlike the baseline's": each(
        Ready, lambda e: replace(e, data=replace(DATA, test=replace(DATA.test, content=2)))
    ),
    "labels of the test set": each(Evaluated, second(lambda e: replace(e, hashes=7))),
}
NOTHING = sketch(0.0, 0.0, 0.0, size=0.0)
DEFECTS: dict[str, tuple[str, str, Change, str]] = {
    "other samples": ("nccl_cadence", "visits", SHORT, ""),
    "fewer than the baseline": ("solo", "visits", each(Ready, lambda e: replace(e, samples=1900)), ""),
    "not the mean": (
        "nccl_cadence",
        "average",
        each(Averaged, lambda e: replace(e, sketch_average=e.sketch_before, sketch_after=e.sketch_before)),
        "round 0, rank 0: the average is not the weighted mean of the replicas (head.bias",
    ),
    "other weights": (
        "nccl_cadence",
        "average",
        each(Averaged, lambda e: replace(e, samples=e.samples + 40 * e.rank)),
        "round 0, rank 0: the average is not",
    ),
    "not looked at": (
        "nccl_cadence",
        "average",
        each(Averaged, lambda e: e if e.round else replace(e, sketch_before="", sketch_after="", sketch_average="")),
        "round 0: ranks recorded no sketch of an average that always has one",
    ),
    "old snapshots": (
        "cpu_async",
        "average",
        each(Snapshot, lambda e: replace(e, sketch=model(e.rank, max(e.round - 1, 0)))),
        "round 1, rank 0: the average is not",
    ),
    "buffers left out": (
        "nccl_cadence",
        "average",
        each(Averaged, lambda e: replace(e, sketch_average=put(e.sketch_average, e.sketch_before, [2]))),
        "norm.running_mean: weighted sum",
    ),
    "one tensor left out": (
        "nccl_cadence",
        "average",
        each(Averaged, lambda e: replace(e, sketch_average=put(e.sketch_average, e.sketch_before, [1]))),
        "head.bias: weighted sum",
    ),
    "thrown away": (
        "cpu_async",
        "average",
        each(Averaged, lambda e: replace(e, sketch_before=sketch(9.0, 1.0, 2.0))),
        "did not move by the average minus its snapshot",
    ),
    "optimizer lost": (
        "nccl_cadence",
        "average",
        each(Averaged, lambda e: replace(e, optimizer_before=(("momentum_buffer", sketch(1.0)),))),
        "the rank's optimizer state had momentum_buffer before the average and has nothing after it",
    ),
    "optimizer changed": (
        "cpu_async",
        "average",
        each(
            Averaged,
            lambda e: replace(
                e, optimizer_before=(("exp_avg", sketch(1.0)),), optimizer_after=(("exp_avg", sketch(2.0)),)
            ),
        ),
        "the average changed the state of the rank's optimizer (optimizer.exp_avg: weighted sum",
    ),
    "summed": (
        "nccl_sync",
        "average",
        each(Progress, exchanged(lambda s: replace(s, after=mixed([(2.0, s.after)])))),
        "exchange 0, rank 0",
    ),
    "no gradients": ("nccl_sync", "idle", each(Progress, second(exchanged(lambda s: replace(s, before=NOTHING)))), ""),
    "no gradients of its own": (
        "nccl_cadence",
        "idle",
        each(Progress, second(exchanged(lambda s: replace(s, before=NOTHING)))),
        "rank 1 reports steps, but 18 of its 18 recorded gradients are zero",
    ),
    "no gradients of one tensor": (
        "nccl_cadence",
        "idle",
        each(Progress, second(exchanged(lambda s: replace(s, before=put(s.before, NOTHING, [1]))))),
        "rank 1: all of 18 gradients of head.bias are zero, but not those of rank 0",
    ),
    "stands still": (
        "nccl_cadence",
        "idle",
        each(Averaged, second(lambda e: replace(e, sketch_before=model(1, 0), sketch_after=model(1, 0)))),
        "did not move in 17 of 17 windows",
    ),
    "a tensor stands still": (
        "nccl_cadence",
        "idle",
        each(
            Averaged,
            second(
                lambda e: replace(
                    e,
                    sketch_before=put(e.sketch_before, model(1, 0), [0]),
                    sketch_after=put(e.sketch_after, model(1, 0), [0]),
                )
            ),
        ),
        "rank 1: body.weight did not move in 17 windows, but did on rank 0",
    ),
    "a tensor never moves": (
        "solo",
        "idle",
        each((Ready, Finished), lambda e: replace(e, sketch=put(e.sketch, sketch(1.0, 1.0, 1.0), [1]))),
        "head.bias has gradients, but its final value equals its initial value",
    ),
    "another rate": ("nccl_cadence", "rate", each(Progress, lambda e: replace(e, lr=2 * e.lr)), ""),
    "other test samples": ("nccl_sync", "evaluation", each(Evaluated, lambda e: replace(e, content=26.0)), ""),
    "fewer test samples": ("solo", "evaluation", each(Evaluated, lambda e: replace(e, samples=99)), ""),
    "own model": (
        "cpu_async",
        "evaluation",
        each(Evaluated, lambda e: replace(e, sketch=model(e.rank, 5))),
        "epoch 0: ranks 0 and 1 evaluated different models (head.bias",
    ),
    "no average": (
        "nccl_cadence",
        "evaluation",
        each(Evaluated, lambda e: replace(e, sketch=sketch(1.0, 2.0, 3.0))),
        "epoch 0: the evaluated model is not the average of round 5",
    ),
    "the average of another round": (
        "cpu_async",
        "evaluation",
        each(Evaluated, lambda e: replace(e, sketch=mean(6 * e.epoch + 4))),
        "epoch 0: the evaluated model is not the average of round 5",
    ),
    "another model at the end": (
        "solo",
        "evaluation",
        each(Finished, lambda e: replace(e, sketch=mean(16))),
        "rank 0 ended with another model than the one evaluated last",
    ),
    **{name: ("nccl_cadence", "data", change, "") for name, change in DATA_DEFECTS.items()},
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_fails_its_check(tmp_path: Path, base: Path, defect: str) -> None:
    mode, check, change, line = DEFECTS[defect]
    write(tmp_path, make_spec(mode), change)
    found = one(tmp_path, base, check)
    assert (found.name, "seed 0" in found.line, line in found.line) == ("FAIL", True, True), found.line


@pytest.mark.parametrize(("fault", "judged"), [("1@40:slow*3", True), ("1@40:heal", True), ("1@40:crash", False)])
def test_a_script_that_takes_no_rank_switches_no_check_off(
    tmp_path: Path, base: Path, fault: str, judged: bool
) -> None:
    spec = make_spec("nccl_cadence", faults=(parse(fault),))
    write(tmp_path, spec, DEFECTS["another rate"][2])
    found = {v.check: v.name for v in judge([tmp_path], base, Terms(today=TODAY)).verdicts}
    assert found.get("rate") == ("FAIL" if judged else None)


@pytest.mark.parametrize(("shared", "name"), [(1, "PASS"), (2, "SUSPICIOUS")])
def test_without_a_baseline_a_test_set_that_is_trained_is_suspicious(tmp_path: Path, shared: int, name: str) -> None:
    write(tmp_path, make_spec("nccl_cadence"), each(Ready, lambda e: replace(e, data=replace(SHARED, shared=shared))))
    found = one(tmp_path, tmp_path / "none", "data")
    assert (found.name, "(test sample 3 is training sample 7" in found.line) == (name, True)


def test_a_defect_in_one_seed_is_found(tmp_path: Path, base: Path) -> None:
    write(tmp_path, make_spec("nccl_cadence", seed=0))
    write(tmp_path, make_spec("nccl_cadence", seed=1), DEFECTS["not the mean"][2])
    assert "seed 1, round 0" in one(tmp_path, base, "average").line


def test_ranks_that_end_apart(tmp_path: Path, base: Path) -> None:
    def apart(event: Finished) -> Finished:
        return replace(event, digest=f"of {event.rank}", sketch=model(event.rank, 5))

    write(tmp_path, make_spec("nccl_cadence"), each(Finished, apart))
    found = one(tmp_path, base, "agreement")
    assert (found.name, "(ranks 0 and 1, head.bias: weighted sum 0, expected 1" in found.line) == ("FAIL", True)


@pytest.mark.parametrize(
    ("wire", "off", "verdict"),
    [
        *(("float32", 0.0, "PASS"), ("float32", 0.5, "FAIL"), ("bfloat16", 0.5, "PASS"), ("bfloat16", 2.0, "FAIL")),
        ("float32", None, "FAIL"),
    ],
)
def test_averaged_optimizer_state_may_be_off_by_what_its_wire_rounds(
    tmp_path: Path, base: Path, wire: str, off: float | None, verdict: str
) -> None:
    def moments(event: Averaged) -> Averaged:
        before, after = (("exp_avg", sketch(1.0)),), () if off is None else (("exp_avg", sketch(1.0 + off)),)
        return replace(event, optimizer_before=before, optimizer_after=after)

    folder = write(tmp_path, make_spec("nccl_cadence"), each(Averaged, moments))
    settings = {"gamma": 1.0, "outer": "none", "wire": wire, "optimizer_state": True}
    (folder / CONFIG).write_text(json.dumps({"averaging": settings}))
    found = one(tmp_path, base, "average")
    assert found.name == verdict, found.line
    line = "removed exp_avg from" if off is None else "not the weighted mean of all ranks' states"
    assert (line in found.line) is (verdict == "FAIL")

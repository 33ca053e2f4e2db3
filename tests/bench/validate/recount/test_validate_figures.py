"""The check `figures`: a result is counted anew by other code, so an error of the code that makes results shows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.results import recompute
from bench.results.analysis import breakdown, goodput, rank_seconds, syncing, timeline, training
from bench.results.chain import lines
from bench.results.runfolder import EVENTS, Run, find_runs
from bench.validate.checks import figures
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from bench.validate.recount.identity import identity
from bench.validate.recount.learning import learning
from bench.validate.verdicts.findings import Case
from ddp.core.figures import summary
from ddp.core.messages.events import Evaluated
from ddp.process import codec

ROOT = Path(__file__).resolve().parents[4]
Break = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(scope="module")
def run() -> Run:
    """A recorded run of two ranks."""
    (made,) = find_runs(ROOT / "benchmarks" / "golden" / "recorded" / "mlp" / "nccl_cadence")[0]
    return made


def wrong(run: Run) -> list[str]:
    """What the check says of it."""
    known = records(run)
    assert known is not None
    return [each.wrong for each in figures.figures(run, known) if each.wrong]


def test_what_was_recorded_is_counted_alike(run: Run) -> None:
    known = records(run)
    assert known is not None
    assert wrong(run) == []
    assert sum(1 for _ in figures.figures(run, known)) > 40


def test_parts_of_an_evaluation_may_be_of_any_ranks(run: Run) -> None:
    known = records(run)
    assert known is not None
    assert {answer.part for answer in known.evaluated} == {0, 1}
    moved = replace(known, evaluated=[replace(answer, rank=answer.part + 1) for answer in known.evaluated])
    assert [each.wrong for each in learning(run.metrics, moved) if each.wrong] == []


def _doubled(patch: pytest.MonkeyPatch) -> None:
    speed = training.throughput

    def broken(*about: Any) -> Any:
        made = speed(*about)
        return made.model_copy(update={"samples_per_s": 2 * made.samples_per_s, "per_rank": made.per_rank})

    patch.setattr("bench.results.analyze.throughput", broken)


def _shorter(patch: pytest.MonkeyPatch) -> None:
    seconds = training.train_seconds
    patch.setattr("bench.results.analyze.train_seconds", lambda stream: 0.9 * seconds(stream))


def _waiting_computes(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(breakdown.CATEGORY, "wait", "compute")


def _first_loss(patch: pytest.MonkeyPatch) -> None:
    add = summary._EpochSums.add
    patch.setattr(
        summary._EpochSums,
        "add",
        lambda self, event: add(self, event if not event.rank else replace(event, loss_sum=0.0, samples=0, steps=0)),
    )


def _best_is_final(patch: pytest.MonkeyPatch) -> None:
    from bench.results import analyze

    final = analyze._final

    def broken(spec: Any, rows: Any) -> Any:
        made = final(spec, rows)
        return made.model_copy(update={"eval": (made.best or 0.0) + 1e-3})

    patch.setattr(analyze, "_final", broken)


def _bytes_halved(patch: pytest.MonkeyPatch) -> None:
    made = syncing._sync
    patch.setattr(syncing, "_sync", lambda kind, cost, payload, apart: made(kind, cost, payload // 2, apart))


def _saving_is_training(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(rank_seconds._STAND, "checkpoint", "kept")


def _start_is_no_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(goodput, "LOST", tuple(part for part in goodput.LOST if part != "starting"))


def _first_is_last(patch: pytest.MonkeyPatch) -> None:
    rows = timeline._arrivals
    patch.setattr(timeline, "_arrivals", lambda late, last: rows(late, late == 0.0))


@pytest.mark.parametrize(
    ("broken", "named"),
    [
        (_saving_is_training, "goodput.parts.kept"),
        (_start_is_no_loss, "goodput.ettr"),
        (_first_is_last, "timeline.arrivals[0].last"),
        (_doubled, "throughput.samples_per_s"),
        (_shorter, "time_s.train"),
        (_waiting_computes, "breakdown"),
        (_first_loss, "train_loss"),
        (_best_is_final, "final.eval"),
        (_bytes_halved, "sync.bytes"),
    ],
)
def test_an_error_of_what_makes_results_shows_in_the_figure(
    run: Run, monkeypatch: pytest.MonkeyPatch, broken: Break, named: str
) -> None:
    every = [codec.decode(line) for line in lines(run.path / EVENTS, None)]
    broken(monkeypatch)
    metrics = recompute.result(every).model_copy(update={"record": run.metrics.record})
    made = replace(run, metrics=metrics)
    assert any(named in line for line in wrong(made)), wrong(made)


def test_an_epoch_that_is_evaluated_in_part_ends_with_its_last_report(run: Run) -> None:
    """However late that part was: on a loaded machine it came milliseconds after the report."""

    def late(event: Evaluated) -> Evaluated:
        return replace(event, at=event.at + 1.0)

    every = [codec.decode(line) for line in lines(run.path / EVENTS, None)]
    kept = [late(e) if isinstance(e, Evaluated) else e for e in every if not isinstance(e, Evaluated) or e.rank == 0]
    metrics, known = recompute.result(kept), records(run)
    assert known is not None
    assert [row.eval for row in metrics.epochs] == [None] * 4
    known = replace(known, evaluated=[late(event) for event in known.evaluated if event.rank == 0])
    assert [each.wrong for each in learning(metrics, known) if each.wrong and each.name.endswith(".seconds")] == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({}, ""),
        ({"params_sha256": "0" * 64}, "params_sha256 is"),
        ({"steps": 7}, "steps is 7"),
        ({"epochs": []}, "epochs"),
    ],
)
def test_what_was_learned_without_a_rank_is_counted_too(
    run: Run, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], line: str
) -> None:
    """Of a run that lost a rank only the losses were counted: half its steps passed."""
    monkeypatch.setattr(figures, "lost_nobody", lambda m: False)
    found = wrong(replace(run, metrics=run.metrics.model_copy(update=change)))
    assert found[0].startswith(line) if line else not found


def test_results_of_earlier_versions_are_left_alone(run: Run) -> None:
    from bench.results.cells import cells

    (cell,) = cells([replace(run, metrics=run.metrics.model_copy(update={"schema_version": 3}))])
    assert figures.check(Case(cell, None)) is None
    assert isinstance(records(run), Records)


def test_the_scale_of_the_rate_is_what_the_settings_make_of_it(run: Run) -> None:
    """It counted all ranks: twice as much of a ratio as was asked for, in the result and in every step."""
    trained = run.config["train"] | {"lr_scale_ratio": 0.5}
    for scale, named in ((1.5, False), (2.0, True)):
        metrics = run.metrics.model_copy(update={"lr_scale": scale})
        made = replace(run, metrics=metrics, config=run.config | {"train": trained})
        assert any(line.startswith("lr_scale is 2") for line in wrong(made)) is named


def test_one_rank_has_the_rate_of_its_recipe(run: Run) -> None:
    known = records(run)
    assert known is not None
    for scale in (1.0, 1.5):
        metrics = run.metrics.model_copy(update={"world_size": 1, "lr_scale": scale})
        (figure,) = [each for each in identity(metrics, known, {}) if each.name == "lr_scale"]
        assert bool(figure.wrong) is (scale != 1.0)


@pytest.mark.parametrize(
    ("change", "kind", "line"),
    [
        ({}, "resident", ""),
        ({"frozen": 7}, "auto", "frozen is 7, but the records give 0"),
        ({"loader": ["streaming", "resident"]}, "auto", "loader is [streaming, resident]"),
        ({}, "streaming", "loader, as set (streaming) is [resident]"),
    ],
)
def test_what_ranks_say_of_their_data_and_parameters_is_in_the_result(
    run: Run, change: dict[str, Any], kind: str, line: str
) -> None:
    made = replace(run, metrics=run.metrics.model_copy(update=change), config=run.config | {"loader": {"kind": kind}})
    assert [each[: len(line)] for each in wrong(made)] == ([line] if line else [])


def test_collectives_go_over_the_transport_that_is_set(run: Run) -> None:
    made = replace(run, config=run.config | {"cluster": {"transport": "gloo"}})
    assert wrong(made)[0] == f"transport, as set (gloo) is {run.metrics.transport}, but the records give gloo"
    assert wrong(replace(run, config=run.config | {"cluster": {"transport": run.metrics.transport}})) == []

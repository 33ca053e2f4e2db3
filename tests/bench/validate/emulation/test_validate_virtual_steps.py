"""Steps in virtual time last as long as the settings say, whoever computes that time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.results.analysis.stream import Slices
from bench.validate.checks import breakdown
from bench.validate.emulation.virtual_steps import DRAWN, otherwise_timed
from bench.validate.records.run_records import Records
from bench.validate.rules.due_slices import lacking
from ddp.core.messages.events import Progress, Ready
from ddp.core.messages.measurements import Slice
from ddp.virtual import engine

SEED, BATCH, STEP_S, SIZES = 3, 16, 0.01, (16, 16, 0, 16, 5)
"""Of a run of two ranks, and the samples of each rank's steps."""


def series(rank: int, steps: str = "lognormal:0.5", seed: int = SEED) -> list[float]:
    """Return the seconds of full steps that the engine gives a rank."""
    about = {"world_size": 2, "speeds": (1.0, 0.5), "seed": seed, "batch_size": BATCH, "links": None}
    job: Any = SimpleNamespace(**about, virtual=SimpleNamespace(step_s=STEP_S, steps=steps))
    step_s = engine.step_times(job)
    return [step_s(rank, number) for number in range(len(SIZES))]


def said(full_s: list[list[float]], sizes: tuple[int, ...] = SIZES, trained: int = sum(SIZES), **more: Any) -> str:
    """Return what is said of two ranks with these seconds of full steps."""
    known, begin, slices = Records(), 5e4, []
    for rank, own in enumerate(full_s):
        known.progress.append(Progress(begin, rank, 0, len(sizes), trained, 0.0, 1.0, 0.1))
        at = begin
        for whole, size in zip(own, sizes, strict=True):
            for kind, share in engine.PARTS:
                slices.append(Slice(at, rank, kind, whole * size / BATCH * share))
                at += slices[-1].seconds
    slices.reverse()  # ranks' slices may be recorded in any order
    columns = Slices.of(slices)
    known.add_slices(columns, columns.stop - columns.start)
    about: Any = {"engine": "virtual", "world_size": 2, "schema_version": 5, "seed": SEED, "batch_size": BATCH} | more
    config = {"virtual": {"step_s": STEP_S, "steps": "lognormal:0.5"}, "cluster": {"speeds": [1.0, 0.5]}}
    metrics: Any = SimpleNamespace(**about)
    return otherwise_timed(metrics, known, config)


def test_the_engine_gives_these_times() -> None:
    assert said([series(0), series(1)]) == ""
    assert engine.DRAWN == DRAWN


@pytest.mark.parametrize(
    "full_s",
    [
        [series(0), [2 * each for each in series(0)]],
        [series(0, seed=4), series(1, seed=4)],
        [series(0), [each / 2 for each in series(1)]],
        [series(0, "constant"), series(1, "constant")],
    ],
    ids=["one series for all", "another seed", "another speed", "no series"],
)
def test_other_times_are_named(full_s: list[list[float]]) -> None:
    assert "of virtual time" in said(full_s)


def test_short_batches_take_less_time() -> None:
    """All took the time of full batches: whole numbers, and too many of them."""
    assert "and it trained 53" in said([series(0), series(1)], (16,) * 5)


@pytest.mark.parametrize("more", [{"engine": "elche"}, {"world_size": 1}, {"schema_version": 4}])
def test_of_other_runs_nothing_is_said(more: dict[str, Any]) -> None:
    assert said([series(1), series(0)], **more) == ""


def test_draws_repeat() -> None:
    known = Records(stepped={0: np.full(3, STEP_S)}, progress=[Progress(0.0, 0, 0, 2, 32, 0.0, 1.0, 0.1)])
    about: Any = SimpleNamespace(engine="virtual", world_size=2, schema_version=5, seed=0, batch_size=BATCH)
    config: dict[str, Any] = {"virtual": {"step_s": STEP_S, "steps": "constant"}, "cluster": {}}
    assert otherwise_timed(about, known, config) == "", "of three timings for two reported steps nothing is said"
    known.stepped[0] = np.full(2, STEP_S)
    assert otherwise_timed(about, known, config) == ""
    known.stepped[0] = np.full(2, STEP_S / 2)
    assert "its 2 steps that of 16, and it trained 32" in otherwise_timed(about, known, config)


@pytest.mark.parametrize(
    ("engine_name", "links", "twice"),
    [("virtual", ["4ms/100mbit"], False), ("virtual", None, True), ("elche", ["ib"], True)],
)
def test_over_links_in_virtual_time_a_report_comes_late(engine_name: str, links: list[str] | None, twice: bool) -> None:
    """It trains until 1.0, reports after 0.5, 0.6 and 1.0, and waits until 2.0; a report comes 0.4 later."""
    known = Records(
        ready=[Ready(0.0, 0, 32, 8, "", "cpu", "memory")],
        progress=[Progress(at, 0, 0, 2, 32, busy, 1.0, 0.1) for at, busy in ((0.9, 0.5), (1.0, 0.1), (1.4, 0.4))],
    )
    known.rests[0].append((1.0, 2.0))
    metrics = SimpleNamespace(engine=engine_name, time_s=SimpleNamespace(rank_wall=[2.0]))
    run: Any = SimpleNamespace(metrics=metrics, config={"cluster": {"links": links}})
    assert bool(breakdown._rests_in_steps(run, known)) is twice


@pytest.mark.parametrize("ranks", [engine.MOST, engine.MOST + 1])
def test_of_many_ranks_a_step_has_two_slices(ranks: int) -> None:
    known = Records(progress=[Progress(1.0, 0, 0, 2, 32, 1.0, 1.0, 0.1)])
    known.slices.update({(0, kind): 2 for kind, _ in engine.FEW})
    about = {"engine": "virtual", "world_size": ranks, "batch_size": BATCH, "backend": "cpu", "policy": "sync"}
    run: Any = SimpleNamespace(metrics=SimpleNamespace(**about))
    assert bool(lacking(run, known)) is (ranks == engine.MOST)


@pytest.mark.parametrize(("policy", "read", "named"), [("sync", 11, False), ("sync", 10, True), ("cadence", 11, True)])
def test_a_step_without_samples_takes_no_virtual_time(policy: str, read: int, named: bool) -> None:
    """A clean run of three ranks, of which one had no sample of an epoch's last batch, failed."""
    known = Records(progress=[Progress(0.0, 0, 0, 12, 11 * BATCH, 0.0, 1.0, 0.1)])
    known.slices.update({(0, kind): read for kind, _ in engine.PARTS} | {(0, "exchange"): 12})
    about = {"engine": "virtual", "world_size": 3, "batch_size": BATCH, "backend": "nccl", "policy": policy}
    run: Any = SimpleNamespace(metrics=SimpleNamespace(**about))
    assert bool(lacking(run, known)) is named

"""Figures that ranks report beside what they do: memory, and how far replicas were apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate.checks import peak_memory, rate
from bench.validate.checks.breakdown import _booked_twice, _processor
from bench.validate.evidence import derivation
from bench.validate.records.reading import records
from bench.validate.records.run_records import Records
from bench.validate.sketches.distances import amiss
from bench.validate.verdicts.findings import Case
from ddp.core.messages.event_parts import SketchGroup, WorkSeconds
from ddp.core.messages.events import Averaged, Finished, Lost, Memory, Progress, Ready
from ddp.sketches import encode
from tests.bench.streams import make_spec
from tests.bench.validate.told import write

NORM, APART = 3.0, 0.1


GROUPS = tuple(SketchGroup(f"weight {number}", "parameters", 25, "float32", True) for number in range(20))


def rounds(count: int, seed: int = 0, ways: int = 0, last: float = APART, digits: int = 53) -> Records:
    """Rounds of two ranks, whose replicas are `APART` from an average of size `NORM`, each in another direction. `ways`: in
    one of so many, within one group. `last`: how far they are apart in the last quarter; `digits`: bits of a value (the
    average is rounded to a narrow type after the distances are taken)."""
    draw, known = np.random.default_rng(seed), Records(averaged=[])
    shape = (2, 500)
    weights = draw.choice([-1.0, 1.0], shape) * draw.uniform(0.5, 1.5, shape) * draw.uniform(0.5, 1.5, shape)
    few = draw.normal(size=(max(ways, 1), 500)) * (np.arange(500) < 25)
    average = draw.normal(size=500)
    average *= NORM / np.linalg.norm(average)
    for number in range(count):
        step = few[number % ways] if ways else draw.normal(size=500)
        far = last if number >= 3 * count // 4 else APART
        step = step * (far / np.linalg.norm(step))
        mean = rounded(average, max(digits, 24))
        for rank, own in enumerate(rounded(average + way, digits) for way in (step, -step)):
            before, after = (
                encode((weights * values).reshape(2, 20, 25).sum(2).T, np.linalg.norm(values.reshape(20, 25), axis=1))
                for values in (own, rounded(mean, digits))
            )
            square = float(np.square(own - mean).sum())
            known.averaged.append(
                Averaged(0.0, rank, number, 5, 80, 0.1, 10, square**0.5 / NORM, 0.0, square, before, after, after)
            )
    return replace(known, closed=[], ready=[])


def rounded(values: NDArray[np.float64], digits: int) -> NDArray[np.float64]:
    """Values of so many bits."""
    fractions, powers = np.frexp(values)
    return np.ldexp(np.round(np.ldexp(fractions, digits)), powers - digits)


@pytest.mark.parametrize(
    ("change", "settings", "line"),
    [
        ({}, {}, ""),
        ({"divergence": (APART / NORM) ** 2}, {}, "the reported divergence is 0.001111"),
        ({"divergence": APART / NORM / 3, "distance": APART**2 / 9}, {}, "times those that ranks report"),
        ({"divergence": APART / NORM * 3, "distance": APART**2 * 9}, {}, "times those that ranks report"),
        ({"divergence": 0.5}, {"elastic": 0.5}, ""),
        ({"distance": 0.0}, {}, ""),
    ],
)
def test_distances_are_those_that_sketches_show(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, float], settings: dict[str, object], line: str
) -> None:
    monkeypatch.setattr(Records, "groups", GROUPS)
    known = rounds(16)
    found = amiss(replace(known, averaged=[replace(event, **change) for event in known.averaged]), settings)
    assert line in found
    assert bool(line) == bool(found), found


@given(st.floats(-14.0, -1.0), st.integers(0, 99), st.sampled_from([("float64", 53), ("float32", 24), ("bfloat16", 8)]))
def test_what_rounding_hides_of_a_distance_is_not_judged(power: float, seed: int, kind: tuple[str, int]) -> None:
    """As the learning rate falls, replicas stay nearer to their average than sums of sketches are exact: by these they were
    89 times as far apart."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Records, "groups", tuple(replace(group, dtype=kind[0]) for group in GROUPS))
        assert amiss(rounds(16, seed, last=10.0**power, digits=kind[1]), {}) == ""


@pytest.mark.parametrize("ways", [1, 2, 3])
def test_replicas_may_come_apart_along_few_directions(monkeypatch: pytest.MonkeyPatch, ways: int) -> None:
    """One key weighs all rounds, so that the mean is one draw, of which every fifth is far off."""
    monkeypatch.setattr(Records, "groups", GROUPS)
    assert [amiss(rounds(12, seed, ways), {}) for seed in range(50)] == [""] * 50


@pytest.mark.parametrize(
    ("samples", "farther", "settings", "line"),
    [
        ((80, 80), (1.0, 1.0), {}, ""),
        ((80, 40), (1.0, 2.0), {}, ""),
        ((80, 40), (1.0, 1.0), {}, "do not fit weights of 66.7% and 33.3%"),
        ((80, 40), (1.0, 1.0), {"gamma": 0.0}, ""),
        ((80, 40), (1.0, 1.0), {"wire": "bfloat16"}, ""),
        ((80, 80, 80), (1.0, 1.0, 1.1), {}, ""),
        ((80, 80, 80), (1.0, 1.0, 1.0), {}, "all ranks report equal distances from the average in 16 rounds"),
    ],
)
def test_distances_go_with_weights(
    monkeypatch: pytest.MonkeyPatch,
    samples: tuple[int, ...],
    farther: tuple[float, ...],
    settings: dict[str, object],
    line: str,
) -> None:
    """Of two, each is as far from the average as the other weighs; of more never all are equally far."""
    monkeypatch.setattr(Records, "groups", GROUPS)
    known = rounds(16)
    first = [event for event in known.averaged if not event.rank]
    averaged = [
        replace(event, rank=rank, samples=samples[rank], distance=APART**2 * far**2, divergence=APART * far / NORM)
        for event in first
        for rank, far in enumerate(farther)
    ]
    found = amiss(replace(known, averaged=averaged), settings)
    assert line in found
    assert bool(line) == bool(found), found
    monkeypatch.setattr(Records, "groups", tuple(replace(group, dtype="bfloat16") for group in GROUPS))
    assert amiss(replace(known, averaged=averaged), settings) == "", "narrow parameters are rounded"


@pytest.mark.parametrize(
    ("peak", "on_device", "line"),
    [
        (900_000_000, 0, ""),
        (900_000, 0, "reports a peak of 900,000 bytes, but measured 800,000,000"),
        (793_000_000, 0, ""),
        (781_250_000, 0, "reports a peak of 781,250,000 bytes"),  # kB of 1,000 bytes
        (900_000_000_000, 0, "on a machine that has 16,000,000,000"),
        (900_000_000, 7, "a peak of its device of 7 bytes, but measured 1,000"),
    ],
)
def test_peaks_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, peak: int, on_device: int, line: str) -> None:
    write(tmp_path, make_spec("solo"))
    (run,) = find_runs(tmp_path)[0]
    known = records(run)
    assert known is not None
    run = replace(run, metrics=run.metrics.model_copy(update={"env": {"memory_bytes": 16_000_000_000}}))
    known = replace(known, memory={}, finished=[Finished(9.0, 0, "", peak, on_device)])
    for resident, device in ((800_000_000, 1_000 if on_device else None), (700_000_000, None)):
        known.add_memory(Memory(1.0, 0, resident, 1.0, device))
    monkeypatch.setattr(derivation, "records", lambda run, lost: known)
    verdict = peak_memory.check(Case(cells([run])[0], None))
    assert verdict is not None
    assert (verdict.name, line in verdict.line) == ("FAIL" if line else "PASS", True), verdict.line


WRONG = {
    0.01: "learning rates are on average 400 samples behind the baseline's (allowed: 64)",
    -0.02: "learning rates are on average 800 samples ahead of the baseline's (allowed: 400)",
}


@pytest.mark.parametrize("lag", [0.0, 0.0005, -0.009, *WRONG])
@pytest.mark.parametrize("jitter", [0.0, 0.03])
def test_rates_are_not_off_on_the_mean(monkeypatch: pytest.MonkeyPatch, lag: float, jitter: float) -> None:
    """Of a schedule that falls to zero: single rates may be far off, all of them may not; ahead is what reports are."""
    seen = np.linspace(0.02, 0.98, 400)
    offsets = jitter * np.where(np.arange(400) % 2, 1.0, -1.0) - lag
    monkeypatch.setattr(rate, "course", lambda m, known: (seen, 1.0 - (seen + offsets)))
    ready = Ready(0.0, 0, 10_000, 1, "", "cpu", "none")
    progress = [Progress(1.0, 0, 0, 6, 100, 0.1, 1.0, 0.1) for _ in seen]
    metrics = SimpleNamespace(epochs_planned=4, batch_size=16, world_size=2)
    found = rate._shifted(cast(Any, metrics), Records(ready=[ready], progress=progress), ((0.0, 1.0), (1.0, 0.0)))
    assert found == WRONG.get(lag, "")


@pytest.mark.parametrize(("away_s", "wrong"), [(2.0, False), (900.0, True)])
def test_averages_keep_no_rank_from_training_for_longer_than_it_was_there(away_s: float, wrong: bool) -> None:
    """They told of milliseconds as if they were seconds."""
    known = Records(averaged=[Averaged(5.0, 0, 0, 9, 9, 0.1, 8, 0.0, away_s=away_s)])
    metrics = SimpleNamespace(engine="elche", backend="nccl", policy="sync", time_s=SimpleNamespace(rank_wall=[10.0]))
    assert bool(_booked_twice(cast(Any, SimpleNamespace(metrics=metrics)), known)) is wrong


@pytest.mark.parametrize(
    ("saving_s", "lost", "wrong"),
    [(2.0, False, False), (0.5, False, True), (9.0, False, False), (0.5, True, False), (None, False, False)],
)
def test_saving_state_takes_no_longer_than_it_is_told_to(saving_s: float | None, lost: bool, wrong: bool) -> None:
    """Waiting was booked as saving. A rank that came back tells of its last life only."""
    end = Finished(9.0, 0, "", 1, 0, saving_s=saving_s)
    known = Records(finished=[end], lost=[Lost(1.0, 0, "killed")] if lost else [])
    known.seconds[0, "checkpoint"] = 2.0
    metrics = SimpleNamespace(engine="elche", backend="nccl", policy="sync", time_s=SimpleNamespace(rank_wall=[10.0]))
    assert bool(_booked_twice(cast(Any, SimpleNamespace(metrics=metrics)), known)) is wrong


@pytest.mark.parametrize(
    ("policy", "kind", "wrong"),
    [("sync", "parameters", True), ("sync", "buffers", False), ("cadence", "buffers", True)],
)
def test_collectives_are_not_booked_as_steps(
    monkeypatch: pytest.MonkeyPatch, policy: str, kind: str, wrong: bool
) -> None:
    """Layers with buffers may meet within a step, where ranks take it together."""
    monkeypatch.setattr(Records, "groups", (SketchGroup("norm", kind, 10, "float32", True),))
    known = Records(progress=[Progress(9.5, 0, 0, 9, 9, 9.5, 1.0, 0.1)])
    metrics = SimpleNamespace(engine="elche", backend="nccl", policy=policy, time_s=SimpleNamespace(rank_wall=[10.0]))
    assert not _booked_twice(cast(Any, SimpleNamespace(metrics=metrics)), known)
    known.seconds[0, "exchange"] = 4.0
    assert bool(_booked_twice(cast(Any, SimpleNamespace(metrics=metrics)), known)) is wrong


@pytest.mark.parametrize(("used", "device", "wrong"), [(5.0, "cpu", False), (2.2, "cpu", True), (0.1, "cuda:0", False)])
def test_a_process_uses_what_its_thread_computes(used: float, device: str, wrong: bool) -> None:
    """It told of half of its processor time."""
    known = Records(progress=[Progress(5.0, 0, 0, 9, 9, 9.5, 1.0, 0.1, work=WorkSeconds(0.5, 9.0, 1.0, 0.0))])
    known.slowed[0].append((2.0, 6.0))
    for at, seconds in ((1.0, 3.0), (3.0, 3.1), (9.0, 3.0 + used)):
        known.add_memory(Memory(at, 0, 1, seconds))
    metrics = SimpleNamespace(devices=[device])
    assert bool(_processor(cast(Any, SimpleNamespace(metrics=metrics)), known)) is wrong

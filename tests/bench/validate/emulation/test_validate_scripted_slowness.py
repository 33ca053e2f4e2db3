"""What a script slows down is slow, on its rank and from its step on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.validate.emulation.emulated_ranks import otherwise_slow
from bench.validate.records.run_records import Records
from ddp.core.messages.events import Progress, Ready, WorkSeconds
from tests.bench.streams import make_metrics, make_spec

STEP, EACH = 1e-3, 10
"""Seconds of a step that nothing slows down; steps of a report."""
Pace = tuple[int, float, float, float]
"""From a step on: times that a step takes because of waiting behind it, of late batches; times that its link takes."""


def wrong(
    script: Sequence[str],
    *paces: Pace,
    loader: str = "resident",
    rank: int = 1,
    read: float = 0.0,
    backend: str = "nccl",
    coreless: float = 0.0,
    step_s: float = 0.0,
) -> str:
    """What is said of a rank of a run of 600 steps with such a script. `read`: what its batches take by themselves;
    `coreless`: what they wait for a core."""
    known = Records(ready=[Ready(0.0, rank, 6400, 1, "", "cpu", "memory", loader)])
    known.seconds[rank, "exchange"] = 10.0
    at = 0.0
    for first in range(0, 600, EACH):
        _, slow, late, link = [pace for pace in ((0, 1.0, 1.0, 1.0), *paces) if pace[0] <= first][-1]
        waits = (slow - 1) * STEP
        for _ in range(EACH if slow > 1 else 0):
            known.slowed[rank].append((at, at + waits))
            known.seconds[rank, "slowdown"] += waits
        known.seconds[rank, "forward"] += EACH * STEP
        data = max(read, (late - 1) * slow * STEP)
        at += EACH * (STEP + waits + data)
        work = WorkSeconds(EACH * (data + coreless), EACH * (STEP + waits), 0.0, EACH * coreless, link)
        known.progress.append(Progress(at, rank, 0, EACH, 160, at, 1.0, 0.1, work=work))
    metrics = make_metrics(make_spec("nccl_cadence")).model_copy(
        update={"scripted_faults": list(script), "backend": backend}
    )
    return otherwise_slow(metrics, known, {"cluster": {"speeds": [], "step_s": step_s}})


SLOW, INPUT, LINK = ["1@300:slow*3"], ["1@300:input*3"], ["1@300:link*3"]


@pytest.mark.parametrize(
    ("script", "paces", "line"),
    [
        (SLOW, [(300, 3.0, 1.0, 1.0)], ""),
        (SLOW, [], "rank 1 waited 0 s"),
        (SLOW, [(100, 3.0, 1.0, 1.0)], "rank 1, before its first fault: it waited 0.4 s"),
        (SLOW, [(560, 3.0, 1.0, 1.0)], "rank 1 waited 0.08 s"),
        ([*SLOW, "1@400:heal"], [(300, 3.0, 1.0, 1.0), (400, 1.0, 1.0, 1.0)], ""),
        ([*SLOW, "1@400:heal"], [(300, 3.0, 1.0, 1.0), (460, 1.0, 1.0, 1.0)], "from 1@400:heal on: it waited 0.12 s"),
        (INPUT, [(300, 1.0, 3.0, 1.0)], ""),
        (INPUT, [], "a batch took 0 s, but should be late by 0.002 s"),
        (INPUT, [(0, 1.0, 3.0, 1.0)], "so the scripted 1@300:input*3 did not occur then"),
        (INPUT, [(460, 1.0, 3.0, 1.0)], "a batch took 0 s"),
        (LINK, [(0, 1.0, 1.0, 1.2), (300, 1.0, 1.0, 3.2)], ""),
        (LINK, [], "a transfer took 1 times what its link needs, but should take 3 times that"),
        (LINK, [(0, 1.0, 1.0, 3.0)], "so the scripted 1@300:link*3 did not occur then"),
        (["1@300:link*3", "1@400:heal"], [(300, 1.0, 1.0, 3.0)], "so the scripted 1@400:heal did not occur then"),
        (["1@300:input*3", "1@400:slow*2"], [(300, 1.0, 3.0, 1.0), (400, 2.0, 3.0, 1.0)], ""),
        (["1@590:input*3"], [], ""),
        (["0@300:input*3"], [(300, 1.0, 3.0, 1.0)], ""),
    ],
)
def test_what_is_scripted_comes_when_it_is_to(script: list[str], paces: list[Pace], line: str) -> None:
    found = wrong(script, *paces)
    assert line in found, found
    assert bool(line) == bool(found), found


def test_batches_that_wait_for_a_core_slow_no_step_down() -> None:
    assert wrong(SLOW, (300, 3.0, 1.0, 1.0), coreless=20 * STEP) == ""


@pytest.mark.parametrize(("loader", "named"), [("streaming", False), ("resident", True)])
def test_what_is_read_from_elsewhere_may_be_late_by_itself(loader: str, named: bool) -> None:
    """A thread that reads ahead catches up while a batch is held back."""
    assert bool(wrong(INPUT, (300, 1.0, 3.0, 1.0), loader=loader, read=2e-3)) is named


@pytest.mark.parametrize(("backend", "named"), [("nccl", True), ("zero2", False)])
def test_what_ranks_exchange_within_a_pass_is_slowed_down_with_it(backend: str, named: bool) -> None:
    """It waits for the others there, whose batches may be late."""
    assert (
        bool(wrong(["1@400:slow*2", "1@540:heal"], (400, 5.0, 1.0, 1.0), (540, 1.0, 1.0, 1.0), backend=backend))
        is named
    )


@pytest.mark.parametrize(
    ("script", "slow", "line"),
    [
        ([], 4.0, ""),
        ([], 1.0, "rank 1: 600 steps took 0.6 s, not 2.4 s (cluster.step_s)"),
        ([], 8.0, "rank 1: 600 steps took 4.8 s, not 2.4 s (cluster.step_s)"),
        (["1@300:slow*2"], 4.0, "rank 1: 600 steps took 2.4 s, not 3.59 s (cluster.step_s)"),
    ],
)
def test_steps_of_a_given_time_take_it(script: list[str], slow: float, line: str) -> None:
    assert wrong(script, (0, slow, 1.0, 1.0), step_s=4 * STEP) == line


def test_steps_of_a_given_time_are_slowed_down_from_the_scripted_step_on() -> None:
    later = (0, 4.0, 1.0, 1.0), (300, 8.0, 1.0, 1.0)
    assert wrong(["1@300:slow*2"], *later, step_s=4 * STEP) == ""
    early = (0, 8.0, 1.0, 1.0), (300, 4.0, 1.0, 1.0)
    assert "before its first fault: 290 steps took 2.32 s of 1.16 s" in wrong(["1@300:slow*2"], *early, step_s=4 * STEP)

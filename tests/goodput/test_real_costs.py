"""What virtual time needs to know of a real run, for the same script to lose the same steps in both."""

from __future__ import annotations

import numpy as np
import pytest

from bench.goodput.simulated import SimulatedTimes
from bench.results.analysis.stream import RunRecords, Slices
from benchmarks.goodput import of_round, step_seconds
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Progress
from ddp.core.messages.join_events import Joined
from ddp.core.messages.measurements import Slice
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import parse
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation

WINDOWS = {"anchor": 4, "max_anchor": 4}


def played(cost: Costs) -> tuple[Simulation, Slices]:
    """Play a run in which rank 1 of three is lost in its sixth step and comes back, with the slices of its ranks."""
    world = World(3, 240, 4, 2, blocking=True, in_step=False, tolerate_loss=True, restarts=None, deadline_s=60.0)
    simulation = Simulation(POLICIES["cadence"](**WINDOWS), world, cost, faults=(parse("1@6:crash"),))
    times = SimulatedTimes(3)
    simulation.measured, simulation.listen = times.measured, times.listen
    simulation.run()
    return simulation, times.slices()


def longest_join(alone: bool) -> float:
    cost = Costs(lambda rank, step: 1.0 + rank, wire_s=0.01, joins_alone=alone)
    _, slices = played(cost)
    joins = slices.kind == "join"
    return float((slices.stop - slices.start)[joins & (slices.start > 1.0)].max())


def test_in_shared_memory_no_rank_waits_for_others_to_form_a_group() -> None:
    """In virtual time it always waited for the others' steps to end, as it does over gloo."""
    assert longest_join(True) == pytest.approx(0.01)
    assert longest_join(False) > 0.5


def test_a_state_that_is_handed_over_costs_what_the_costs_say() -> None:
    """A snapshot of a small model is copied in microseconds; the state of a rank that joins is a file."""
    simulation, _ = played(Costs(copy_s=0.001, hand_s=0.25))
    (joined,) = [record for _, record in simulation.records if isinstance(record, Joined)]
    assert joined.seconds == 0.25


def test_the_time_between_steps_is_work_for_the_policy() -> None:
    """So it is for real ranks; without it, windows grew sooner in virtual time."""
    simulation, _ = played(Costs(lambda rank, step: 1.0, between_s=0.5))
    reports = [record for _, record in simulation.records if isinstance(record, Progress)]
    assert sum(report.busy_s for report in reports) == pytest.approx(1.5 * sum(report.steps for report in reports))


def test_a_round_costs_what_it_did() -> None:
    costs = [(0, 0.4), (1, 0.2), (4, 0.1)]
    assert [of_round(costs, number) for number in (0, 1, 2, 4, 9)] == [0.4, 0.2, 0.1, 0.1, 0.1]


def test_steps_that_a_killed_process_had_not_written_are_filled_in() -> None:
    """Else the first step of the next process, the longest, came before the loss, when nobody had to wait for it."""
    durations = [9.0, 1.0, 1.0, 7.0, 1.0, 1.0]
    begins = np.cumsum([0.0, *durations[:2], 20.0, *durations[3:5]])
    pieces = [
        piece
        for begin, seconds in zip(begins, durations, strict=True)
        for piece in (Slice(begin, 0, "data", 0.0), Slice(begin, 0, "forward", seconds))
    ]
    records = RunRecords(Slices.of(pieces), moves=[(15.0, Drop(0, "killed"))])
    seconds = step_seconds(records, 0, [parse("0@5:crash"), parse("1@3:crash")])
    assert seconds == [9.0, 1.0, 1.0, 1.0, 1.0, 7.0, 1.0, 1.0, 1.0]

"""What ranks take for the samples seen: in a step that they share, and in grants that the cohort has overtaken."""

from __future__ import annotations

from itertools import accumulate

import pytest

from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Average, Pace, Shorten, Train
from ddp.core.policies.sync import Sync
from ddp.core.samples.spans import Chunk
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.core.worker import Step, Worker
from ddp.sim import simulate


def rising(fraction: float) -> float:
    return 0.1 + fraction


def steps_of(chunk: Chunk) -> list[Step]:
    worker, found = Worker().receive(Train(0, chunk, seen=1000, pace=1.0, reason="")), []
    for _ in range(chunk.steps):
        worker, step = worker.act()
        assert isinstance(step, Step)
        found.append(step)
    return found


def test_progress_in_a_shared_grant_is_the_global_batch_however_odd_the_slices() -> None:
    """64 samples over three ranks are 22, 21 and 21; the last global batch has one, so two ranks have none of it."""
    for part in range(3):
        assert [step.seen for step in steps_of(Chunk(0, 0, 193, 64, part, 3))] == [1000, 1064, 1128, 1192]


def seen_by(worker: Worker, steps: int) -> tuple[Worker, list[float]]:
    found = []
    for _ in range(steps):
        worker, step = worker.act()
        assert isinstance(step, Step)
        found.append(step.seen)
    return worker, found


def test_what_the_cohort_has_seen_takes_the_place_of_what_was_expected() -> None:
    """Of the rest of a grant that has begun, and of those behind it."""
    worker = Worker().receive(Train(0, Chunk(0, 0, 40, 10), seen=100, pace=2.0, reason=""))
    worker = worker.receive(Average(0, 0, (0, 1), in_turn=True, reason=""))
    worker = worker.receive(Train(0, Chunk(0, 40, 60, 10), seen=180, pace=2.0, reason=""))
    worker, found = seen_by(worker, 2)
    assert found == [100, 120]
    worker, found = seen_by(worker.receive(Pace(0, seen=300, pace=5.0, reason="")), 2)
    assert found == [300, 350]
    worker, order = worker.act()
    assert isinstance(order, Average)
    assert seen_by(worker, 2)[1] == [400, 450]


def test_a_grant_ends_sooner_unless_the_rank_is_past_that_end() -> None:
    worker, _ = seen_by(Worker().receive(Train(0, Chunk(0, 0, 40, 4, 0, 2), seen=0, pace=1.0, reason="")), 3)
    with pytest.raises(ProtocolError, match="too late"):
        worker.receive(Shorten(0, 12, ""))
    worker, step = worker.receive(Shorten(0, 16, "")).act()
    assert isinstance(step, Step)
    assert step.last
    assert not list(worker.ahead())


def test_a_rank_that_was_too_far_waits_for_the_cohort() -> None:
    """The rate stands still until the samples that it belongs to are seen."""
    worker = Worker().receive(Train(0, Chunk(0, 0, 60, 10), seen=0, pace=4.0, reason=""))
    worker, found = seen_by(worker, 2)
    assert found == [0, 40]
    worker, found = seen_by(worker.receive(Pace(0, seen=15, pace=2.0, reason="")), 3)
    assert found == [40, 40, 55]
    worker = worker.receive(Train(0, Chunk(0, 60, 70, 10), seen=30, pace=1.0, reason=""))
    assert seen_by(worker, 2)[1] == [75, 75]


@pytest.mark.parametrize(("size", "lost"), [(4, 1), (4, 3), (6, 0), (2, 1)])
def test_the_rate_is_one_for_all_in_every_step_after_a_loss(size: int, lost: int) -> None:
    world = World(size, 997, 16, 2, blocking=True, in_step=True, deadline_s=5.0, tolerate_loss=True)
    played = simulate(Sync(), world, faults=(Fault(lost, 4, "crash"),))
    assert played.status == "ok"
    by_rank: dict[int, list[tuple[float, int]]] = {}
    for entry in played.trained:
        by_rank.setdefault(entry.rank, []).append((entry.seen, entry.batch.total))
    courses = {tuple(course) for rank, course in by_rank.items() if rank != lost}
    assert len({tuple(rising(seen / (2 * 997)) for seen, _ in course) for course in courses}) == 1
    (course,) = courses
    assert [seen for seen, _ in course] == [0, *accumulate(total for _, total in course)][:-1]

"""The table of a round's phases: nothing but it decides what may come, each row comes to pass, and the document shows it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from benchmarks.phases import DOCUMENT, written
from ddp.core.errors import ProtocolError
from ddp.core.messages.commands import Apply, Average, LoadState, Reduce, SendState, Train
from ddp.core.messages.events import Averaged, AverageFailed, Lost, Reduced, Shared, Snapshot
from ddp.core.policies.cadence import Cadence
from ddp.core.policies.sync import Sync
from ddp.core.rounds import rounds
from ddp.core.rounds.phases import TABLE, Action, Input
from ddp.core.rounds.round_actions import ACTIONS
from ddp.core.settings.world import World
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.state.rank_state import RankState
from ddp.core.state.round_state import Phase, Round
from ddp.core.values.persistent import RankSet, Row
from ddp.sim import Costs, Simulation, simulate

EVENTS = (
    Snapshot(1.0, 0, 3, 0, 0),
    Reduced(1.0, 3, 0.1, 8),
    Averaged(1.0, 0, 3, 0, 0, 0.1, 8, 0.0),
    AverageFailed(1.0, 0, 3, "broke", 0),
    Shared(1.0, 0, 3),
)


def state(phase: Phase) -> CoordinatorState:
    world = World(2, 8, 2, 1, blocking=phase not in (Phase.SNAPSHOTS, Phase.REDUCE, Phase.APPLY), in_step=False)
    current = None if phase is Phase.IDLE else Round(3, RankSet((0, 1)), phase, RankSet((0, 1)), ())
    return CoordinatorState.start(world, Row((RankState(0), RankState(1))), round=current)


@pytest.mark.parametrize(("phase", "event"), [*product(Phase, EVENTS)], ids=lambda value: type(value).__name__)
def test_an_event_that_the_table_does_not_have_is_one_error_that_names_both(phase: Phase, event: Any) -> None:
    cohort = state(phase)
    if Input(type(event).__name__) in TABLE[phase]:
        assert rounds.react(cohort, event)[0] != cohort
        other = replace(event, round=4)
        with pytest.raises(ProtocolError, match="does not fit the round in flight"):
            rounds.react(cohort, other)
    else:
        with pytest.raises(ProtocolError) as caught:
            rounds.react(cohort, event)
        assert repr(event) in str(caught.value)
        assert repr(cohort.round) in str(caught.value)


@pytest.mark.parametrize("phase", Phase)
def test_a_rank_may_be_lost_in_every_phase(phase: Phase) -> None:
    assert Input.LOST in TABLE[phase]
    cohort = state(phase)
    rounds.react(cohort.with_rank(1, replace(cohort.ranks[1], alive=False)), Lost(1.0, 1, "a test"))


def test_every_action_of_the_table_is_one_and_opening_is_by_the_core() -> None:
    used = {action for row in TABLE.values() for _, action in row.values()}
    assert used == set(Action)
    assert used - {Action.OPEN} == ACTIONS.keys()
    assert set(TABLE) == set(Phase)
    assert {following for row in TABLE.values() for following, _ in row.values()} == set(Phase)


COLLECTIVE, SNAPSHOTS, IN_STEP = (True, False), (False, False), (True, True)
SCENES: dict[str, tuple[tuple[bool, bool], dict[type, tuple[int, ...]], tuple[int, ...]]] = {
    "one missed it": (COLLECTIVE, {Average: (3,)}, (1,)),
    "then whoever sends is gone": (COLLECTIVE, {Average: (3,), SendState: (0,)}, (1,)),
    "and the one that missed it": (COLLECTIVE, {Average: (3,), SendState: (1, 0)}, (1,)),
    "nobody else has it": (COLLECTIVE, {Average: (3,), SendState: (0,)}, (1, 2)),
    "whoever loads is gone": (COLLECTIVE, {Average: (3,), LoadState: (1,)}, (1,)),
    "all missed it": (COLLECTIVE, {Average: (3,)}, (0, 1, 2)),
    "lost between rounds": (COLLECTIVE, {Train: (3,)}, ()),
    "lost before a snapshot": (SNAPSHOTS, {Average: (3,)}, ()),
    "lost while snapshots are averaged": (SNAPSHOTS, {Reduce: (3,)}, ()),
    "lost before the average is applied": (SNAPSHOTS, {Apply: (3,)}, ()),
    "all that had trained are lost": (SNAPSHOTS, {Average: (0, 1)}, ()),
    "a step behind": (IN_STEP, {Train: (3,)}, (1,)),
    "one comes back": (SNAPSHOTS, {Train: (3,)}, ()),
}
"""What -> kind of backend; on the first order of a kind these ranks die soon after; these miss a collective that tears."""


def play(scene: str) -> Simulation:
    backend, blows, torn = SCENES[scene]
    pending = dict(blows)

    def watch(played: Simulation) -> None:
        for _, record in played.records[-12:]:
            for rank in pending.pop(type(record), ()):
                played.kill(rank, 0.06)

    samples = 2 if scene == "all that had trained are lost" else 96
    restarts = int(scene == "one comes back")
    world = World(4, samples, 2, 2, *backend, deadline_s=5.0, tolerate_loss=True, restarts=restarts)
    costs = Costs(lambda rank, step: 0.01, copy_s=0.1, reduce_s=0.1, wire_s=0.03, start_s=lambda rank, life: 0.0)
    return simulate(
        Cadence(anchor=2) if not backend[1] else Sync(), world, costs=costs, torn=torn.__contains__, watch=watch
    )


def test_every_row_comes_to_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[tuple[Phase, Input], None] = {}
    following = rounds._next

    def note(cohort: CoordinatorState, cause: Input, event: Any = None) -> tuple[Phase, Action]:
        seen[Phase.IDLE if cohort.round is None else cohort.round.phase, cause] = None
        return following(cohort, cause, event)

    monkeypatch.setattr(rounds, "_next", note)
    assert {scene: play(scene).status for scene in SCENES} == dict.fromkeys(SCENES, "ok")
    assert {(phase, cause) for phase, row in TABLE.items() for cause in row} - seen.keys() == set()


def test_the_document_shows_the_table() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert written(text) == text, "python -m benchmarks.phases --write"

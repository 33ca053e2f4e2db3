"""The phases of a round as one table: for each phase, which inputs are allowed, the next phase and the action.

Owns the protocol of a round as data. The actions are in `ddp.core.rounds.round_actions`. `python -m benchmarks.phases
--write` draws the table into the documents."""

from __future__ import annotations

from enum import StrEnum

from ddp.core.state.round_state import Phase


class Input(StrEnum):
    """Inputs: a decision of the core, an event by its name, or the end of a phase once no answer is awaited."""

    DUE_COLLECTIVE = "due in a collective"
    DUE_SNAPSHOTS = "due by snapshots"
    RANK_BEHIND = "a rank is a step behind"
    RANK_BACK = "a rank was started again"
    SNAPSHOT = "Snapshot"
    REDUCED = "Reduced"
    AVERAGED = "Averaged"
    FAILED = "AverageFailed"
    SHARED = "Shared"
    JOINED = "Joined"
    LOST = "Lost"
    ALL = "all have it"
    SOME = "some missed it"
    NOBODY = "nobody has it"
    ALIKE = "all are alike"


class Action(StrEnum):
    """What is done on an input."""

    OPEN = "order all to average"
    REQUEST = "order one to send its state"
    OFFER = "order the others to load it"
    CONTRIBUTE = "enter its training"
    ACKNOWLEDGE = "note that it has the average"
    LOADED = "enter what it loaded"
    ADMIT = "count it in"
    NOTE_FAILURE = "note that it missed the average"
    AVERAGE = "order to average the snapshots"
    HAND_OUT = "order all to apply the average"
    RELEASE = "free its training"
    LEAVE_OUT = "leave it out, free its training"
    SUSPEND = "free its training, unless the others may hold it"
    CLOSE = "bring the training into the model"
    UNDO = "undo the round"
    RESUME = "go on"


TABLE: dict[Phase, dict[Input, tuple[Phase, Action]]] = {
    Phase.IDLE: {
        Input.DUE_COLLECTIVE: (Phase.COLLECTIVE, Action.OPEN),
        Input.DUE_SNAPSHOTS: (Phase.SNAPSHOTS, Action.OPEN),
        Input.RANK_BEHIND: (Phase.SEND_STATE, Action.REQUEST),
        Input.RANK_BACK: (Phase.SEND_STATE, Action.REQUEST),
        Input.LOST: (Phase.IDLE, Action.RELEASE),
    },
    # A blocking backend: ranks meet in a collective, which may break on some of them.
    Phase.COLLECTIVE: {
        Input.AVERAGED: (Phase.COLLECTIVE, Action.CONTRIBUTE),
        Input.FAILED: (Phase.COLLECTIVE, Action.NOTE_FAILURE),
        Input.LOST: (Phase.COLLECTIVE, Action.SUSPEND),
        Input.ALL: (Phase.IDLE, Action.CLOSE),
        Input.SOME: (Phase.SEND_STATE, Action.REQUEST),
        Input.NOBODY: (Phase.IDLE, Action.UNDO),
    },
    Phase.SEND_STATE: {
        Input.SHARED: (Phase.LOAD_STATE, Action.OFFER),
        Input.LOST: (Phase.SEND_STATE, Action.SUSPEND),
        Input.ALL: (Phase.IDLE, Action.CLOSE),
        Input.SOME: (Phase.SEND_STATE, Action.REQUEST),
        Input.NOBODY: (Phase.IDLE, Action.UNDO),
    },
    Phase.LOAD_STATE: {
        Input.AVERAGED: (Phase.LOAD_STATE, Action.LOADED),
        Input.JOINED: (Phase.LOAD_STATE, Action.ADMIT),
        Input.LOST: (Phase.LOAD_STATE, Action.SUSPEND),
        Input.ALL: (Phase.IDLE, Action.CLOSE),
        Input.ALIKE: (Phase.IDLE, Action.RESUME),
    },
    # A non-blocking backend: ranks copy their replicas and train on; the coordinator's process averages the copies.
    Phase.SNAPSHOTS: {
        Input.SNAPSHOT: (Phase.SNAPSHOTS, Action.CONTRIBUTE),
        Input.LOST: (Phase.SNAPSHOTS, Action.LEAVE_OUT),
        Input.ALL: (Phase.REDUCE, Action.AVERAGE),
        Input.NOBODY: (Phase.IDLE, Action.UNDO),
    },
    Phase.REDUCE: {
        Input.REDUCED: (Phase.APPLY, Action.HAND_OUT),
        Input.LOST: (Phase.REDUCE, Action.RELEASE),
    },
    Phase.APPLY: {
        Input.AVERAGED: (Phase.APPLY, Action.ACKNOWLEDGE),
        Input.LOST: (Phase.APPLY, Action.RELEASE),
        Input.ALL: (Phase.IDLE, Action.CLOSE),
    },
}
"""Phase -> input -> (next phase, action). Any other input is an error."""

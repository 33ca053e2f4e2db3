"""Commands: frozen orders. Each carries the `reason` it was given for; the runtime obeys, the simulator too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, get_args

from ddp.core.event_parts import Files
from ddp.core.ledger import Ledger, in_model
from ddp.core.spans import Chunk
from ddp.core.values import replace


@dataclass(frozen=True)
class Train:
    """Rank: train this chunk after those that you have.

    The learning rate is a function of samples seen by the whole cohort: `seen` when the chunk begins, plus `pace` for each
    sample that is trained of it: by the rank, and of a shared chunk by all who share it, however odd their slices.
    """

    rank: int
    chunk: Chunk
    seen: int
    pace: float
    reason: str


@dataclass(frozen=True)
class Pace:
    """Rank: the cohort has seen so many samples now. In what you were granted and have not trained, count from there, and
    `pace` for each of yours."""

    rank: int
    seen: int
    pace: float
    reason: str


@dataclass(frozen=True)
class Shorten:
    """Rank: end the shared grant that you have at position `stop` of its epoch. You have not come so far."""

    rank: int
    stop: int
    reason: str


@dataclass(frozen=True)
class Join:
    """Rank: form a group for collectives with `members`, in place of the one that you have.

    Ranks that are given the same `generation` are in one group. `void`: forget what was granted, it will be cut anew.
    """

    rank: int
    generation: int
    members: tuple[int, ...]
    void: bool
    reason: str
    lives: tuple[int, ...] = ()
    """How often each member was started again; empty: none was."""


@dataclass(frozen=True)
class Leave:
    """Rank: leave your group of this generation at the next batch boundary, and stand still until there is another."""

    rank: int
    generation: int
    reason: str


@dataclass(frozen=True)
class Average:
    """Rank: take part in this round: enter the collective, or lay down a snapshot.

    `in_turn`: once the work granted before this order is done; otherwise at the next batch boundary.
    """

    rank: int
    round: int
    members: tuple[int, ...]
    in_turn: bool
    reason: str
    sketched: bool = False
    """Record sketches of the replica before and after."""


@dataclass(frozen=True)
class SendState:
    """Rank: lay down what came out of this round, for ranks that missed it; inside steps: your whole state."""

    rank: int
    round: int
    reason: str
    joins: bool = False
    """For ranks that were started again: the last average, and what else they lack."""


@dataclass(frozen=True)
class LoadState:
    """Rank: take what was shared of this round."""

    rank: int
    round: int
    reason: str
    joins: bool = False
    """You were started again: take all of it, and say that you have joined."""


@dataclass(frozen=True)
class Reduce:
    """Coordinator's process: average the snapshots of these ranks, weighted by the samples trained."""

    round: int
    members: tuple[int, ...]
    samples: tuple[int, ...]
    reason: str


@dataclass(frozen=True)
class Apply:
    """Rank: add (average - own snapshot) to the parameters."""

    rank: int
    round: int
    reason: str


@dataclass(frozen=True)
class Evaluate:
    """Rank: evaluate slice `part` of `parts` of the test set on the average just made."""

    rank: int
    epoch: int
    part: int
    parts: int
    in_turn: bool
    reason: str


@dataclass(frozen=True)
class Save:
    """Rank: lay down your part of checkpoint `index`: your optimizer's state, and with `model` the average just made."""

    rank: int
    index: int
    model: bool
    in_turn: bool
    reason: str


@dataclass(frozen=True)
class Stop:
    """Rank: report and leave."""

    rank: int
    reason: str


@dataclass(frozen=True)
class Drop:
    """Runtime: the run goes on without this rank; end its process, whatever state it is in."""

    rank: int
    reason: str


@dataclass(frozen=True)
class Restart:
    """Runtime: start a lost rank again, for the `life`-th time; it will take its state from another."""

    rank: int
    life: int
    reason: str


@dataclass(frozen=True)
class Abort:
    """Runtime: the run cannot go on; `status` is what to record (`failed` or `diverged`)."""

    status: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """A policy's order to the dispatcher: how far each rank runs before the replicas are brought together."""

    counts: tuple[int, ...]
    """Steps of each rank in a window (0: the rank is gone)."""
    ahead: tuple[int, ...]
    """Steps that each rank may run beyond its count while the others catch up."""
    overlap: bool
    """Whether a rank may train while a round of a non-blocking backend is in flight."""
    lookahead: int
    """Epochs that may be begun before the oldest is complete."""
    in_step: bool
    """Gradients are averaged inside every step; no windows, no rounds."""
    anchor: int
    """Steps of the slowest rank in a window."""
    reason: str
    weights: tuple[float, ...] = ()
    """Exact parts of the work that `counts` stand for; empty: the counts themselves."""
    max_lead: int | None = None
    """Steps by which a rank may be ahead of the slowest in a window: by the counts, and where nobody blocks at any time;
    None: as the counts say."""
    dispatch: str = "progressive"
    """Which samples a rank gets: the next of the `progressive` order, those of its own slice of the epoch and then others'
    (`partition`), or those of its own slice alone (`fixed`)."""
    phase: str = ""
    """Of the controller; empty: it has none."""
    rebalance: bool = False
    """The end of a window goes to whoever will be there first, by what the ranks have done of it."""

    def admit(self, rank: int) -> Plan:
        """Return the plan with a part for `rank`, which had none: that of the least of the others, until it is measured."""
        working = [other for other, count in enumerate(self.counts) if count]

        def least(values: tuple[Any, ...]) -> tuple[Any, ...]:
            return (*values[:rank], min(values[other] for other in working), *values[rank + 1 :]) if values else ()

        weights = least(self.weights)
        return replace(
            self,
            counts=least(self.counts),
            ahead=least(self.ahead),
            weights=tuple(weight / sum(weights) for weight in weights),
            reason=f"rank {rank} is back: as slow as the slowest until it is measured",
        )


@dataclass(frozen=True)
class CoordinatorCheckpoint:
    """What the coordinator must know to resume from a checkpoint: what is in its model, and what the policy has learnt."""

    epoch_samples: int
    """Training samples in an epoch."""
    begun: int
    """Epochs begun."""
    ledgers: tuple[Ledger, ...]
    """Of those that are not complete."""
    rounds: int
    saves: int
    """Checkpoints begun."""
    policy_state: Any
    plan: Plan | None
    """None, like the state: the policy begins anew."""

    @property
    def epochs(self) -> int:
        """Complete epochs."""
        return self.begun - len(self.ledgers)

    @property
    def samples(self) -> int:
        """Samples in the model."""
        return in_model(self.begun, self.ledgers, self.epoch_samples)


@dataclass(frozen=True)
class Publish:
    """Runtime: checkpoint `index` is whole; put it where it will be found."""

    index: int
    members: tuple[int, ...]
    """Ranks that laid down a part."""
    files: Files
    coordinator: CoordinatorCheckpoint
    reason: str


RankCommand = Train | Pace | Shorten | Join | Leave | Average | Apply | SendState | LoadState | Evaluate | Save | Stop
ORDERS: frozenset[type[Any]] = frozenset(get_args(RankCommand))
"""The same as a set: `type(command) in ORDERS` costs a twentieth of `isinstance`."""
Command = RankCommand | Drop | Restart | Reduce | Abort | Plan | Publish

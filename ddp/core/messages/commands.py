"""Commands: frozen orders, each with the `reason` it was given for. The runtime and the simulator execute them."""

from __future__ import annotations

from typing import Any, get_args

from ddp.core.messages.event_parts import Files
from ddp.core.samples.ledger import Ledger, in_model
from ddp.core.samples.spans import Chunk
from ddp.core.values.frozen import replace, value


@value(frozen=True)
class Train:
    """Rank: train this chunk after those that you have.

    The learning rate is a function of the samples that all ranks have seen: `seen` when the chunk begins, plus `pace` for
    each sample trained of it (by the rank; of a shared chunk, by all ranks that share it, even in unequal slices)."""

    rank: int
    chunk: Chunk
    seen: int
    pace: float
    reason: str


@value(frozen=True)
class Pace:
    """Rank: all ranks together have seen so many samples now. In your grants not yet trained, count from there, and `pace`
    for each of your samples."""

    rank: int
    seen: int
    pace: float
    reason: str


@value(frozen=True)
class Shorten:
    """Rank: end your shared grant at position `stop` of its epoch, which you have not reached yet."""

    rank: int
    stop: int
    reason: str


@value(frozen=True)
class Join:
    """Rank: form a group for collectives with `members`, in place of your present group.

    Ranks with the same `generation` form one group. `void`: forget your grants, as they will be divided anew."""

    rank: int
    generation: int
    members: tuple[int, ...]
    void: bool
    reason: str
    lives: tuple[int, ...] = ()
    """How often each member was restarted; empty: none was."""


@value(frozen=True)
class Leave:
    """Rank: leave your group of this generation at the next batch boundary, and stop training until you join another."""

    rank: int
    generation: int
    reason: str


@value(frozen=True)
class Average:
    """Rank: take part in this round: enter the collective, or copy your replica.

    `in_turn`: after the work granted before this order; otherwise at the next batch boundary."""

    rank: int
    round: int
    members: tuple[int, ...]
    in_turn: bool
    reason: str
    sketched: bool = False
    """Record sketches of the replica before and after."""


@value(frozen=True)
class SendState:
    """Rank: write the result of this round for ranks that missed it; where gradients are averaged in steps, your whole
    state."""

    rank: int
    round: int
    reason: str
    joins: bool = False
    """For restarted ranks: the last average, and everything else they need."""


@value(frozen=True)
class LoadState:
    """Rank: load what another rank has sent in this round."""

    rank: int
    round: int
    reason: str
    joins: bool = False
    """You were restarted: load everything, and report that you have joined."""


@value(frozen=True)
class Reduce:
    """Coordinator's process: average the snapshots of these ranks, weighted by the samples trained."""

    round: int
    members: tuple[int, ...]
    samples: tuple[int, ...]
    reason: str


@value(frozen=True)
class Apply:
    """Rank: add (average - own snapshot) to the parameters."""

    rank: int
    round: int
    reason: str


@value(frozen=True)
class Evaluate:
    """Rank: evaluate slice `part` of `parts` of the test set on the latest average."""

    rank: int
    epoch: int
    part: int
    parts: int
    in_turn: bool
    reason: str


@value(frozen=True)
class Save:
    """Rank: write your part of checkpoint `index`: your optimizer's state, and with `model` the latest average."""

    rank: int
    index: int
    model: bool
    in_turn: bool
    reason: str


@value(frozen=True)
class Stop:
    """Rank: report what is left and exit."""

    rank: int
    reason: str


@value(frozen=True)
class Drop:
    """Runtime: the run continues without this rank; kill its process, whatever state it is in."""

    rank: int
    reason: str


@value(frozen=True)
class Restart:
    """Runtime: restart a lost rank, for the `life`-th time; it will load its state from another rank."""

    rank: int
    life: int
    reason: str


@value(frozen=True)
class Abort:
    """Runtime: end the run; `status` is what to record (`failed` or `diverged`)."""

    status: str
    reason: str


@value(frozen=True)
class Plan:
    """A policy's order to the dispatcher: how many steps each rank trains between two averages."""

    counts: tuple[int, ...]
    """Steps of each rank in a window (0: the rank is lost)."""
    ahead: tuple[int, ...]
    """Steps that each rank may run beyond its count while the others catch up."""
    overlap: bool
    """Whether a rank may train while a round of a non-blocking backend is in flight."""
    lookahead: int
    """Epochs that may be begun before the oldest is complete."""
    in_step: bool
    """Whether gradients are averaged inside every step, without windows and rounds."""
    anchor: int
    """Steps of the slowest rank in a window."""
    reason: str
    weights: tuple[float, ...] = ()
    """Exact proportions of the work, which `counts` approximate; empty: `counts` are exact."""
    max_lead: int | None = None
    """Most steps by which a rank may be ahead of the slowest: in `counts`, and at any time where ranks do not block. None:
    no limit beyond `counts` and `ahead`."""
    dispatch: str = "progressive"
    """Which samples a rank gets: the next of the epoch's order (`progressive`), those of its own slice of the epoch and
    then others' (`partition`), or those of its own slice alone (`fixed`)."""
    phase: str = ""
    """Phase of the controller; empty: it has none."""
    rebalance: bool = False
    """Whether the last part of a window is given to the ranks that will be done first, as measured in that window."""

    def admit(self, rank: int) -> Plan:
        """Return the plan with `rank` added: it gets the smallest part of any rank, until it is measured."""
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


@value(frozen=True)
class CoordinatorCheckpoint:
    """The coordinator's state in a checkpoint: what is in its model, and what the policy has learnt."""

    epoch_samples: int
    """Training samples in an epoch."""
    begun: int
    """Epochs begun."""
    ledgers: tuple[Ledger, ...]
    """Ledgers of the begun epochs that are not complete."""
    rounds: int
    saves: int
    """Checkpoints begun."""
    policy_state: Any
    plan: Plan | None
    """None if the policy begins anew; then `policy_state` is None too."""

    @property
    def epochs(self) -> int:
        """Complete epochs."""
        return self.begun - len(self.ledgers)

    @property
    def samples(self) -> int:
        """Samples in the model."""
        return in_model(self.begun, self.ledgers, self.epoch_samples)


@value(frozen=True)
class Publish:
    """Runtime: checkpoint `index` is complete; publish it."""

    index: int
    members: tuple[int, ...]
    """Ranks that wrote a part."""
    files: Files
    coordinator: CoordinatorCheckpoint
    reason: str


RankCommand = Train | Pace | Shorten | Join | Leave | Average | Apply | SendState | LoadState | Evaluate | Save | Stop
ORDERS: frozenset[type[Any]] = frozenset(get_args(RankCommand))
"""The same as a set: `type(command) in ORDERS` costs a twentieth of `isinstance`."""
Command = RankCommand | Drop | Restart | Reduce | Abort | Plan | Publish

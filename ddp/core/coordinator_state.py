"""Everything that the coordinator knows of its ranks, as one frozen value.

Owns the bookkeeping of what each rank was granted, has trained and owes. Decides nothing: `dispatch` and `rounds` do.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import repeat, takewhile
from typing import Any

from ddp.core.commands import CoordinatorCheckpoint, Plan
from ddp.core.event_parts import Files
from ddp.core.extremes import NOT_YET, SOMEBODY, Recent, Slowest
from ddp.core.ledger import Ledger
from ddp.core.persistent import NOBODY, RankSet, Row
from ddp.core.rank_draft import RankDraft
from ddp.core.rank_state import NONE, Coming, LastHeard, Owed, RankState, Totals, count
from ddp.core.round_state import Round
from ddp.core.spans import Chunk
from ddp.core.values import replace
from ddp.core.world import World


@dataclass(frozen=True)
class Mark:
    """When a checkpoint was made."""

    at: float = 0.0
    epochs: int = 0
    averages: int = 0
    """The two complete since the start of the run."""


@dataclass(frozen=True)
class Saving:
    """A checkpoint in the making."""

    index: int
    members: tuple[int, ...]
    waiting: RankSet
    """Ranks that owe their part."""
    mark: Mark
    coordinator: CoordinatorCheckpoint | None = None
    """None until the average is there that it is a checkpoint of."""
    files: Files = ()


@dataclass(frozen=True)
class Raised:
    """A rank was lost because it raised, with `round` the next to be opened."""

    rank: int
    origin: str
    round: int
    generation: int


@dataclass(frozen=True)
class CoordinatorState:
    """All ranks and the work of the epochs in progress."""

    world: World
    ranks: Row[RankState]
    last_heard: Row[LastHeard] = field(default_factory=lambda: Row[LastHeard](()))
    """By rank; empty: nobody has been heard."""
    ledgers: tuple[Ledger, ...] = ()
    begun: int = 0
    """Epochs begun and not complete, oldest first; and how many have begun."""
    round: Round | None = None
    rounds: int = 0
    opened: float = 0.0
    """When the first round was opened."""
    window: tuple[int, ...] = ()
    """Steps of each rank in the window in progress: the plan's counts, fitted to the epoch."""
    reserve: int = 0
    """Steps of the window in progress that are no rank's yet."""
    milestones: tuple[int, ...] = ()
    """Steps of the window after which each rank reports how far it is, while some of it is in reserve."""
    orphaned: tuple[Owed, ...] = ()
    """Evaluations owed by ranks that are lost."""
    shares: tuple[tuple[int, Chunk], ...] = ()
    """Where gradients are averaged inside the step: the slice of every global batch that each rank was granted."""
    group: tuple[int, ...] = ()
    generation: int = -1
    """Ranks that can meet in a collective; and groups formed, less one."""
    broken: RankSet = NOBODY
    cause: str = ""
    """Ranks on which a collective broke since the group was formed, which stand still; and the error of the last of them."""
    joiners: RankSet = NOBODY
    """Ranks that were started again, are there and lack the others' state."""
    offers: int = 0
    """Processes that are there for ranks, and that no rank has taken."""
    parted: int = -1
    """The generation of the group that all were ordered to leave for them."""
    undone: bool = False
    """The last round of a blocking backend was undone: what came out of the one before is on no rank."""
    retries: int = 0
    """Collectives that broke in a row though no rank was lost."""
    raised: tuple[Raised, ...] = ()
    """Ranks that raised since the others last met."""
    moved: float = 0.0
    """When a rank last said more than that it lives, or was last given an order."""
    savings: tuple[Saving, ...] = ()
    """Checkpoints in the making, oldest first."""
    saves: int = 0
    saved: Mark = Mark()
    """The last checkpoint, or the start."""
    ending: tuple[float, int] | None = None
    """When the end was announced, where a checkpoint is to come before it, and the samples trained by then."""
    stopping: bool = False
    samples: int = 0
    """Samples trained by all, as reported, less what was lost with a rank."""
    # What follows from the rest, kept so that an event costs what it touches:
    live: tuple[int, ...] = ()
    """The ranks that are not lost."""
    totals: Totals = NONE
    granted: dict[int, int] = field(default_factory=dict)
    """Steps granted and not done, by epoch."""
    reach: tuple[int, ...] = ()
    """Steps that the plan allows each rank in the window, with those ahead; empty while there is no window."""
    reach_of_all: int = 0
    leads: bool = False
    """Whether the plan has ranks run ahead."""
    takers: RankSet = NOBODY
    """Ranks that may be granted more; no other can, until something of it or of all changes."""
    slowest: Slowest = SOMEBODY
    weight_of_all: float = 0.0
    """Of the plan's exact parts."""
    fullest: float = 0.0
    """No rank has more steps in work for its weight than this."""
    digest: str = ""
    """Of the first rank that was ready."""
    oldest: float = 0.0
    """No rank that lives was last seen before this."""
    recent: Recent = NOT_YET

    def __post_init__(self) -> None:
        granted: dict[int, int] = {}
        for chunk in (chunk for state in self.ranks for chunk in state.queue):
            granted[chunk.epoch] = granted.get(chunk.epoch, 0) + chunk.steps
        live = tuple(rank for rank, state in enumerate(self.ranks) if state.alive)
        derived = {
            "live": live,
            "totals": _counted(self.ranks, self.window, self.milestones),
            "granted": granted,
            "takers": self.everyone,
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)

    @property
    def current(self) -> Round:
        """The round in flight; there is one."""
        assert self.round is not None
        return self.round

    def with_round(self, **changes: Any) -> CoordinatorState:
        """Return the state with other fields of the round in flight."""
        return replace(self, round=replace(self.current, **changes))

    def heard(self, at: float) -> CoordinatorState:
        """Return the state in which silence of all ranks, standing still and averaging count from `at`."""
        current = None if self.round is None else replace(self.round, since=at)
        heard = self.last_heard.map(lambda heard: heard._replace(seen=at))
        return replace(self, moved=at, round=current, last_heard=heard, oldest=at)

    def seen(self, ranks: Iterable[int], at: float, **changes: Any) -> CoordinatorState:
        """Return the state in which the silence of some ranks counts from `at`, and with other fields."""
        row = self.last_heard.edit()
        for rank in ranks:
            row[rank] = LastHeard(at, row[rank].reported)
        return replace(self, last_heard=row.done(), oldest=min(self.oldest, at), **changes)

    @property
    def ready(self) -> bool:
        """Whether every live rank has its model, data and transport."""
        return not self.totals.unready

    @property
    def evaluating(self) -> tuple[Owed, ...]:
        """Parts of evaluations that are owed."""
        owed = [part for state in self.ranks for part in state.owed] if self.totals.owed else []
        return tuple(sorted(owed, key=lambda each: (each.epoch, each.part)))

    @property
    def complete(self) -> int:
        """How many epochs are complete, with those that are with the round in flight."""
        return self.begun - len(self.ledgers) + (0 if self.round is None else len(self.round.closes))

    def owes(self, rank: int) -> bool:
        """Return whether the rank has something to report, so that its silence means something."""
        state = self.ranks[rank]
        waited = self.round is not None and rank in self.round.waiting
        if state.coming:
            return waited or state.coming is Coming.STARTING
        if not state.alive or state.finished:
            return False
        waited |= any(rank in saving.waiting for saving in self.savings)
        works = bool(state.queue) or bool(state.owed)
        return waited or not state.digest or self.stopping or (works and rank not in self.broken)

    def with_rank(self, rank: int, state: RankState) -> CoordinatorState:
        """Return the state with one rank's replaced, and with what follows from it."""
        return self.with_ranks(((rank, state),))

    def with_ranks(self, states: Iterable[tuple[int, RankState]]) -> CoordinatorState:
        """Return the state with those of several ranks replaced, and with what follows from it."""
        draft = self.draft()
        for rank, state in states:
            draft.put(rank, state)
        return self.after(draft)

    def draft(self) -> RankDraft:
        """Return the ranks, to be changed."""
        return RankDraft(self.ranks, self.window, self.milestones, self.totals, self.granted, self.live)

    def after(self, draft: RankDraft, **changes: Any) -> CoordinatorState:
        """Return the state with the ranks of `draft`, any of which may be granted more, and with other fields. Who may be
        granted more is one of these where it is known."""
        changed = draft.changed
        if self.slowest.steps is not None:
            changes["slowest"] = replace(self.slowest, touched=self.slowest.touched.union(changed))
        changes.setdefault("takers", self.takers.union(changed))
        kept = {"totals": draft.totals, "granted": draft.granted, "live": draft.live}
        return replace(self, ranks=draft.ranks(), **kept, **changes)

    def with_window(
        self, window: tuple[int, ...], reserve: int = 0, milestones: tuple[int, ...] = ()
    ) -> CoordinatorState:
        """Return the state in another window; an empty one is still to be set."""
        totals = _counted(self.ranks, window, milestones)
        return self.open(window=window, reserve=reserve, milestones=milestones, totals=totals)

    def under(self, plan: Plan) -> CoordinatorState:
        """Return the state with what follows from a plan, whether it is new or the window is."""
        reach = tuple(map(operator.add, self.window, plan.ahead)) if self.window else ()
        total = sum([reach[rank] for rank in self.live]) if reach else 0
        parts = plan.weights or plan.counts
        weight = sum([float(parts[rank]) for rank in self.live])
        fullest = max([state.queued / parts[state.rank] for state in self.ranks if state.queue], default=0.0)
        leads = any(plan.ahead)
        return self.open(reach=reach, reach_of_all=total, leads=leads, weight_of_all=weight, fullest=fullest)

    def open(self, **changes: Any) -> CoordinatorState:
        """Return the state in which any rank may be granted more, as something has changed for all: these fields."""
        return replace(self, takers=self.everyone, slowest=SOMEBODY, **changes)

    @property
    def everyone(self) -> RankSet:
        """All ranks, the lost ones too."""
        return RankSet.below(len(self.ranks))

    def with_ledger(self, ledger: Ledger) -> CoordinatorState:
        """Return the state with one epoch's ledger replaced."""
        old = self.ledger(ledger.epoch)
        if len(old.pools) > 1 or bool(old.free) != bool(ledger.free):  # other ranks find more, or less
            self = replace(self, slowest=self.slowest.unknown())
        return replace(self, ledgers=tuple(ledger if old.epoch == ledger.epoch else old for old in self.ledgers))

    def ledger(self, epoch: int) -> Ledger:
        """Return the ledger of an epoch in progress."""
        return next(ledger for ledger in self.ledgers if ledger.epoch == epoch)

    def first_epochs(self, done: Callable[[Ledger], bool]) -> tuple[int, ...]:
        """Return the epochs in progress up to the first that is not `done`.

        Epochs end in their order: the evaluation of one is of a model that has seen all of it and of those before.
        """
        return tuple(ledger.epoch for ledger in takewhile(done, self.ledgers))

    def in_work(self, epoch: int) -> int:
        """Return how many steps of `epoch` are granted and not done."""
        return self.granted.get(epoch, 0)

    def fully_trained(self, epoch: int) -> bool:
        """Return whether all samples of `epoch` are trained: in the model, or on their way into it."""
        return self.ledger(epoch).free == 0 and not self.in_work(epoch)


def _counted(ranks: Iterable[RankState], window: tuple[int, ...], milestones: tuple[int, ...]) -> Totals:
    """Return the totals of all ranks, counted anew, in a window with its milestones; empty: there is none."""
    nothing = repeat(0)
    return Totals(sum(map(count, ranks, window or nothing, milestones or nothing)))


def record_steps(cohort: CoordinatorState, rank: int, steps: int) -> CoordinatorState:
    """Enter that `rank` has done the next `steps` of what it was granted. Raises ProtocolError if it was granted less."""
    state, samples = cohort.ranks[rank].train(steps, bool(cohort.shares))
    return replace(cohort.with_rank(rank, state), samples=cohort.samples + samples)

"""Everything that the coordinator knows of its ranks, as one frozen value.

Owns the bookkeeping of what each rank was granted, has trained and owes. Decides nothing: `dispatch` and `rounds` do."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from dataclasses import field
from itertools import takewhile
from typing import Any

from ddp.core.messages.commands import CoordinatorCheckpoint, Plan
from ddp.core.messages.event_parts import Files
from ddp.core.samples.ledger import Ledger
from ddp.core.samples.spans import Chunk
from ddp.core.settings.world import World
from ddp.core.state.extremes import NOT_YET, SOMEBODY, EndParts, Recent, Slowest
from ddp.core.state.rank_draft import RankDraft
from ddp.core.state.rank_state import Coming, LastHeard, Owed, RankState
from ddp.core.state.round_state import Round
from ddp.core.state.totals import NONE, Totals, counted
from ddp.core.values.frozen import replace, value
from ddp.core.values.persistent import NOBODY, RankSet, Row


@value(frozen=True)
class Mark:
    """A point in the run at which a checkpoint was made."""

    at: float = 0.0
    epochs: int = 0
    averages: int = 0
    """Epochs complete, and averages, since the start of the run."""


@value(frozen=True)
class Saving:
    """A checkpoint in the making."""

    index: int
    members: tuple[int, ...]
    waiting: RankSet
    """Ranks that have not written their part yet."""
    mark: Mark
    coordinator: CoordinatorCheckpoint | None = None
    """None until the average that it is a checkpoint of is done."""
    files: Files = ()
    models: frozenset[str] = frozenset()
    """Digests of the ranks' models; with several nobody may go on from it."""


@value(frozen=True)
class Raised:
    """A rank was lost because it raised; `round` was the next round to open."""

    rank: int
    origin: str
    round: int
    generation: int


@value(frozen=True)
class CoordinatorState:
    """All ranks, and the work of the epochs in progress."""

    world: World
    ranks: Row[RankState]
    last_heard: Row[LastHeard] = field(default_factory=lambda: Row[LastHeard](()))
    """By rank; empty: no rank has been heard."""
    ledgers: tuple[Ledger, ...] = ()
    begun: int = 0
    """`ledgers`: of epochs begun and not complete, oldest first. `begun`: number of epochs begun."""
    round: Round | None = None
    rounds: int = 0
    opened: float = 0.0
    """Time at which the first round opened."""
    window: tuple[int, ...] = ()
    """Steps of each rank in the present window: the plan's counts, fitted to the epoch."""
    reserve: int = 0
    """Steps of the present window that are not assigned to a rank yet."""
    milestones: tuple[int, ...] = ()
    """Steps of the window after which each rank reports its progress, while some steps are in reserve."""
    orphaned: tuple[Owed, ...] = ()
    """Evaluations owed by lost ranks."""
    shares: tuple[tuple[int, Chunk], ...] = ()
    """Where gradients are averaged in steps: each rank's grant, a slice of every global batch."""
    group: tuple[int, ...] = ()
    generation: int = -1
    """`group`: ranks that can meet in a collective. `generation`: number of groups formed, less one."""
    broken: RankSet = NOBODY
    cause: str = ""
    """`broken`: ranks on which a collective broke since the group was formed, which wait. `cause`: the last such error."""
    joiners: RankSet = NOBODY
    """Restarted ranks that are ready and need the others' state."""
    offers: int = 0
    """Offered processes that no rank has taken."""
    parted: int = -1
    """The generation of the group that all ranks were ordered to leave for the joiners."""
    undone: bool = False
    """Whether the last round of a blocking backend was undone, so that no rank has the result of the one before."""
    retries: int = 0
    """Number of consecutive collectives that broke although no rank was lost."""
    raised: tuple[Raised, ...] = ()
    """Ranks that raised since the others last met."""
    moved: float = 0.0
    """When a rank last reported more than a sign of life, was last given an order, or was given up as silent."""
    savings: tuple[Saving, ...] = ()
    """Checkpoints in the making, oldest first."""
    saves: int = 0
    saved: Mark = Mark()
    """The last checkpoint, or the start of the run."""
    ending: tuple[float, int] | None = None
    """(when the end was announced, samples trained by then), if a checkpoint is to be made before the end."""
    stopping: bool = False
    samples: int = 0
    """Samples trained by all ranks as reported, without those that were lost with a rank."""
    # Derived from the fields above, and kept up to date so that an event costs only what it changes:
    live: tuple[int, ...] = ()
    """Ranks that are not lost."""
    totals: Totals = NONE
    granted: dict[int, int] = field(default_factory=dict)
    """Epoch -> steps granted and not done."""
    reach: tuple[int, ...] = ()
    """Steps that the plan allows each rank in the window, including its lead; empty if there is no window."""
    reach_of_all: int = 0
    leads: bool = False
    """Whether the plan lets ranks run ahead."""
    takers: RankSet = NOBODY
    """Ranks that may be granted more. No other rank can, until its state or that of all changes."""
    slowest: Slowest = SOMEBODY
    parts: EndParts | None = None
    weight_of_all: float = 0.0
    """Sum of the plan's weights over live ranks."""
    fullest: float = 0.0
    """Upper bound of (queued steps / weight) over all ranks."""
    digest: str = ""
    """Digest of the first rank that was ready."""
    oldest: float = 0.0
    """Lower bound of the times at which live ranks were last heard."""
    recent: Recent = NOT_YET

    @staticmethod
    def start(world: World, ranks: Row[RankState], **known: Any) -> CoordinatorState:
        """Return the state before the first event. `known`: fields that a checkpoint gives."""
        return replace(CoordinatorState(world, ranks, **known).counted(), takers=RankSet.below(len(ranks)))

    def counted(self) -> CoordinatorState:
        """Return the state with what is derived from those of the ranks alone, counted anew."""
        granted: dict[int, int] = {}
        for chunk in (chunk for state in self.ranks for chunk in state.queue):
            granted[chunk.epoch] = granted.get(chunk.epoch, 0) + chunk.steps
        live = tuple(rank for rank, state in enumerate(self.ranks) if state.alive)
        return replace(self, live=live, totals=counted(self.ranks, self.window, self.milestones), granted=granted)

    @property
    def current(self) -> Round:
        """The round in flight, which must exist."""
        assert self.round is not None
        return self.round

    def with_round(self, **changes: Any) -> CoordinatorState:
        """Return the state with changed fields of the round in flight."""
        return replace(self, round=replace(self.current, **changes))

    def heard(self, at: float) -> CoordinatorState:
        """Return the state in which every timeout is measured from `at`."""
        current = None if self.round is None else replace(self.round, since=at)
        heard = self.last_heard.map(lambda heard: replace(heard, seen=at))
        return replace(self, moved=at, round=current, last_heard=heard, oldest=at)

    def seen(self, ranks: Iterable[int], at: float, **changes: Any) -> CoordinatorState:
        """Return the state in which the silence of `ranks` is measured from `at`, with other changes."""
        ranks, heard = list(ranks), self.last_heard
        heard = heard.update(
            {rank: LastHeard(at, old.reported) for rank, old in zip(ranks, heard.pick(ranks), strict=True)}
        )
        return replace(self, last_heard=heard, oldest=min(self.oldest, at), **changes)

    @property
    def ready(self) -> bool:
        """Whether every live rank has its model, data and transport."""
        return not self.totals.unready

    @property
    def evaluating(self) -> tuple[Owed, ...]:
        """Parts of evaluations that ranks owe."""
        owed = [part for state in self.ranks for part in state.owed] if self.totals.owed else []
        return tuple(sorted(owed, key=lambda each: (each.epoch, each.part)))

    @property
    def complete(self) -> int:
        """Number of complete epochs, including those that the round in flight will complete."""
        return self.begun - len(self.ledgers) + (0 if self.round is None else len(self.round.closes))

    def owes(self, rank: int) -> bool:
        """Return whether the rank must report something, so that its silence means a problem."""
        state = self.ranks[rank]
        waited = self.round is not None and rank in self.round.waiting
        if state.coming:
            return waited or state.coming is Coming.STARTING
        if not state.alive or state.finished:
            return False
        waited |= any(rank in saving.waiting for saving in self.savings)
        works = bool(state.queue) or bool(state.owed)
        return waited or not state.digest or self.stopping or (works and rank not in self.broken)

    def with_rank(self, rank: int, state: RankState, **changes: Any) -> CoordinatorState:
        """Return the state with one rank's state replaced, derived fields updated, and other changes."""
        draft = self.draft()
        draft.put(rank, state)
        return self.after(draft, **changes)

    def with_ranks(self, states: Iterable[tuple[int, RankState]]) -> CoordinatorState:
        """Return the state with several ranks' states replaced, and derived fields updated."""
        draft = self.draft()
        for rank, state in states:
            draft.put(rank, state)
        return self.after(draft)

    def draft(self) -> RankDraft:
        """Return a draft of the ranks' states."""
        return RankDraft(self.ranks, self.window, self.milestones, self.totals, self.granted, self.live)

    def after(self, draft: RankDraft, **changes: Any) -> CoordinatorState:
        """Return the state with the ranks' states of `draft`, and other changes. Every changed rank may be granted more,
        unless `takers` is given."""
        changed, slowest = RankSet(list(draft.changed)), changes.get("slowest", self.slowest)
        if slowest.steps is not None:
            changes["slowest"] = replace(slowest, touched=slowest.touched.union(changed))
        changes.setdefault("takers", self.takers.union(changed))
        return replace(self, **draft.fields(), **changes)

    def with_window(
        self, window: tuple[int, ...], reserve: int = 0, milestones: tuple[int, ...] = ()
    ) -> CoordinatorState:
        """Return the state with another window; an empty one is set by the next dispatch."""
        totals = counted(self.ranks, window, milestones)
        return self.open(window=window, reserve=reserve, milestones=milestones, totals=totals)

    def under(self, plan: Plan) -> CoordinatorState:
        """Return the state with the fields derived from `plan`, after a change of the plan or the window."""
        reach = tuple(map(operator.add, self.window, plan.ahead)) if self.window else ()
        total = sum([reach[rank] for rank in self.live]) if reach else 0
        parts = plan.weights or plan.counts
        weight = sum([float(parts[rank]) for rank in self.live])
        fullest = max([state.queued / parts[state.rank] for state in self.ranks if state.queue], default=0.0)
        leads = any(plan.ahead)
        return self.open(reach=reach, reach_of_all=total, leads=leads, weight_of_all=weight, fullest=fullest)

    def open(self, **changes: Any) -> CoordinatorState:
        """Return the state in which any rank may be granted more, as `changes` affect all."""
        return replace(self, takers=self.everyone, slowest=SOMEBODY, parts=None, **changes)

    @property
    def everyone(self) -> RankSet:
        """All ranks, including lost ones."""
        return RankSet.below(len(self.ranks))

    def with_ledger(self, ledger: Ledger) -> CoordinatorState:
        """Return the state with one epoch's ledger replaced."""
        return replace(self, **self.ledger_changes(ledger))

    def ledger_changes(self, ledger: Ledger) -> dict[str, Any]:
        """Return the fields that change with one epoch's ledger."""
        old = self.ledger(ledger.epoch)
        changes: dict[str, Any] = {}
        if len(old.pools) > 1 or bool(old.free) != bool(ledger.free):  # others find more samples, or fewer
            changes["slowest"] = self.slowest.unknown()
        changes["ledgers"] = tuple([ledger if each is old else each for each in self.ledgers])
        return changes

    def ledger(self, epoch: int) -> Ledger:
        """Return the ledger of an epoch in progress."""
        if self.ledgers and self.ledgers[0].epoch == epoch:  # the usual case
            return self.ledgers[0]
        return next(ledger for ledger in self.ledgers if ledger.epoch == epoch)

    def first_epochs(self, done: Callable[[Ledger], bool]) -> tuple[int, ...]:
        """Return the epochs in progress up to the first that is not `done`.

        Epochs end in order: an epoch is evaluated on a model that has seen all of it and of those before."""
        return tuple(ledger.epoch for ledger in takewhile(done, self.ledgers))

    def in_work(self, epoch: int) -> int:
        """Return how many steps of `epoch` are granted and not done."""
        return self.granted.get(epoch, 0)

    def fully_trained(self, epoch: int) -> bool:
        """Return whether all samples of `epoch` are trained: in the model, or in contributions to the next average."""
        return self.ledger(epoch).free == 0 and not self.in_work(epoch)


def record_steps(cohort: CoordinatorState, rank: int, steps: int) -> CoordinatorState:
    """Record that `rank` has done the next `steps` of its grants. Raises ProtocolError if it was granted less."""
    state, samples = cohort.ranks[rank].train(steps, bool(cohort.shares))
    return replace(cohort.with_rank(rank, state), samples=cohort.samples + samples)

"""Ranks in virtual time: they execute the orders that `ddp.core.worker` puts in turn, and report.

Owns the stand-ins for computing, snapshots and checkpoints, and the fault script. What ranks do together is in
`ddp.sim.meetings`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from ddp.core.messages.commands import (
    Apply,
    Average,
    Evaluate,
    Join,
    Leave,
    LoadState,
    RankCommand,
    Save,
    SendState,
    Stop,
)
from ddp.core.messages.events import Averaged, Evaluated, Failed, Finished, RankEvent, Saved, Shared, Snapshot
from ddp.core.messages.join_events import Joined, Joining
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.core.worker import Action, Idle, Step
from ddp.sim.computing import ComputingRanks
from ddp.sim.meetings import Meetings
from ddp.sim.parts import Costs, SimulatedRank
from ddp.sim.timeline import EventQueue


class SimulatedRanks(ComputingRanks):
    """All ranks of a simulation. `tell` sends an event to the coordinator; `lost` reports the end of a rank's process."""

    def __init__(
        self,
        world: World,
        costs: Costs,
        timeline: EventQueue,
        tell: Callable[[RankEvent], None],
        lost: Callable[[int], None],
        faults: tuple[Fault, ...],
        torn: Callable[[int], bool],
    ) -> None:
        super().__init__(world, costs, timeline, tell)
        self.struck: list[tuple[float, Fault]] = []
        self.average = 0
        """The contents of the last average of snapshots, as bits."""
        self.shared: dict[int, int] = {}
        """Round -> contents of the state sent to ranks that missed it, as bits."""
        self._lost = lost
        self._script: dict[tuple[int, int], list[Fault]] = {}
        for fault in faults:
            self._script.setdefault((fault.rank, fault.step), []).append(fault)
        self._meetings = Meetings(self, self.act, torn)

    def deliver(self, orders: list[tuple[RankCommand, int]]) -> None:
        """Deliver orders, each with its rank's number of restarts when it was sent: if the rank was restarted since, it is
        dropped."""
        for order, life in orders:
            rank = self.all[order.rank]
            if rank.life != life:
                continue
            rank.inbox.append(order)
            if not rank.busy:
                self.act(order.rank)

    def reduce(self, members: tuple[int, ...]) -> None:
        """Average the snapshots of `members`."""
        self.average = 0
        for rank in members:
            self.average |= self.all[rank].laid

    def end(self, rank: int) -> None:
        """End the process of `rank`."""
        if self.all[rank].alive:
            self.turn(rank)
        self.all[rank].alive, self.all[rank].ended = False, True
        self._meetings.die(rank)

    def restart(self, rank: int, life: int) -> None:
        """Restart `rank`. Its fault script continues, it is as slow as before, and its snapshot is kept."""
        before = self.all[rank]
        after = self.all[rank] = SimulatedRank(life=life, alive=False, done=before.done, laid=before.laid)
        after.slow, after.late, after.link = before.slow, before.late, before.link
        self.timeline.after(self.costs.start_s(rank, life), self._come, rank, life)

    def _come(self, rank: int, life: int) -> None:
        if self.all[rank].life == life:
            self.all[rank].alive = True
            self.tell(Joining(0.0, rank, self.world.samples, "same", life))

    def die(self, rank: int) -> None:
        """End its process so that it is noticed."""
        self.end(rank)
        self._lost(rank)

    def stall(self, rank: int) -> None:
        """Make `rank` do and report nothing from now on."""
        if self.all[rank].alive:
            self.turn(rank)
        self.all[rank].alive = False

    def act(self, index: int) -> None:
        """Continue with the rank's next action, if it is alive and idle."""
        rank = self.all[index]
        if rank.busy or not rank.alive or rank.until > self.timeline.now:
            return
        before = rank.machine
        if rank.inbox:
            for order in rank.inbox:
                before = before.receive(order)
            rank.inbox.clear()
        rank.machine, action = before.act()
        if isinstance(action, Step):
            if self._script:
                self._strike(index)
            if rank.alive:
                then = partial(self._meetings.exchange, before) if self.in_step else self._stepped
                self.step(index, action, then)
        elif not isinstance(action, Idle):
            self._obey(index, action)
        elif rank.doing != "wait":
            self.turn(index, "wait")

    def _obey(self, index: int, action: Action) -> None:
        rank, costs = self.all[index], self.costs
        match action:
            case Average() if self.world.blocking:
                self._meetings.average(index, action)
            case Average():
                self.report(index)
                self.spend(index, "copy", costs.copy_s, self._lay_down, action)
            case Apply():
                self.spend(index, "copy", costs.copy_s, self._applied, action)
            case Evaluate():
                took = costs.evaluate_s(index)
                self.spend(index, "evaluate", took, self._evaluated, action, took)
            case Join():
                self._meetings.join(index, action)
            case Leave():
                self._meetings.leave(index, action.generation)
            case SendState():
                self.shared[action.round] = self._sent(rank)
                took = costs.handover_s if action.joins else costs.copy_s
                self.spend(index, "copy", took, self._say, Shared(0.0, index, action.round))
            case LoadState() if action.joins:
                self.spend(index, "copy", costs.handover_s, self._joined, action.round)
            case LoadState():
                self.spend(index, "copy", costs.copy_s, self._adopted, action.round)
            case Save():
                took = costs.copy_s if costs.save_s is None else costs.save_s
                self.spend(index, "checkpoint", took, self._saved, action.index)
            case Stop():
                self.turn(index)
                end: Sequence[RankEvent] = (Finished(0.0, index, "end", 0, 0),)
                self.say(index, end if self.work is None else self.work.act(index, action))

    def _strike(self, index: int) -> None:
        """Inject the scripted faults of the step that `index` is about to do."""
        rank = self.all[index]
        for fault in self._script.pop((index, rank.done), ()):
            self.struck.append((self.timeline.now, fault))
            self.befall(index, fault.kind, fault.value)

    def befall(self, index: int, kind: str, value: float = 0.0) -> None:
        """Inject a fault of `kind` into rank `index` now; also `pause` (for `value` seconds) and `full` (its disk is
        full). Raise ValueError for an unknown kind."""
        rank = self.all[index]
        match kind:
            case "crash":
                self.die(index)
            case "raise":
                self.tell(Failed(0.0, index, "raised by the script", "", "the script"))
                self.die(index)
            case "stall":
                self.stall(index)
            case "slow":
                rank.slow *= value
            case "input":
                rank.late = (1.0 + rank.late) * value - 1.0
            case "link":
                rank.link *= value
            case "flip":
                pass  # virtual replicas have no bits
            case "heal":
                rank.slow, rank.late, rank.link = 1.0, 0.0, 1.0
            case "lose":
                rank.mute += 1
            case "pause":
                rank.until = self.timeline.now + value
                self.timeline.at(rank.until, self.act, index)
            case "full":
                rank.full = "No space left on device"
            case _:
                raise ValueError(f"the simulator has no fault {kind!r}")

    def _say(self, index: int, event: RankEvent) -> None:
        self.tell(event)

    def _evaluated(self, index: int, order: Evaluate, took: float) -> None:
        done: Sequence[RankEvent] = (Evaluated(0.0, index, order.epoch, 1, 0.0, 1.0, took, order.part),)
        self.say(index, done if self.work is None else self.work.act(index, order), seconds=took)

    def _saved(self, index: int, number: int) -> None:
        self.tell(Saved(0.0, index, number, (), self.all[index].full))

    def _stepped(self, index: int, step: Step, start: float) -> None:
        self.train(index, step, start)
        if self.keep:
            self.all[index].content |= 1 << len(self.trained) - 1
        self.done(index, step)

    def _lay_down(self, index: int, order: Average) -> None:
        rank = self.all[index]
        rank.laid = rank.content
        if self.work is not None:
            self.contribute(index, order.round)
            self.say(index, self.work.act(index, order))
            return
        self.tell(Snapshot(0.0, index, order.round, *self.contribute(index, order.round)))

    def _applied(self, index: int, order: Apply) -> None:
        rank = self.all[index]
        assert rank.laid & ~self.average == 0, "the average holds what it is the average of"
        rank.content |= self.average
        copy_s = self.costs.copy_s
        if self.work is not None:
            self.say(index, self.work.act(index, order), seconds=copy_s, away_s=2 * copy_s)
            return
        self.tell(Averaged(0.0, index, order.round, 0, 0, copy_s, self.costs.bytes, 0.0, away_s=2 * copy_s))

    def _sent(self, rank: SimulatedRank) -> int:
        if self.in_step:
            return rank.content
        return rank.result if self.world.blocking else self.average

    def _joined(self, index: int, round: int) -> None:
        rank = self.all[index]
        rank.content = rank.result = self.shared[round]
        rank.after = round
        self.tell(Joined(0.0, index, round, self.costs.handover_s, 8))

    def _adopted(self, index: int, round: int) -> None:
        rank = self.all[index]
        rank.content = rank.result = self.shared[round]
        rank.after = round
        contribution = (0, 0) if self.in_step else self.contribute(index, round)
        self.tell(Averaged(0.0, index, round, *contribution, self.costs.copy_s, self.costs.bytes, 0.0))

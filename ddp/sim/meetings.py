"""What ranks do together in virtual time: form a group, average replicas, exchange gradients; and what happens on
failure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from ddp.core.messages.commands import Average, Join
from ddp.core.messages.events import Alive, Averaged, AverageFailed
from ddp.core.messages.join_events import Left
from ddp.core.rounds.rounds import IN_STEP
from ddp.core.worker import Action, Step, Worker
from ddp.sim.collectives import SimulatedCollectives, Then
from ddp.sim.parts import JOIN, SimulatedRank
from ddp.sim.states import RankStates


class Meetings:
    """The collectives of a simulation's ranks. `act` makes a rank continue."""

    def __init__(self, ranks: RankStates, act: Callable[[int], None], torn: Callable[[int], bool]) -> None:
        self._act = act
        self._ranks, self._timeline, self._deadline_s = ranks, ranks.timeline, ranks.world.deadline_s
        self._beat_s = self._deadline_s / 5
        self._collectives = SimulatedCollectives(self._timeline, self._wire_s, self._beat_s, self._beat, torn)

    def _wire_s(self, members: tuple[int, ...], number: int) -> float:
        """Return the seconds of a collective, which ends with its slowest transfer; each rank records its own transfer."""
        costs, slowest = self._ranks.costs, 1.0
        for member in members:
            rank = self._ranks.all[member]
            slowest = max(slowest, rank.link)
            if costs.transfer is not None or rank.link != 1.0:
                took = rank.link if costs.transfer is None else costs.transfer(member, rank.link)
                rank.sent = min(rank.sent or took, took)
        return slowest * costs.collective_s(members, self._bytes(members), number)

    def _bytes(self, members: tuple[int, ...]) -> int:
        """Return the bytes that each rank sends, as reported by ranks that train for real."""
        if self._ranks.work is None:
            return self._ranks.costs.bytes
        reports = (event for member in members for event in self._ranks.all[member].reports)
        return max((event.bytes for event in reports if isinstance(event, Averaged)), default=self._ranks.costs.bytes)

    def die(self, rank: int) -> None:
        """Break the groups of `rank`, whose process has ended."""
        self._collectives.die(rank)

    def join(self, index: int, order: Join) -> None:
        """Form a group; report once all members have entered, or once it is clear that some never will."""
        rank = self._ranks.all[index]
        if rank.group is not None:
            self._collectives.tear(rank.group[0])
        rank.group, rank.met = (order.generation, order.members), 0
        # Only looked at there: of each rank a table of all ranks would be gigabytes of ten thousand.
        known = self._ranks.costs.joins_alone and order.lives
        rank.lives = dict(zip(order.members, order.lives, strict=True)) if known else {}
        rank.joining = order.generation

        def then() -> None:
            rank.joining = -1
            if self._ranks.work is not None:
                self._ranks.say(index, self._ranks.work.act(index, order))
            else:
                self._ranks.tell(Alive(0.0, index))

        def broke() -> None:
            rank.group = None
            then()

        if self._ranks.costs.joins_alone:
            self._join_alone(index, order, then)
            return
        self._enter(index, "join", lambda members: None, then, broke)
        self._timeline.after(self._deadline_s / 2, self._unjoined, index, order.generation)

    def _join_alone(self, index: int, order: Join, then: Callable[[], None]) -> None:
        """Form a group without the others: ranks meet in its first collective, where it shows that a member is gone."""
        rank = self._ranks.all[index]
        rank.busy, rank.met = True, JOIN
        self._ranks.turn(index, "join")
        took = self._wire_s(order.members, JOIN)
        self._timeline.after(took, self._leave, rank, index, False, then)

    def _is_there(self, member: int, lives: Mapping[int, int]) -> bool:
        rank = self._ranks.all[member]
        return not rank.ended and rank.life == lives.get(member, 0)

    def leave(self, index: int, generation: int) -> None:
        """Leave the group, as ranks wait to join."""
        self._ranks.report(index)
        rank = self._ranks.all[index]
        if rank.group is not None:
            self._collectives.tear(rank.group[0])
        rank.group = None
        self._ranks.tell(Left(0.0, index, generation, rank.machine.begun))
        self._act(index)

    def average(self, index: int, order: Average) -> None:
        """Average the replicas. It ends for all ranks one transfer time after the last has entered."""
        self._ranks.report(index)
        rank, arrived = self._ranks.all[index], self._timeline.now
        rank.order = order

        def everyone(members: list[int]) -> None:
            assert tuple(members) == order.members
            self._work({member: self._ranks.all[member].order for member in members})
            if not self._ranks.keep:
                return
            union = 0
            for member in members:
                union |= self._ranks.all[member].content
            for member in members:
                self._ranks.all[member].result = union

        def then() -> None:
            rank.content = rank.result
            contribution = self._ranks.contribute(index, order.round)
            stay = self._timeline.now - arrived
            if self._ranks.work is not None:
                self._ranks.say(index, rank.reports, seconds=stay)
                return
            size = self._ranks.costs.bytes
            self._ranks.tell(Averaged(0.0, index, order.round, *contribution, stay, size, 0.0))

        self._enter(index, "exchange", everyone, then, lambda: self._broke(index, order.round))

    def exchange(self, before: Worker, index: int, step: Step, start: float) -> None:
        """Average gradients inside a step. It ends for all ranks after the last has entered, and each reports as work what
        it did before it entered."""
        rank, trained = self._ranks.all[index], self._ranks.trained
        rank.step = (step, start, self._timeline.now - start)

        def everyone(members: list[int]) -> None:
            first, steps = len(trained), dict[int, Action | None]()
            for member in members:
                entering = self._ranks.all[member].step
                assert entering is not None
                self._ranks.train(member, *entering)
                steps[member] = entering[0]
            self._work(steps)
            for member in members if self._ranks.keep else ():
                other = self._ranks.all[member]
                other.result = other.content | ((1 << len(trained)) - (1 << first))

        def then() -> None:
            rank.content = rank.result
            self._ranks.done(index, step, rank.reports)

        def broke() -> None:
            rank.machine = before
            self._broke(index, IN_STEP)

        self._enter(index, "exchange", everyone, then, broke, self._ranks.costs.leave_s)

    def _work(self, actions: Mapping[int, Action | None]) -> None:
        """Have ranks that train for real do their collective, and keep the events that they report."""
        work = self._ranks.work
        if work is not None:
            for member, events in work.together({rank: each for rank, each in actions.items() if each}).items():
                self._ranks.all[member].reports = events

    def _enter(
        self,
        index: int,
        kind: str,
        everyone: Callable[[list[int]], None],
        then: Then,
        broke: Then,
        later: Callable[[int, int, bool], float] | None = None,
    ) -> None:
        """Enter a collective of the rank's group; without a group it breaks. `later`: seconds by which the rank leaves
        after its end."""
        rank = self._ranks.all[index]
        rank.busy = True
        left = partial(self._leave, rank, index, False, then)
        if later is not None:
            left = partial(self._leave_later, rank, index, later, left)
        torn = partial(self._leave, rank, index, kind == "exchange", broke)
        if rank.group is None:
            self._timeline.after(0.0, torn)
            return
        if self._timeline.now - rank.left > self._beat_s:
            self._beat(index)
        generation, members = rank.group
        if self._ranks.costs.joins_alone and not all(self._is_there(member, rank.lives) for member in members):
            self._collectives.tear(generation)
        rank.met += 1
        self._ranks.turn(index, kind, generation << 32 | rank.met)
        rank.last_in = self._collectives.enter((generation, rank.met), members, index, everyone, left, torn)

    def _leave_later(
        self, rank: SimulatedRank, index: int, later: Callable[[int, int, bool], float], left: Then
    ) -> None:
        self._timeline.after(later(index, rank.met, rank.last_in), left)

    def _leave(self, rank: SimulatedRank, index: int, waited: bool, next: Callable[[], None]) -> None:
        if rank.until > self._timeline.now:
            self._timeline.at(rank.until, self._leave, rank, index, waited, next)
        elif rank.alive:
            rank.busy, rank.left = False, self._timeline.now
            if waited:
                rank.doing = "wait"
            self._ranks.turn(index)
            next()
            self._act(index)

    def _unjoined(self, index: int, generation: int) -> None:
        rank = self._ranks.all[index]
        if rank.alive and rank.joining == generation:
            self._collectives.tear(generation)

    def _beat(self, index: int) -> None:
        rank = self._ranks.all[index]
        if rank.alive and rank.until <= self._timeline.now:
            self._ranks.tell(Alive(0.0, index))

    def _broke(self, index: int, round: int) -> None:
        rank = self._ranks.all[index]
        self._ranks.report(index)
        if rank.group is not None:
            self._collectives.tear(rank.group[0])  # nobody may wait for this rank in vain
        rank.group = None
        rank.machine = rank.machine.broke()
        steps = rank.machine.offset if round == IN_STEP else rank.steps
        self._ranks.tell(AverageFailed(0.0, index, round, "a member is gone", steps))

"""The laws as they must hold after every single event, against facts that the core knows nothing of."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise

from ddp.core.grants.allowance import allowance, allowances
from ddp.core.messages.commands import Plan, Reduce, Train
from ddp.core.messages.events import Merged
from ddp.core.samples.spans import Chunk, Span, Spans, measure, union
from ddp.core.state.coordinator_state import CoordinatorState
from ddp.core.values.frozen import replace
from ddp.sim import Simulation


@lru_cache(maxsize=4096)
def rest(chunk: Chunk) -> Spans:
    return chunk.spans(chunk.steps)


@lru_cache(maxsize=4096)
def whole(chunk: Chunk) -> Spans:
    return rest(replace(chunk, done=0))


class Invariants:
    """To be called as the `watch` of a simulation."""

    def __init__(self) -> None:
        self.events = 0
        self.read = 0
        self.merged: dict[int, Spans] = {}
        self.in_model = 0
        self.reach = 0
        self.limits: list[int] = []
        self.steps = 0
        self.heard: dict[int, float] = {}

    def __call__(self, played: Simulation) -> None:
        self.events += 1
        if played.status != "ok":
            return
        cohort = played.coordinator.cohort
        trains = self.follow(played)
        books_are_what_they_follow_from(played)
        exactly_once(cohort, self.merged)
        weights_are_the_contributions(played)
        self.samples_are_what_was_trained(cohort)
        self.learning_rate_is_bounded(played, trains)
        self.shared_steps_are_one(played)
        nobody_leads(played, trains)
        self.bounded(played)

    def follow(self, played: Simulation) -> list[Train]:
        """Read the records that are new."""
        trains: list[Train] = []
        for _, record in played.records[self.read :]:
            match record:
                case Merged():
                    self.merged[record.epoch] = union(self.merged.get(record.epoch, ()), record.spans)
                    self.in_model += measure(record.spans)
                case Plan():
                    reach = [count + ahead for count, ahead in zip(record.counts, record.ahead, strict=True)]
                    self.reach = max(self.reach, sum(reach))
                    limits = [3 * c + 2 * a for c, a in zip(record.counts, record.ahead, strict=True)]
                    self.limits = [max(pair) for pair in zip(limits, self.limits or limits, strict=True)]
                case Train():
                    trains.append(record)
                case Reduce():
                    laid = laid_down(played, record.round)
                    brought = dict(zip(record.members, record.samples, strict=True))
                    assert all(laid[rank] == samples for rank, samples in brought.items()), "law 2"
                    assert sum(brought.values()) > 0, "law 2: nobody brought anything"
            rank = getattr(record, "rank", None)
            if rank is not None:
                self.heard[rank] = played.now
        self.read = len(played.records)
        return trains

    def samples_are_what_was_trained(self, cohort: CoordinatorState) -> None:
        """Law 5: what counts as seen by the cohort is in the model, or on its way into it."""
        if cohort.shares:
            on_its_way = sum(measure(whole(chunk)) for _, chunk in cohort.shares)
            assert self.in_model <= cohort.samples <= self.in_model + on_its_way
            return
        entries = cohort.round.contributions if cohort.round is not None else ()
        pending = [trained for state in (*cohort.ranks, *entries) for trained in state.trained]
        assert cohort.samples == self.in_model + sum(measure(spans) for _, spans in pending)

    def learning_rate_is_bounded(self, played: Simulation, trains: list[Train]) -> None:
        """Law 5: no grant takes the schedule further than what the cohort may train until it is through."""
        cohort, world = played.coordinator.cohort, played.world
        for order in trains:
            if order.chunk.parts > 1 or cohort.shares:
                assert order.seen == cohort.samples
                continue
            end = order.seen + order.pace * measure(rest(order.chunk))
            assert cohort.samples <= order.seen
            # What is granted: up to three windows before this one; and what others do beside it.
            assert end <= cohort.samples + 5 * self.reach * world.batch

    def shared_steps_are_one(self, played: Simulation) -> None:
        """Laws 4 and 5: ranks that share a step take the schedule where its global batch begins, whatever their slices."""
        for entry in played.trained[self.steps :]:
            batch = entry.batch
            if batch.total > batch.samples:
                begin = entry.seen - batch.epoch * played.world.samples
                assert begin <= batch.start <= batch.stop <= begin + batch.total
        self.steps = len(played.trained)

    def bounded(self, played: Simulation) -> None:
        """Law 8: no rank is granted more than its bound; who is gone and owes something is found by the deadline."""
        cohort, world = played.coordinator.cohort, played.world
        for rank in cohort.live:
            chunks = () if cohort.shares else cohort.ranks[rank].queue
            assert len(cohort.ranks[rank].course) == len(chunks), "what a rank was told of each of its grants"
            state, known = cohort.ranks[rank], played.ranks[rank]
            if self.limits:
                limit = world.steps if cohort.shares else self.limits[rank]
                assert state.queued <= limit
                assert len(known.machine.lane) + len(known.machine.orders) + len(known.inbox) <= limit + 8
            if not known.alive and cohort.owes(rank) and state.digest:
                assert played.now - self.heard[rank] <= world.deadline_s + 2 * played.tick_s
        assert len(cohort.evaluating) <= world.size * world.epochs


def nobody_leads(played: Simulation, trains: list[Train]) -> None:
    """Where nobody blocks: nobody is granted more than `max_batch_diff` steps (one, if that is 0) beyond a rank at work."""
    cohort, plan = played.coordinator.cohort, played.coordinator.plan
    if plan is None or plan.max_lead is None or cohort.world.blocking:
        return
    lead, current = max(plan.max_lead, 1), cohort.round
    done = {
        rank: 0 if current is not None and current.gathers(rank) else cohort.ranks[rank].steps for rank in cohort.live
    }
    slowest = min((n for rank, n in done.items() if cohort.ranks[rank].queue), default=0)
    assert all(cohort.ranks[rank].queued <= lead for rank in cohort.live)
    if plan.dispatch != "fixed":  # else a rank may be at work in the next epoch, which was begun after this grant
        for rank in {order.rank for order in trains} & set(cohort.live):
            assert done[rank] + cohort.ranks[rank].queued <= slowest + lead


def books_are_what_they_follow_from(played: Simulation) -> None:
    """What is kept from event to event is what all ranks make, counted anew; no rank is passed over that can take more."""
    cohort, plan = played.coordinator.cohort, played.coordinator.plan
    anew = cohort.counted()
    assert (cohort.live, cohort.totals, cohort.granted) == (anew.live, anew.totals, anew.granted)
    assert all(state.queued == sum(chunk.steps for chunk in state.queue) for state in cohort.ranks)
    assert all(cohort.oldest <= cohort.last_heard[rank].seen for rank in cohort.live)
    assert set(cohort.recent.ranks) >= {
        state.rank for state in cohort.ranks if state.course and cohort.last_heard[state.rank].reported == played.now
    }
    if plan is None or plan.in_step or not cohort.window:
        return
    planned = cohort.under(plan)
    names = ("reach", "reach_of_all", "leads", "weight_of_all")
    assert [getattr(cohort, name) for name in names] == [getattr(planned, name) for name in names]
    assert cohort.fullest >= planned.fullest
    room = {rank: allowance(cohort, plan, rank) for rank in cohort.live}
    assert room == {rank: allowance(planned, plan, rank) for rank in cohort.live}
    done = set(cohort.parts.done) if cohort.parts is not None else set[int]()
    assert {rank for rank in room if room[rank] > 0} - done <= set(allowances(cohort, plan)[1])
    if cohort.parts is not None:
        assert sum(cohort.parts.of) == cohort.parts.left
        assert not any(cohort.parts.of[rank] for rank in done)


def exactly_once(cohort: CoordinatorState, recorded: dict[int, Spans]) -> None:
    """Law 1: every sample of an epoch in progress is free, granted, trained or in the model, and one of these only."""
    parts: dict[int, list[Span]] = {ledger.epoch: [] for ledger in cohort.ledgers}
    for ledger in cohort.ledgers:
        assert recorded.get(ledger.epoch, ()) == ledger.merged, "the record proves it"
        parts[ledger.epoch] += [*ledger.returned, *ledger.merged]
        parts[ledger.epoch] += [(start, stop) for start, stop in ledger.pools if start < stop]
    if cohort.shares:
        for _, chunk in cohort.shares:
            parts[chunk.epoch] += whole(chunk)
    entries = cohort.round.contributions if cohort.round is not None else ()
    for state in cohort.ranks:
        for chunk in () if cohort.shares else state.queue:
            parts[chunk.epoch] += rest(chunk)
    for holder in (*cohort.ranks, *entries):
        for epoch, spans in holder.trained:
            parts[epoch] += spans
    for epoch, spans in parts.items():
        spans.sort()
        assert spans[0][0] == 0, f"epoch {epoch}: {spans}"
        assert spans[-1][1] == cohort.world.samples, f"epoch {epoch}: {spans}"
        assert all(one[1] == next[0] for one, next in pairwise(spans)), f"epoch {epoch}: {spans}"
    for epoch in range(cohort.begun):
        if epoch not in parts:
            assert recorded[epoch] == ((0, cohort.world.samples),), f"epoch {epoch} was closed unfinished"


def laid_down(played: Simulation, round: int) -> dict[int, int]:
    """What ranks brought into that round, by what they did."""
    return next(brought for index, brought in reversed(played.weights) if index == round)


def weights_are_the_contributions(played: Simulation) -> None:
    """Law 2: what the books say that a rank brought into the round in flight is what it brought."""
    current = played.coordinator.cohort.round
    for entry in current.contributions if current is not None else ():
        assert current is not None
        assert entry.samples == sum(measure(spans) for _, spans in entry.trained)
        if not played.coordinator.cohort.shares:
            assert entry.samples == laid_down(played, current.index)[entry.rank]

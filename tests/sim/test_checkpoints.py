"""Going on from checkpoints, over random schedules in virtual time."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from ddp.core.checkpointing import Checkpointing
from ddp.core.commands import Publish
from ddp.core.coordinator import Coordinator
from ddp.core.events import Merged
from ddp.core.policies import POLICIES
from ddp.core.world import World
from ddp.sim import Costs, Simulation, simulate


def merged(records: list[tuple[float, Any]]) -> Counter[tuple[int, int]]:
    spans = [(event.epoch, *span) for _, event in records if isinstance(event, Merged) for span in event.spans]
    return Counter((epoch, position) for epoch, start, stop in spans for position in range(start, stop))


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_checkpoint_and_the_run_from_it_train_every_sample_once(data: Any) -> None:
    draw = data.draw
    name, blocking = draw(st.sampled_from(sorted(POLICIES))), draw(st.booleans())
    policy = POLICIES[name](**({} if name == "sync" else {"anchor": draw(st.integers(1, 5))}))
    world = World(
        size=draw(st.integers(1, 4)),
        samples=draw(st.integers(1, 150)),
        batch=draw(st.integers(1, 8)),
        epochs=draw(st.integers(1, 4)),
        blocking=blocking,
        in_step=blocking,
        tolerate_loss=True,
        checkpoints=Checkpointing(draw(st.integers(1, 4)), draw(st.sampled_from(["epochs", "averages"])), 0.0),
    )
    speeds = draw(st.lists(st.sampled_from([1.0, 0.5, 0.2]), min_size=4, max_size=4))
    costs = Costs(lambda rank, step: 0.01 / speeds[rank], copy_s=0.005, wire_s=0.003)
    deaths = ((draw(st.floats(0, 0.5)), 1),) if world.size > 2 and draw(st.booleans()) else ()
    whole = simulate(policy, world, costs=costs, deaths=deaths)
    orders = [index for index, (_, record) in enumerate(whole.records) if isinstance(record, Publish)]
    for index in orders[:4]:
        order = whole.records[index][1]
        assert isinstance(order, Publish)
        before = merged(whole.records[:index])
        assert before.total() == order.books.samples
        rest = Simulation(policy, world, costs)
        rest.coordinator = Coordinator.start(policy, world, 0.0, order.books)
        both = before + merged(rest.run().records)
        assert rest.status == "ok"
        assert set(both.values()) == {1}
        assert both.total() == world.samples * world.epochs

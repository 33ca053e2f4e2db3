"""Links in virtual time: a run over them costs what the cost models say, and loses nothing."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.messages.events import RoundClosed
from ddp.core.network.link_costs import collective_s
from ddp.core.network.links import parse
from ddp.core.policies import POLICIES
from ddp.core.settings.world import World
from ddp.sim import Costs, Simulation, simulate
from tests.policies import accepted

SIZE = 10**6


def played(name: str, words: str | list[str] | None, ranks: int = 4, **costs: object) -> Simulation:
    blocking = costs.pop("blocking", True)
    world = World(ranks, ranks * 8 * 24, 8, 1, blocking=bool(blocking), in_step=name == "sync", deadline_s=500.0)
    links = parse(words or ())
    given = Costs(lambda rank, step: 0.1, latency_s=0.0, wire_s=0.0, reduce_s=0.0, links=links, bytes=SIZE, **costs)  # type: ignore[arg-type]
    return simulate(POLICIES[name](**accepted(name, anchor=4, max_anchor=4)), world, costs=given)


def test_a_step_in_step_takes_its_time_and_a_collective() -> None:
    links = parse("wan_1g_30ms")
    assert links is not None
    wire = collective_s(links, (0, 1, 2, 3), SIZE)
    run = played("sync", "wan_1g_30ms", report_s=1e9)
    ends = sorted({batch.stop for batch in run.trained})
    assert [b - a for a, b in itertools.pairwise(ends[1:])] == pytest.approx([0.1 + wire] * (len(ends) - 2))


@pytest.mark.parametrize("alone", [False, True])
def test_forming_a_group_moves_no_data(alone: bool) -> None:
    """It took the time of an average: predictions of short runs over slow links were 20 % too low."""
    run = played("cadence", "1ms/8mbit", joins_alone=alone)
    assert min(batch.start for batch in run.trained) < 0.1


def test_what_is_kept_of_a_round_is_the_wire() -> None:
    links = parse(["ethernet_10g", "0-1+2-3:20ms/100mbit"])
    assert links is not None
    closed = [r for _, r in played("cadence", links.words).records if isinstance(r, RoundClosed)]
    assert closed
    assert min(event.sync_s for event in closed) == pytest.approx(collective_s(links, (0, 1, 2, 3), SIZE))


@given(
    st.sampled_from(sorted(POLICIES)),
    st.booleans(),
    st.sampled_from(["nvlink", "wan_1g_30ms", "home_100m", "20ms/8mbit/jitter20ms/loss5%/shared"]),
)
def test_links_delay_and_lose_nothing(name: str, blocking: bool, words: str) -> None:
    """Every sample once, over any link: losses are delay. And no run is faster over a link than without."""
    run, free = (played(name, each, blocking=blocking or name == "sync") for each in (words, None))
    assert run.status == "ok"
    assert sum(batch.batch.samples for batch in run.trained) == sum(batch.batch.samples for batch in free.trained)
    if run.world.blocking:
        assert run.now >= free.now - run.tick_s


@pytest.mark.parametrize(("ranks", "link", "size"), [(3, "15ms/100mbit", 30_000_000), (2, "wan_1g_30ms", 85_000_000)])
def test_no_report_overtakes_a_snapshot_of_its_rank(ranks: int, link: str, size: int) -> None:
    """They are due at the same time, which may not be rounded twice."""
    dice = random.Random(1)
    links = parse(link)
    for _ in range(20):
        pace = [dice.uniform(0.003, 0.02) for _ in range(ranks)]
        costs = Costs(lambda rank, step, pace=pace: pace[rank], links=links, bytes=size, report_s=0.01)  # type: ignore[misc]
        world = World(ranks, ranks * 8 * 60, 8, 1, blocking=False, in_step=False, deadline_s=500.0)
        assert (
            simulate(POLICIES["cadence"](**accepted("cadence", anchor=4, max_anchor=4)), world, costs=costs).status
            == "ok"
        )

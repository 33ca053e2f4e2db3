"""Links: how they are written, and the laws of what a transfer over them takes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.network.link_costs import FROM, TO, Deliveries, collective_s
from ddp.core.network.links import ALGORITHMS, PRESETS, LinkRule, Links, RankLink, link, parse

LINKS = st.builds(
    RankLink,
    latency_s=st.floats(0.005, 1.0),
    bandwidth=st.floats(1e4, 1e11),
    jitter_s=st.floats(0.0, 0.005),
    loss=st.floats(0.0, 0.3),
    shared=st.booleans(),
)
SIZES, RANKS = st.integers(0, 10**9), st.integers(1, 17)


def one(each: RankLink, algorithm: str = "ring", seed: int = 0) -> Links:
    """Links that are all alike."""
    return Links((LinkRule((), each),), algorithm, seed)


def star_s(links: Links, members: tuple[int, ...], size: int) -> float:
    """Return the seconds in which all snapshots of `size` bytes reach the middle and the average comes back, for the last
    rank, without jitter and losses."""
    sure = tuple(replace(rule, link=replace(rule.link, jitter_s=0.0, loss=0.0)) for rule in links.rules)
    sent = Deliveries(replace(links, rules=sure))
    there = max((sent.due(rank, size, TO, 0.0) for rank in members), default=0.0)
    return max((sent.due(rank, size, FROM, there) for rank in members), default=0.0)


@given(LINKS, SIZES, SIZES, RANKS, st.sampled_from(ALGORITHMS), st.integers(0, 5))
def test_more_bytes_never_take_less(
    each: RankLink, few: int, more: int, ranks: int, algorithm: str, number: int
) -> None:
    links, members = one(each, algorithm), tuple(range(ranks))
    few, more = sorted((few, more))
    assert collective_s(links, members, few, number) <= collective_s(links, members, more, number)
    assert star_s(links, members, few) <= star_s(links, members, more)


@given(LINKS, SIZES, RANKS, st.sampled_from(ALGORITHMS), st.sampled_from(["latency_s", "loss", "bandwidth", "shared"]))
def test_a_worse_link_is_never_faster(each: RankLink, size: int, ranks: int, algorithm: str, what: str) -> None:
    changes = {
        "latency_s": each.latency_s * 2,
        "loss": each.loss * 1.5,
        "bandwidth": each.bandwidth / 2,
        "shared": True,
    }
    better, worse, members = (
        one(each, algorithm),
        one(replace(each, **{what: changes[what]}), algorithm),
        tuple(range(ranks)),
    )
    for number in range(3):
        assert collective_s(better, members, size, number) <= collective_s(worse, members, size, number) * (1 + 1e-12)
    assert star_s(better, members, size) <= star_s(worse, members, size) * (1 + 1e-12)


@given(st.floats(0.0, 1.0), st.floats(1e4, 1e11), SIZES, RANKS)
def test_collectives_take_what_the_formulas_say(latency_s: float, bandwidth: float, size: int, n: int) -> None:
    each, members = RankLink(latency_s, bandwidth), tuple(range(n))
    moved, steps = size / bandwidth, math.ceil(math.log2(n))
    ring = 2 * (n - 1) * latency_s + 2 * (n - 1) / n * moved
    assert collective_s(one(each), members, size) == pytest.approx(ring)
    assert collective_s(one(each, "tree"), members, size) == pytest.approx(2 * steps * (latency_s + moved))
    if n == 1 << steps:
        halving = 2 * steps * latency_s + 2 * (n - 1) / n * moved
        assert collective_s(one(each, "halving_doubling"), members, size) == pytest.approx(halving)
    spokes = 2 * (latency_s + moved) if n > 1 else 0.0
    assert star_s(one(each), members, size) == pytest.approx(spokes)
    together = 2 * latency_s + 2 * (n - 1) * moved if n > 1 else 0.0
    assert star_s(one(replace(each, shared=True)), members, size) <= together * (1 + 1e-9)


@given(LINKS, st.lists(st.tuples(st.integers(0, 3), st.floats(0, 10), SIZES), max_size=20), st.integers(0, 9))
def test_messages_arrive_in_order_and_none_is_lost(
    each: RankLink, sent: list[tuple[int, float, int]], seed: int
) -> None:
    deliveries, last = Deliveries(one(each, seed=seed)), dict.fromkeys(range(4), 0.0)
    for rank, at, size in sorted(sent, key=lambda message: message[1]):
        due = deliveries.due(rank, size, TO, at)
        assert due >= max(at, last[rank])
        least = each.latency_s - each.jitter_s + size / each.bandwidth
        assert due >= (at + least * (1 - 1e-9) if rank else at)
        assert math.isfinite(due)
        last[rank] = due


def test_the_mean_of_jitter_is_nothing_and_losses_are_as_often_as_set() -> None:
    sent = Deliveries(one(RankLink(0.03, 1e9, 0.01, 0.1)))
    delays = [sent.due(1, 0, FROM, 1000.0 * k) - 1000.0 * k for k in range(4000)]
    again = [delay for delay in delays if delay > 0.1]
    assert len(again) / 4000 == pytest.approx(0.1, abs=0.02)
    calm = [delay for delay in delays if delay < 0.1]
    assert sum(calm) / len(calm) == pytest.approx(0.03, abs=0.0005)
    assert min(calm) < 0.021
    assert max(calm) > 0.039


@pytest.mark.parametrize(("loss", "width"), [(0.01, 4), (0.1, 4), (0.5, 1), (0.5, 4)])
def test_what_is_sent_again_may_be_lost_again(loss: float, width: int) -> None:
    """Count the message of a round that is lost most often."""
    dice = np.random.default_rng(0)
    unluckiest = (dice.geometric(1 - loss, (100_000, width)) - 1).max(axis=1).mean()
    each, members = RankLink(0.01, 1e9, loss=loss), tuple(range(width if width > 1 else 2))
    if width == 1:
        sent = Deliveries(one(each))
        taken = [sent.due(1, 0, TO, 1000.0 * k) - 1000.0 * k for k in range(4000)]
        rounds = 1
    else:
        taken = [collective_s(one(each), members, 0, k) for k in range(4000)]
        rounds = 2 * (width - 1)
    mean = rounds * (0.01 + unluckiest * each.again_s)
    assert sum(taken) / len(taken) == pytest.approx(mean, rel=0.03)
    if width > 1:
        assert collective_s(one(each), members, 0, None) <= min(taken)


def test_a_restarted_rank_does_not_wait_for_what_its_old_process_sent() -> None:
    sent = Deliveries(one(RankLink(0.001, 1e5)))
    assert sent.due(1, 10**6, TO, 0.0) > 10
    sent.forget(1)
    assert sent.due(1, 0, TO, 1.0) == pytest.approx(1.001)


def test_there_is_one_algorithm() -> None:
    with pytest.raises(ValueError, match="one algorithm: tree or ring"):
        parse(["ib", "tree", "ring"])


def test_a_ring_through_two_islands_waits_for_the_link_between_them() -> None:
    links = parse(["ib", "0-3+4-7:wan_1g_30ms"], 8)
    assert links is not None
    size, slow = 10**7, PRESETS["wan_1g_30ms"]
    assert collective_s(links, tuple(range(8)), size) == pytest.approx(
        14 * (slow.latency_s + size / 8 / slow.bandwidth)
    )
    fast = PRESETS["ib"]
    assert collective_s(links, (0, 1, 2, 3), size) == pytest.approx(6 * (fast.latency_s + size / 4 / fast.bandwidth))
    shared = parse(["ib", "0-3+4-7:wan_1g_30ms/shared"], 8)
    assert shared is not None
    assert collective_s(shared, tuple(range(8)), size) == pytest.approx(
        14 * (slow.latency_s + size / 4 / slow.bandwidth)
    )


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_what_is_written_is_read(name: str) -> None:
    assert link(name) == PRESETS[name]
    for words in ([name], ["0_2-3+1:20ms/1gbit/jitter5ms/loss0.1%/shared", name, "tree"], [f"{name}/shared"]):
        links = parse(words)
        assert links is not None
        assert parse(links.words) == links


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("wan", "wan_1g_30ms"),
        ("30ms", "latency and bandwidth"),
        ("30ms/1gbit/jitter50ms", "jitter no more than latency"),
        ("30ms/0.001kbit", "bandwidth must be"),
        ("0-9:ib", "ranks are 0 to 3"),
        ("3-1:ib", "ends before it begins"),
        ("a+b:ib", "group of ranks"),
        ("30ms/1gbit/loss90%", "loss must be"),
        ("30ms/5ms/1gbit", "second latency"),
        ("30ms/1gbit/2gbit", "second bandwidth"),
        (f"0-{'9' * 5000}:ib", "group of ranks"),
    ],
)
def test_mistakes_say_what_can_be_written(word: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        parse([word], 4)

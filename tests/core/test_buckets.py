"""Laws of buckets, over sizes, kinds, caps and orders of completion that hypothesis draws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.gradients.buckets import WORTHWHILE_BYTES, Item, Launches, assign, caps

ITEMS = st.lists(st.builds(Item, st.integers(0, 40), st.sampled_from(["a", "a", "b"])), max_size=30)
CAPS = st.lists(st.integers(1, 60), min_size=1, max_size=3)


@given(ITEMS, CAPS)
def test_every_item_is_in_one_bucket_that_holds_what_it_may(items: list[Item], caps: list[int]) -> None:
    buckets = assign(items, caps)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(items)))
    for bucket in buckets:
        assert len({items[index].kind for index in bucket}) == 1
        assert list(bucket) == sorted(bucket, reverse=True)
        assert len(bucket) == 1 or sum(items[index].size for index in bucket) <= max(caps)
    assert [bucket[-1] for bucket in buckets] == sorted((bucket[-1] for bucket in buckets), reverse=True)


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 60), st.integers(1, 60))
def test_the_first_cap_is_the_first_buckets_and_none_could_take_one_more(
    sizes: list[int], first: int, rest: int
) -> None:
    buckets = assign([Item(size) for size in sizes], [first, rest])
    caps = [first, *[rest] * len(buckets)]
    for number, bucket in enumerate(buckets):
        held = sum(sizes[index] for index in bucket)
        assert held <= caps[number] or len(bucket) == 1
        if number + 1 < len(buckets):
            assert held + sizes[buckets[number + 1][0]] > caps[number]


@given(ITEMS, CAPS, st.data())
def test_buckets_go_in_order_each_once_and_none_before_it_is_complete(
    items: list[Item], caps: list[int], data: st.DataObject
) -> None:
    buckets = assign(items, caps)
    launches = Launches(buckets)
    for _ in range(2):  # two passes
        order = data.draw(st.permutations(range(len(items))))
        order = order[: data.draw(st.integers(0, len(order)))]
        came: set[int] = set()
        gone: list[int] = []
        for index in order:
            came.add(index)
            for bucket in launches.arrive(index):
                assert came >= set(buckets[bucket])
                gone.append(bucket)
            if index not in {each for bucket in gone for each in buckets[bucket]}:
                assert list(launches.arrive(index)) == []  # twice before it goes is no news
        assert len(gone) == len(buckets) or not came >= set(buckets[len(gone)])  # nothing is held back
        gone += launches.rest()
        assert gone == list(range(len(buckets)))
        launches.reset()


def test_what_comes_again_after_it_was_sent_is_an_error() -> None:
    launches = Launches(assign([Item(1), Item(1)], [1]))
    assert list(launches.arrive(1)) == [0]
    with pytest.raises(ValueError, match="came again after it was sent"):
        list(launches.arrive(1))


@pytest.mark.parametrize("caps", [[], [0], [5, -1]])
def test_caps_are_positive(caps: list[int]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        assign([Item(1)], caps)


@given(st.integers(0, 1 << 40))
def test_gradients_go_early_where_there_are_enough_of_them_and_something_moves_them_meanwhile(total: int) -> None:
    assert caps(total, spare=False) == ()
    assert bool(caps(total, spare=True)) == (total >= WORTHWHILE_BYTES)

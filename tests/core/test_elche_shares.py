"""How the controller divides: counts by speed, the lost left out, an epoch cut into windows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.messages.events import RoundClosed
from ddp.core.window_sizes import allocation, controller
from ddp.core.window_sizes.controller import ElChe, ElCheSettings
from tests.core.turned import window, windows


def without(state: ElChe, rank: int, step_s: list[float]) -> RoundClosed:
    """The window in which `rank` was lost."""
    counts = tuple(0 if r == rank else n for r, n in enumerate(state.counts))
    return replace(window(counts, step_s), lost=(rank,))


def test_a_rank_that_is_gone_has_no_part_in_what_is_planned() -> None:
    """It stayed among the known, so that windows and anchor were bounded as if it did its part of the epoch."""
    settings, step_s = ElCheSettings(overhead_target=0.1), [0.01, 0.01, 0.01]
    state = windows(settings, step_s, 6, sync_s=1.0, most=90)
    assert (state.anchor, state.counts) == (30, (30, 30, 30))
    now = controller.measure(settings, state, without(state, 1, step_s))
    after = controller.recount(settings, controller.tune(settings, replace(now, costs=(1.0,))), state)
    assert (after.anchor, after.counts) == (45, (45, 0, 45))
    assert controller.weights(settings, after) == (0.5, 0.0, 0.5)
    for _ in range(8):  # averages cost nothing now
        after = _on(settings, after, step_s)
    assert after.anchor < 45
    assert after.counts == (15, 0, 15), "six windows of the epoch"


def _on(settings: ElCheSettings, state: ElChe, step_s: list[float]) -> ElChe:
    now = controller.measure(settings, state, without(state, 1, step_s))
    return controller.recount(settings, controller.tune(settings, now), state)


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({}, (40, 0, 10)),
        ({"partition_ratios": (4.0, 0.1, 1.0)}, (40, 0, 10)),
        ({"max_batch_diff": 3}, (13, 0, 10)),
        ({"speed_hint": (1.0, 0.1, 1.0)}, (40, 0, 10)),
    ],
)
def test_so_with_every_way_of_dividing(options: dict[str, Any], counts: tuple[int, ...]) -> None:
    """The rank that is lost is the slowest, before anything was measured of it."""
    settings, step_s = ElCheSettings(**options), [0.01, 0.1, 0.04]
    state = controller.start(settings, 3, 10_000)
    for _ in range(2):
        state = _on(settings, state, step_s)
    assert state.counts == counts
    assert state.rank == 2


def test_if_nobody_is_measured_the_lost_have_no_count_either() -> None:
    settings = ElCheSettings()
    state = _on(settings, replace(controller.start(settings, 3, 10_000), counts=(0, 10, 0)), [0.01] * 3)
    assert (state.rank, state.counts[1]) == (None, 0)


WEIGHTS = st.lists(st.floats(0.1, 10), min_size=1, max_size=8).map(tuple)


@given(WEIGHTS, st.integers(0, 400))
def test_levelling_keeps_proportions_and_the_total(weights: tuple[float, ...], total: int) -> None:
    steps = allocation.level(weights, (total,) * len(weights), total)
    assert sum(steps) == total
    # Nobody could pass a step on and end earlier: the definition of the least longest time.
    longest = max(n / w for n, w in zip(steps, weights, strict=True))
    assert all((n + 1) / w >= longest * (1 - 1e-9) for n, w in zip(steps, weights, strict=True))


@given(WEIGHTS, st.integers(1, 60), st.integers(1, 500))
def test_an_epoch_falls_into_windows_without_a_sliver(weights: tuple[float, ...], anchor: int, left: int) -> None:
    """All windows are whole but the last two, which share what is left: not quite evenly where that takes less time."""
    counts = allocation.allocate(tuple(1 / w for w in weights), anchor / min(weights), max(500, len(weights)))
    whole, cuts = sum(counts), []
    while left:
        cuts.append(allocation.fit(counts, weights, left))
        left -= sum(cuts[-1])
    assert left == 0
    assert all(cut == counts for cut in cuts[:-2])
    for cut in cuts:
        assert all(new <= old for old, new in zip(counts, cut, strict=True)), "bounds are kept"
        for lone in (r for r, n in enumerate(cut) if n == 1 < counts[r]):
            assert not any(0 < n < counts[r] for r, n in enumerate(cut) if r != lone), "another could take it"
    if len(cuts) > 1:
        last = [sum(cut) for cut in cuts[-2:]]
        assert 4 * min(last) >= whole
        assert max(last) - min(last) <= 2 * allocation.NEAR + 1
        even = (-(-sum(last) // 2), sum(last) // 2)
        assert seconds(weights, counts, last) <= seconds(weights, counts, even) * (1 + 1e-9)


def seconds(weights: tuple[float, ...], counts: tuple[int, ...], sizes: Sequence[int]) -> float:
    """What windows of these sizes take, each with its steps dealt out as well as may be."""
    cuts = [allocation.level(weights, counts, size) for size in sizes]
    return sum(max(n / w for n, w in zip(cut, weights, strict=True)) for cut in cuts)

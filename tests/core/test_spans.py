"""Interval arithmetic, chunks and the ledger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddp.core.samples.ledger import Ledger
from ddp.core.samples.spans import Chunk, measure, union
from ddp.graph.balance import cut


@given(st.sets(st.integers(0, 60)), st.sets(st.integers(0, 60)))
def test_union_is_the_union_of_sets(left: set[int], right: set[int]) -> None:
    def spans(positions: set[int]) -> tuple[tuple[int, int], ...]:
        return union((), tuple((p, p + 1) for p in positions))

    if left & right:
        with pytest.raises(AssertionError, match="counted twice"):
            union(spans(left), spans(right))
    else:
        both = union(spans(left), spans(right))
        assert both == spans(left | right)
        assert measure(both) == len(left | right)


STEPS = st.integers(1, 300), st.integers(1, 40), st.integers(1, 6), st.integers(1, 3)


@given(st.integers(0, 50), *STEPS, st.data())
def test_the_parts_of_a_chunk_cover_it(
    start: int, samples: int, batch: int, parts: int, least: int, data: st.DataObject
) -> None:
    chunks = [Chunk(0, start, start + samples, batch * parts, part, parts, least=least) for part in range(parts)]
    covered: list[int] = []
    for chunk in chunks:
        assert chunk.steps == chunks[0].steps
        done = data.draw(st.integers(0, chunk.steps))
        for piece, steps in ((chunk, done), (chunk.advance(done), chunk.steps - done)):
            positions = [p for a, b in piece.spans(steps) for p in range(a, b)]
            assert len(positions) == sum(piece.at(step).samples for step in range(steps))
            covered += positions
    assert sorted(covered) == list(range(start, start + samples))
    # else a rank leaves out a collective that the others enter
    idles = {tuple(chunk.at(step).idles for step in range(chunk.steps)) for chunk in chunks}
    assert idles == {tuple(not all(chunk.at(step).samples for chunk in chunks) for step in range(chunks[0].steps))}
    totals = {tuple(chunk.at(step).total for step in range(chunk.steps)) for chunk in chunks}
    assert len(totals) == 1, "all ranks agree on the size of each global batch"
    assert sum(totals.pop()) == samples


@given(*STEPS)
def test_a_slice_has_the_least_that_a_model_can_do_with(samples: int, batch: int, parts: int, least: int) -> None:
    """Unless the global batch has less; as even as that lets it be, and as graph mode divides a batch."""
    chunks = [Chunk(0, 0, samples, batch * parts, part, parts, least=least) for part in range(parts)]
    for step in range(chunks[0].steps):
        sizes = tuple(chunk.at(step).samples for chunk in chunks)
        filled = [size for size in sizes if size]
        assert sizes == (*filled, *[0] * (parts - len(filled))), "the first ranks have them"
        assert min(filled) >= min(least, sum(sizes))
        assert max(filled) - min(filled) <= 1
        assert len(filled) == parts or sum(sizes) < least * (len(filled) + 1), "one more rank could have had its part"
        assert sizes == cut(sum(sizes), (1 / parts,) * parts, least)


@given(st.integers(1, 200), st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=60))
def test_a_ledger_grants_each_position_until_it_is_merged(samples: int, moves: list[tuple[int, bool]]) -> None:
    ledger = Ledger.shared(0, samples)
    merged: set[int] = set()
    for amount, lost in moves:
        if not ledger.free:
            break
        ledger, (start, stop) = ledger.take(0, amount, 1, ())
        assert 0 < stop - start <= amount
        positions = set(range(start, stop))
        assert not positions & merged
        if lost:
            ledger = ledger.give_back(((start, stop),))
        else:
            ledger, merged = ledger.merge(((start, stop),)), merged | positions
        assert ledger.free == samples - len(merged)
    assert ledger.complete == (len(merged) == samples)


def test_a_sample_merged_twice_is_caught() -> None:
    ledger = Ledger(0, 10).merge(((0, 5),))
    with pytest.raises(AssertionError, match=r"positions \[4, 5\) are counted twice"):
        ledger.merge(((4, 7),))

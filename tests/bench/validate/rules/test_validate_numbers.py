"""Numbers of NumPy that repeat, by the states of its generator that ranks say."""

from __future__ import annotations

import pytest

from bench.validate.records.run_records import Records
from bench.validate.rules.drawn_numbers import drawn_again
from ddp.core.messages.events import Finished

PLAIN = "a", "a", "a", "b", "b", "c", "c"


@pytest.mark.parametrize(
    ("first", "second", "wrong"),
    [
        (PLAIN, ("d", "d", "d", "e", "e"), ""),
        (PLAIN, ("d", "d", "d", "d", "d", "d", "d"), ""),  # nothing is drawn
        (PLAIN, ("d", "d", "d", "e", "e", "d", "d"), ""),  # a data set that seeds by sample
        (PLAIN, (), ""),
        (PLAIN, ("a", "a", "a"), "ranks 0 and 1 draw the same random numbers"),
        (
            PLAIN,
            ("d", "d", "x", "e", "x"),
            "rank 1 draws the random numbers of NumPy in its epoch 2 that rank 1 drew in its epoch 1",
        ),
        (("a", "a", "x"), ("d", "d", "x"), "rank 1 draws the random numbers of NumPy in its epoch 1 that rank 0 drew"),
    ],
    ids=["own", "none", "seeded by sample", "not recorded", "alike", "each epoch", "each rank"],
)
def test_numbers_that_repeat_are_named(first: tuple[str, ...], second: tuple[str, ...], wrong: str) -> None:
    ends = [Finished(1.0, rank, "", 1, 0, numbers=states) for rank, states in enumerate((first, second))]
    found = drawn_again(Records(finished=ends))
    assert wrong in found
    assert bool(wrong) == bool(found)

"""Words of small plots: wherever lines run, a word lies on none of them and on no other word."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.report.drawing.free_places import CLEAR, Place, Rectangle, free_place, track
from bench.report.drawing.labels import DIGIT, LINE
from bench.report.drawing.small_plots import PLANE

SIZE = (72 * PLANE[0], 72 * PLANE[1])
NOTHING = track([])
POINTS = st.tuples(st.floats(0, SIZE[0]), st.floats(0, SIZE[1]))
LINES = st.lists(st.lists(POINTS, min_size=1, max_size=9), min_size=2, max_size=5)


def around(place: Place, size: Place) -> Rectangle:
    return place[0] - size[0] / 2, place[1] - size[1] / 2, place[0] + size[0] / 2, place[1] + size[1] / 2


def crosses(start: Place, end: Place, box: Rectangle) -> bool:
    """Whether a straight line enters a rectangle (Liang and Barsky 1984)."""
    first, last = 0.0, 1.0
    for axis in (0, 1):
        step = end[axis] - start[axis]
        low, high = box[axis] - start[axis], box[axis + 2] - start[axis]
        if step == 0:
            if low > 0 or high < 0:
                return False
            continue
        near, far = sorted((low / step, high / step))
        first, last = max(first, near), min(last, far)
    return first <= last


@settings(deadline=None)
@given(LINES, st.lists(st.integers(1, 9), min_size=1, max_size=3))
def test_a_word_lies_on_no_line_and_on_no_word(lines: list[list[Place]], letters: list[int]) -> None:
    own, other, *more = [track(line) for line in lines]
    taken: list[Rectangle] = []
    for count in letters:
        size = (DIGIT * count, LINE)
        place = free_place(size, own[-1:], own, other, more, taken, SIZE)
        if place is not None:
            taken.append(around(place, size))
    for left, low, right, high in taken:
        assert left >= -1e-9, "it is within the plane"
        assert low >= -1e-9
        assert right <= SIZE[0] + 1e-9
        assert high <= SIZE[1] + 1e-9
    for one, two in combinations(taken, 2):
        assert one[2] <= two[0] or two[2] <= one[0] or one[3] <= two[1] or two[3] <= one[1]
    for line in lines:
        for start, end in pairwise([line[0], *line]):
            assert not any(crosses(start, end, box) for box in taken)


@settings(deadline=None)
@given(st.lists(POINTS, min_size=2, max_size=9))
def test_a_track_leaves_no_gap_and_ends_where_its_line_ends(line: list[Place]) -> None:
    places = track(line)
    assert (abs(places[1:] - places[:-1]) <= CLEAR).all()
    assert (abs(places[[0, -1]] - [line[0], line[-1]]) < 1e-6).all()


def test_a_word_stands_at_its_end_and_rather_at_its_own_line() -> None:
    size = (20.0, LINE)
    line, other = track([(0, 20), (80, 20)]), track([(0, 50), (124, 50)])
    place = free_place(size, line[-1:], line, other, [], [], SIZE)
    assert place is not None
    left, low, right, high = around(place, size)
    aside, above = max(left - 80, 80 - right, 0), max(low - 20, 20 - high, 0)
    assert CLEAR <= max(aside, above) < 2 * CLEAR + 2
    between = track([(0, 34), (124, 34)])
    beside = free_place(size, between, between, other, [], [], SIZE)
    assert beside is not None
    assert beside[1] < 34, "between the two lines it would be as near to the other one"


def test_a_full_plane_has_no_place_and_a_free_corner_is_one() -> None:
    size, comb = (20.0, LINE), [(float(x), y) for x in range(0, 125, 6) for y in (0.0, SIZE[1])]
    assert free_place(size, track(comb)[-1:], track(comb), NOTHING, [], [], SIZE) is None
    assert free_place((SIZE[0] + 1, LINE), track(comb), NOTHING, NOTHING, [], [], SIZE) is None
    free = [place for place in comb if place[0] < 90]
    place = free_place(size, track(free)[-1:], track(free), NOTHING, [], [], SIZE)
    assert place is not None
    assert place[0] > 90
    assert free_place(size, track(free), track(free), NOTHING, [], [(90, 0, 124, 72)], SIZE) is None, "a word is there"

"""Labels of points: each in sight, none on another."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from bench.report.drawing.labels import LINE, along, length, spots
from bench.report.page_one.frontier import BESIDE, NAMED
from bench.report.sections.answer import AMONG

PLANE = tuple(72 * (size - sum(BESIDE[k : k + 2])) for k, size in zip((0, 2), AMONG, strict=True))
"""Of the smallest picture."""


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, PLANE[0]), st.floats(0, PLANE[1])), min_size=1, max_size=17), st.booleans())
def test_labels_never_hide_each_other_and_stand_in_the_frame(places: list[tuple[float, float]], numbers: bool) -> None:
    """Sixteen numbers, or as many names as are drawn; wherever points lie, all in one place included."""
    first, *others = places if numbers else places[: NAMED + 1]
    names = [str(k) if numbers else f"nccl_cadence ×{k}" for k in range(1, len(others) + 1)]
    labels = [("one device", first), *zip(names, others, strict=True)]
    boxes = []
    for (text, (x, y)), spot in zip(labels, spots(labels, [first, *others], (PLANE[0], PLANE[1])), strict=True):
        width = length(text)
        left = x + spot.x - (width if spot.side == "right" else 0)
        boxes.append((left, y + spot.y, left + width, y + spot.y + LINE))
    for a, b in combinations(boxes, 2):
        assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert all(box[0] >= 0 and box[1] >= 0 and box[2] <= PLANE[0] and box[3] <= PLANE[1] for box in boxes)


def test_labels_lie_on_no_mark_and_on_no_other_label() -> None:
    at = (60.0, 50.0)
    both = spots([("one device", at), ("nccl_sync", at)], [at, (80.0, 43.0)], (200.0, 100.0))
    assert [spot.side for spot in both] == ["left", "right"]
    assert both[0].y > 0, "below is a mark"
    beside = spots([("a", at)], [at, *along([at, (100.0, 50.0)])], (200.0, 100.0))[0]
    assert beside[:3] == (-6, 4, "right"), "right of it another mark were nearer to the label than its own"
    assert spots([("long name", (195.0, 50.0))], [], (200.0, 100.0))[0].side == "right", "it ends at the plane's edge"

"""Scripts that keep books: what a step changes is no part of the task."""

from __future__ import annotations

import pytest

from bench.runner.digests import TaskDigest
from tests.bench.runner.test_digests import objects

BOOKS = """
history, limits, count = [], [3], 0

def step():
    global count
    count += limits[0]
    history.append(count)
"""


def code_of(monkeypatch: pytest.MonkeyPatch, script: str, earlier: int) -> tuple[list[str], str]:
    """Return (the variables that a step of a script moves, the digest of its code) after `earlier` steps."""
    step = objects(monkeypatch, script)["step"]
    for _ in range(earlier):
        step()
    before, after = TaskDigest(), TaskDigest()
    before.of([step])
    step()
    after.of([step])
    moved = after.moved(before)
    return [name.rpartition(" ")[2] for name in moved], TaskDigest(moving=moved).of([step])


def test_what_steps_keep_books_in_counts_by_name_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the seeds of a script that lists its losses in one cell: each was in one of its own."""
    codes = []
    for script, earlier in ((BOOKS, 0), (BOOKS, 4), (BOOKS.replace("[3]", "[5]"), 0)):
        moved, code = code_of(monkeypatch, script, earlier)
        assert moved == ["count", "history"]
        codes.append(code)
    assert codes[0] == codes[1] != codes[2]


@pytest.mark.parametrize("made", ["np.random.default_rng(0)", "random.Random(0)", "np.zeros(3)", "torch.zeros(3)"])
def test_what_steps_draw_from_or_add_to_counts_by_name_alone(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    """A generator of its own put every seed of a script into a cell of its own."""
    change = "kept.random()" if "andom" in made else "kept[0] += 1"
    script = f"import random\nimport numpy as np\nimport torch\n\nkept = {made}\n\ndef step():\n    {change}\n"
    assert code_of(monkeypatch, script, 0)[1] == code_of(monkeypatch, script, 4)[1]

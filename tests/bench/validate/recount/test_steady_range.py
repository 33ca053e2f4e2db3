"""The speed at steady state is held against reports and rounds: the range that it must lie in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from bench.validate.records.run_records import Records
from bench.validate.recount.steady import steady_range
from ddp.core.messages.events import Progress


def wrong(speed: float, seconds: float) -> list[str]:
    """What is wrong with the steady figures of two ranks that report 100 samples a second each, from 1 to 20 s, one second
    of which they evaluate."""
    progress = [
        Progress(float(at), rank, int(at > 4), 10, 100, 1.0, 0.9, 0.1) for at in range(1, 21) for rank in range(2)
    ]
    known = Records(progress=progress)
    for rank in range(2):
        known.rests[rank].append((10.0, 11.0))
    given = SimpleNamespace(samples_per_s=speed, seconds=seconds)
    metrics = SimpleNamespace(throughput=SimpleNamespace(steady=given), faults=[], resumed=None, world_size=2)
    return [figure.name for figure in steady_range(cast(Any, metrics), known) if figure.wrong]


@pytest.mark.parametrize(
    ("speed", "seconds", "names"),
    [
        (200.0, 16.0, []),
        (1600 * 2 / 15, 15.0, []),
        (400.0, 16.0, ["throughput.steady.samples_per_s"]),
        (200.0, 8.0, ["throughput.steady.seconds"]),
    ],
)
def test_steady_figures_lie_in_their_range(speed: float, seconds: float, names: list[str]) -> None:
    assert wrong(speed, seconds) == names

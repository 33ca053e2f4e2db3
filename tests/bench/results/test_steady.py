"""The steady state of a run, and what its ranks could do alone."""

from __future__ import annotations

import pytest

from tests.bench.streams import make_metrics, make_records, make_spec


def test_steady_state_is_held_against_what_the_ranks_do_alone() -> None:
    """Steps of 10 and 20 ms with 2 % between them: by hand, the fast rank waits for half of its window."""
    spec = make_spec("nccl_cadence", 2, epochs=4)
    metrics = make_metrics(spec, make_records(spec, step_s=(0.01, 0.02)))
    steady = metrics.throughput.steady
    assert steady is not None
    alone = 32 / 0.0102 + 32 / 0.0204
    assert steady.bound == pytest.approx(alone, rel=0.02)
    window = 5 * 0.0204 + 0.004
    assert steady.samples_per_s == pytest.approx(2 * 5 * 32 / window, rel=0.02)
    assert steady.efficiency == pytest.approx(steady.samples_per_s / steady.bound)
    fast, slow = steady.waiting_or_communicating
    assert fast == pytest.approx(1 - 5 * 0.0102 / window, abs=0.02)
    assert slow == pytest.approx(0.004 / window, abs=0.01)


def test_a_rank_alone_is_its_own_bound() -> None:
    """The loop between the steps is its own, and evaluation is cut out."""
    steady = make_metrics(make_spec("solo", epochs=4)).throughput.steady
    assert steady is not None
    assert steady.efficiency == pytest.approx(1.0, abs=0.02)
    assert steady.waiting_or_communicating == [0.0]


@pytest.mark.parametrize(("mode", "epochs"), [("solo", 1), ("nccl_sync", 1), ("nccl_cadence", 1)])
def test_a_short_run_has_no_steady_state(mode: str, epochs: int) -> None:
    assert make_metrics(make_spec(mode, epochs=epochs)).throughput.steady is None

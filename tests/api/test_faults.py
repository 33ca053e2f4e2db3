"""A rank is lost under `Trainer`: the run goes on, or ends, as it was told."""

from __future__ import annotations

import pytest

from ddp import RankLost
from tests.api.conftest import Make


def test_a_run_goes_on_without_a_rank_and_hands_out_the_average_of_the_others(make: Make) -> None:
    handle = make(world_size=3, faults=["1@3:crash"], epochs=3, anchor=3, max_anchor=3).run()
    state = handle.join()
    epochs = handle.poll_metrics()
    assert [epoch.epoch for epoch in epochs] == [0, 1, 2]
    assert epochs[-1].per_rank_batch_share[1] == 0.0
    assert all(bool(tensor.isfinite().all()) for tensor in state.params.values())


def test_a_run_that_may_lose_no_rank_ends_with_its_name(make: Make) -> None:
    with pytest.raises(RankLost, match="rank 1: its process is gone"):
        make(faults=["1@3:crash"], tolerate_loss=False).run().join()

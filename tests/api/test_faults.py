"""A rank is lost under `Trainer`: the run goes on, or ends, as it was told."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor, nn

from ddp import RankLost
from tests.api.conftest import Make
from tests.runtime import toy


def test_a_run_goes_on_without_a_rank_and_hands_out_the_average_of_the_others(make: Make) -> None:
    with pytest.warns(RuntimeWarning, match=r"rank 1 is lost: its process is gone .*; the run went on without it"):
        state = (handle := make(world_size=3, faults=["1@3:crash"], epochs=3, anchor=3, max_anchor=3).run()).join()
    epochs = handle.poll_metrics()
    assert [epoch.epoch for epoch in epochs] == [0, 1, 2]
    assert epochs[-1].per_rank_batch_share[1] == 0.0
    assert all(bool(tensor.isfinite().all()) for tensor in state.params.values())


def test_a_rank_that_its_last_few_samples_end_is_told_of(make: Make) -> None:
    """Of 43 samples in global batches of 8, the last 3 are two for rank 0 and one for rank 1."""

    def plain() -> nn.Module:
        return toy.net(norm=False)

    def step(model: nn.Module, batch: Any) -> Tensor:
        if len(batch[0]) == 1:
            raise ValueError("one is too few")
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    inputs, targets = toy.data()
    few = (inputs[:43], targets[:43])
    with pytest.warns(RuntimeWarning, match="rank 1 is lost: ValueError: one is too few; the run went on without it"):
        (
            handle := make(
                policy="sync", batch_size=4, dataset=few, train_step=step, epochs=2, model_factory=plain
            ).run()
        ).join()
    assert handle.poll_metrics()[-1].samples == 43


def test_a_run_that_may_lose_no_rank_ends_with_its_name(make: Make) -> None:
    with pytest.raises(RankLost, match="rank 1: its process is gone"):
        make(faults=["1@3:crash"], tolerate_loss=False).run().join()

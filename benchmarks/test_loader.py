"""The time that loading a batch adds to a step, for resident and streamed data. Only measures, no thresholds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ddp.core.samples.spans import Chunk
from ddp.core.settings.loader import Loading
from ddp.data import TensorSource
from ddp.data.batch_loader import feed
from ddp.data.epoch_order import EpochOrder

SIZE, BATCH = 1437, 16


@pytest.mark.parametrize("kind", ["resident", "streaming"])
def test_an_epoch_of_small_batches(benchmark: Any, kind: str) -> None:
    """The digits in batches of 16, as `mlp` trains them."""
    source = TensorSource(torch.rand(SIZE, 1, 8, 8), torch.randint(10, (SIZE,)))
    found, _ = feed(source, EpochOrder(0, SIZE), torch.device("cpu"), Loading(kind))
    chunk = Chunk(0, 0, SIZE, BATCH)
    batches = [chunk.at(step) for step in range(chunk.steps)]

    def epoch() -> None:
        found.expect(batches)
        for batch in batches:
            found.get(batch)

    benchmark(epoch)
    found.close()

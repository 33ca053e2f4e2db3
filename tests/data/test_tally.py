"""What feeds tell of the samples that they read is the tally of their indices, whichever way they are read."""

from __future__ import annotations

import pytest
import torch

from ddp.core.samples.spans import Batch
from ddp.core.settings.loader import Loading
from ddp.data import TensorSource
from ddp.data.batch_loader import feed
from ddp.data.epoch_order import EpochOrder
from ddp.tally import MODULUS, tally


@pytest.mark.parametrize("kind", ["resident", "streaming"])
def test_an_epoch_is_every_sample_once(kind: str) -> None:
    source = TensorSource(torch.arange(100.0).reshape(50, 2))
    made, _ = feed(source, EpochOrder(3, 50), torch.device("cpu"), Loading(kind=kind))
    batches = [Batch(epoch, start, min(start + 8, 50), 8) for epoch in range(2) for start in range(0, 50, 8)]
    made.expect(batches)
    for batch in batches:
        made.get(batch)
    assert made.visited() == 2 * tally(range(50)) % MODULUS
    made.get(Batch(0, 0, 8, 8))
    assert made.visited() != 2 * tally(range(50)) % MODULUS
    made.close()

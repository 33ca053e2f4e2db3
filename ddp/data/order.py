"""The order of samples in an epoch, as a tensor. Knows neither ranks nor partitions."""

from __future__ import annotations

import torch
from torch import Tensor

from ddp.permutation import derive as derive
from ddp.permutation import permutation


def order(seed: int, epoch: int, samples: int) -> Tensor:
    """Return the order in which epoch `epoch` visits samples: a permutation, int64, shape [samples], on the CPU."""
    return torch.from_numpy(permutation(seed, epoch, samples))

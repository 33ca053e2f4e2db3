"""Sources of samples. `TensorSource`: a data set that is resident in memory. Knows nothing of order, ranks or files."""

from __future__ import annotations

import torch
from torch import Tensor


class TensorSource:
    """Samples held as tensors of equal first dimension, such as images [n, c, h, w] and labels [n]."""

    def __init__(self, *tensors: Tensor) -> None:
        if not tensors:
            raise ValueError("a data set needs at least one tensor")
        lengths = [len(tensor) if tensor.dim() else 0 for tensor in tensors]
        if len(set(lengths)) > 1:
            raise ValueError(f"the tensors of a data set must have equal lengths, got {lengths}")
        if lengths[0] == 0:
            raise ValueError("the data set is empty")
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def batch(self, indices: Tensor) -> tuple[Tensor, ...]:
        """The samples at `indices` (int64, shape [n]), in that order; a copy, on the device of the data.

        IndexError (or torch's own, on a device) for an index outside.
        """
        indices = indices.to(self.tensors[0].device, non_blocking=True)
        return tuple(tensor.index_select(0, indices) for tensor in self.tensors)

    def to(self, device: torch.device) -> TensorSource:
        """The same data on `device`; memory is shared where it is there already."""
        return TensorSource(*(tensor.to(device) for tensor in self.tensors))

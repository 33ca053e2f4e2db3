"""Gradients that share memory: where two parameters are added, or viewed and added, PyTorch's backward pass gives both the
same. A change of one of them in place is then a change of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def local_values(gradient: Tensor) -> Tensor:
    """Return the tensor with this rank's values of a gradient, which may be sparse or sharded."""
    values = gradient._values() if gradient.is_sparse else gradient
    local: Tensor = values.to_local() if hasattr(values, "to_local") else values
    return local


def is_shared(gradient: Tensor) -> bool:
    """Return whether another tensor has memory of the same allocation; also where it is a view of `gradient`."""
    storage = gradient.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) > 2  # `gradient` and `storage`


def separate(parameters: Iterable[Tensor]) -> None:
    """Copy gradients that overlap others, so that each can be changed in place."""
    spans = []
    for parameter in parameters:
        if parameter.grad is not None:
            values = local_values(parameter.grad)
            spans.append((values.data_ptr(), values.nbytes, parameter))
    reached = 0
    for start, size, parameter in sorted(spans, key=lambda span: span[0]):
        if start < reached and size:
            assert parameter.grad is not None
            parameter.grad = parameter.grad.detach().clone()
        else:
            reached = max(reached, start + size)


def clip(parameters: Sequence[Tensor], limit: float) -> None:
    """Scale gradients down to the L2 norm `limit`, each once."""
    separate(parameters)
    torch.nn.utils.clip_grad_norm_(parameters, limit)

"""The digest of tensors, bit for bit. Knows nothing of their meaning."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def tensor_digest(tensors: Iterable[Tensor]) -> str:
    """Return the sha256 of all bits of `tensors`, in order, whatever their shapes and dtypes."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

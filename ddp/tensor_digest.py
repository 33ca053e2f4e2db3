"""The digest of tensors, bit for bit. Knows nothing of what they are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor


def tensor_digest(tensors: Iterable[Tensor]) -> str:
    """Return the sha256 of all bits of `tensors`, of any shapes and dtypes, one after the other."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()

"""Cuts inputs into pieces along their first dimension, and gathers outputs.

Owns what a piece is, for tensors in tuples, lists and dictionaries. Must not know who works on it. A tensor is cut and
gathered along dimension 0, in the order of the batch. A tensor without dimensions (a loss) is a mean over samples: pieces
are averaged, weighted by their samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ddp.graph.errors import GraphError


def leaves(value: Any) -> list[Tensor]:
    """Return all tensors in `value`, from left to right."""
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    if isinstance(value, tuple | list):
        return [leaf for item in value for leaf in leaves(item)]
    return []


def rebuild(value: Any, take: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with every tensor replaced by `take(tensor)`, from left to right."""
    if isinstance(value, Tensor):
        return take(value)
    if isinstance(value, dict):
        return type(value)((key, rebuild(item, take)) for key, item in value.items())
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuild(item, take) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(rebuild(item, take) for item in value)
    return value


def samples(inputs: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its tensors. Raises GraphError if the tensors differ
    in it."""
    sizes = {len(leaf) for leaf in leaves(inputs) if leaf.dim()}
    if len(sizes) != 1:
        listed = ", ".join(map(str, sorted(sizes))) or "none"
        raise GraphError(f"inputs to divide over replicas need one first dimension, the samples; found {listed}")
    return sizes.pop()


def piece(inputs: Any, start: int, stop: int) -> Any:
    """Return samples [start, stop) of a batch; tensors without dimensions are not cut."""
    return rebuild(inputs, lambda leaf: leaf[start:stop] if leaf.dim() else leaf)


def gather(pieces: Sequence[Tensor], counts: Sequence[int], device: torch.device) -> Tensor:
    """Return one tensor on `device` from pieces with `counts` samples each. Raises GraphError if their first dimension is
    not the samples."""
    first = pieces[0]
    moved = [part.to(device) for part in pieces]
    if first.dim() == 0:
        if not first.is_floating_point():
            raise GraphError(
                f"a single {first.dtype} value of each replica cannot be averaged; give one for each sample"
            )
        # A sum over samples could overflow half precision.
        wide = torch.promote_types(first.dtype, torch.float32)
        parts = torch.stack(moved).to(wide) * torch.tensor(counts, dtype=wide, device=device)
        return (parts.sum() / sum(counts)).to(first.dtype)
    for part, count in zip(pieces, counts, strict=True):
        if len(part) != count:
            raise GraphError(
                f"an output of shape {list(part.shape)} for {count} samples cannot be put together: "
                "its first dimension must be the samples, or it must be a single number, their mean"
            )
    return torch.cat(moved)


def share(gradient: Tensor, counts: Sequence[int], index: int, device: torch.device) -> Tensor:
    """Return the gradient of piece `index`, from the gradient of a tensor that `gather` made."""
    if gradient.dim() == 0:
        return (gradient * (counts[index] / sum(counts))).to(device)
    start = sum(counts[:index])
    return gradient[start : start + counts[index]].to(device)

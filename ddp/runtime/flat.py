"""A model's state as flat tensors: averaging, snapshots and digests become single operations.

Parameters and buffers become views into one flat tensor per data type. Knows nothing of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class FlatState:
    """All parameters and buffers of `model`, which keeps working on views. Make the optimizer after it.

    `tensors` holds one flat tensor per data type, floating-point types first; parameters come before buffers in each.
    """

    def __init__(self, model: nn.Module) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        slots = list(_slots(model))
        dtypes = sorted({tensor.dtype for _, _, tensor in slots}, key=lambda d: (not d.is_floating_point, str(d)))
        self.tensors = [_flatten([slot for slot in slots if slot[2].dtype == dtype]) for dtype in dtypes]
        self.floats = [flat for flat in self.tensors if flat.is_floating_point()]
        self.counters = [flat for flat in self.tensors if not flat.is_floating_point()]
        buffers = [b for b in model.buffers() if b.is_floating_point()]
        self.float_buffers = buffers

    @property
    def bytes(self) -> int:
        """Size of the state."""
        return sum(flat.numel() * flat.element_size() for flat in self.tensors)

    def digest(self) -> str:
        """sha256 of all bits."""
        digest = hashlib.sha256()
        for flat in self.tensors:
            digest.update(flat.detach().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


class FlatGradients:
    """The gradients of all parameters and, behind them, room for the floating-point buffers: what one step exchanges.

    Gradients live in `flat` (every `p.grad` is a view), so that nothing is copied to exchange them.
    """

    def __init__(self, state: FlatState) -> None:
        parameters, buffers = state.parameters, state.float_buffers
        sizes = [tensor.numel() for tensor in (*parameters, *buffers)]
        self.flat = torch.zeros(sum(sizes), dtype=parameters[0].dtype, device=parameters[0].device)
        views = torch.split(self.flat, sizes)
        for parameter, view in zip(parameters, views, strict=False):
            if parameter.dtype != self.flat.dtype:
                raise ValueError(
                    f"gradients of {parameter.dtype} and {self.flat.dtype} cannot share a bucket: use one type"
                )
            parameter.grad = view.view_as(parameter)
        self._gradients = self.flat[: sum(p.numel() for p in parameters)]
        self._pairs = list(zip(buffers, views[len(parameters) :], strict=True))

    def zero(self) -> None:
        """Clear the gradients before a backward pass."""
        self._gradients.zero_()

    def pack(self, weight: float) -> None:
        """Scale the gradients by `weight` and lay the buffers beside them with the same weight."""
        self._gradients.mul_(weight)
        for buffer, view in self._pairs:
            torch.mul(buffer.view(-1), weight, out=view)

    def unpack(self) -> None:
        """Put the averaged buffers back; the gradients are in place."""
        for buffer, view in self._pairs:
            buffer.view(-1).copy_(view)


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """(module, name, tensor) of every parameter, then of every buffer; shared ones once."""
    seen: set[int] = set()
    for group in ("_parameters", "_buffers"):
        for module in model.modules():
            for name, tensor in getattr(module, group).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield module, name, tensor


def _flatten(slots: list[tuple[nn.Module, str, Tensor]]) -> Tensor:
    flat = torch.cat([tensor.detach().reshape(-1) for _, _, tensor in slots])
    for (_, _, tensor), view in zip(slots, torch.split(flat, [t.numel() for _, _, t in slots]), strict=True):
        # `.data` keeps the identity of parameters and buffers, so shared ones stay shared.
        tensor.data = view.view(tensor.shape)
    return flat

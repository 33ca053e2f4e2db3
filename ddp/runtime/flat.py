"""A model's state as flat tensors: averaging, snapshots and digests become single operations.

Parameters and buffers become views into one flat tensor per data type. Knows nothing of ranks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

KINDS = ("parameters", "buffers", "optimizer")
"""What an average tells apart."""


@dataclass(frozen=True)
class Section:
    """A stretch of flat memory that an average treats alike: one of `KINDS`, of one data type."""

    kind: str
    values: Tensor


class FlatState:
    """All parameters and buffers of `model`, which keeps working on views. Make the optimizer after it.

    `tensors` holds one flat tensor per data type, floating-point types first; parameters come before buffers in each, and
    `sections` are the stretches of both. Weights become contiguous. A buffer that the model replaces by
    another tensor is taken back by `gather`; a parameter that is replaced is an error.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots = list(_slots(model))
        kinds = {tensor.dtype for _, _, tensor in self._slots}
        dtypes = sorted(kinds, key=lambda dtype: (not dtype.is_floating_point, str(dtype)))
        groups = [[slot[2] for slot in self._slots if slot[2].dtype == dtype] for dtype in dtypes]
        self.tensors = [_flatten(group) for group in groups]
        trained = [sum(t.numel() for t in group if isinstance(t, nn.Parameter)) for group in groups]
        halves = [
            part for flat, count in zip(self.tensors, trained, strict=True) for part in (flat[:count], flat[count:])
        ]
        kinds_of = ("parameters", "buffers") * len(groups)
        self.sections = [Section(kind, part) for kind, part in zip(kinds_of, halves, strict=True) if part.numel()]
        self._held = [
            (_holder(module, tensor), name, tensor, tensor.data_ptr(), module) for module, name, tensor in self._slots
        ]
        """Where every tensor is looked up in each step: as few words as there can be."""
        self.counters = [flat for flat in self.tensors if not flat.is_floating_point()]
        self.parameters = [p for p in model.parameters() if p.requires_grad]

    @property
    def bytes(self) -> int:
        """Size of the state."""
        return sum(flat.nbytes for flat in self.tensors)

    def gather(self) -> None:
        """Make sure that the flat tensors are what the model works with. Raises ValueError for a replaced parameter."""
        for holder, name, tensor, place, module in self._held:
            held = holder.get(name)
            if held is tensor and tensor.data_ptr() == place:
                continue
            if held is None or isinstance(tensor, nn.Parameter):
                where = f"{type(module).__name__}.{name}"
                raise ValueError(
                    f"{where} was replaced during training: change it in place (copy_), ranks share its memory"
                )
            tensor.data.copy_(held)
            module._buffers[name] = tensor

    def digest(self) -> str:
        """sha256 of all bits."""
        self.gather()
        digest = hashlib.sha256()
        for flat in self.tensors:
            digest.update(flat.detach().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


@contextmanager
def swapped(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Within the context every first tensor holds the values of its second."""
    kept = [(tensor, tensor.clone(), other) for tensor, other in pairs]
    for tensor, _, other in kept:
        tensor.copy_(other)
    try:
        yield
    finally:
        for tensor, own, _ in kept:
            tensor.copy_(own)


class FlatGradients:
    """What a step exchanges, one flat tensor per data type: gradients, floating-point buffers, and which were used.

    Gradients live there (`p.grad` are views), so that nothing is copied to exchange them. Buffers go as differences to what
    they were after the last exchange: one that does not change keeps its bits. A parameter that no rank used in a step has
    no gradient for the optimizer, as without ranks.
    """

    def __init__(self, state: FlatState, empty: Callable[[str, int, torch.dtype], Tensor]) -> None:
        """`empty` gives memory by name, elements and type: what a transport reduces without a copy."""
        self._state, parameters = state, state.parameters
        moved = {
            s.values.dtype: s.values for s in state.sections if s.kind == "buffers" and s.values.is_floating_point()
        }
        self.flats: list[Tensor] = []
        self._gradients: list[tuple[nn.Parameter, Tensor]] = []
        self._buffers: list[tuple[Tensor, Tensor, Tensor]] = []
        """All of one data type: (values, their change on the wire, values after the last exchange)."""
        views: dict[int, Tensor] = {}
        self._used = torch.zeros(0)
        for dtype in sorted({parameter.dtype for parameter in parameters} | set(moved), key=str):
            group = [parameter for parameter in parameters if parameter.dtype == dtype]
            # Who was used travels behind the first type: a collective of its own would cost as much as the gradients.
            flags = 0 if self.flats else len(parameters)
            values = moved.get(dtype)
            sizes = [*(p.numel() for p in group), 0 if values is None else values.numel(), flags]
            flat = empty(f"gradients{len(self.flats)}", sum(sizes), dtype).zero_()
            *parts, change, used = torch.split(flat, sizes)
            if not self.flats:
                self._used = used
            self.flats.append(flat)
            if values is not None:
                self._buffers.append((values, change, values.clone()))
            for parameter, view in zip(group, parts, strict=True):
                views[id(parameter)] = view.view(parameter.shape)
        self._touched = [0.0] * len(parameters)
        self._counted: list[Tensor] = []
        self._gradients = [(parameter, views[id(parameter)]) for parameter in parameters]
        for index, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._touch, index))  # type: ignore[no-untyped-call]

    def _touch(self, index: int, parameter: Tensor) -> None:
        self._touched[index] = 1.0

    def zero(self) -> None:
        """Clear the gradients before a backward pass."""
        self._touched = [0.0] * len(self._touched)
        self._counted = [counter.clone() for counter in self._state.counters]
        for flat in self.flats:
            flat.zero_()
        for parameter, view in self._gradients:
            parameter.grad = view

    def undo(self) -> None:
        """Put buffers and counters back to what they were when the step began."""
        for buffer, _, before in self._buffers:
            buffer.copy_(before)
        for counter, before in zip(self._state.counters, self._counted, strict=True):
            counter.copy_(before)

    def rebase(self) -> None:
        """Buffers were replaced from outside: changes count from here."""
        for buffer, _, before in self._buffers:
            before.copy_(buffer)

    def pack(self, weight: float) -> None:
        """Weigh the gradients, and lay what changed in the buffers beside them with the same weight."""
        self._state.gather()
        if all(self._touched):
            self._used.fill_(1.0)
        else:
            self._used.copy_(torch.tensor(self._touched))
        for buffer, view, before in self._buffers:
            if weight:  # else zero, whatever a buffer holds
                torch.sub(buffer, before, out=view)
                view.masked_fill_(buffer == before, 0.0)  # also of infinities
        for flat in self.flats:
            flat.mul_(weight)

    def unpack(self) -> None:
        """Move the buffers on by the averaged change; take away the gradients of parameters that nobody used."""
        for buffer, view, before in self._buffers:
            before.copy_(torch.where(view == 0, before, before + view))
            buffer.copy_(before)
        flags = self._used.tolist()
        if not all(flags):
            for (parameter, _), used in zip(self._gradients, flags, strict=True):
                if not used:
                    parameter.grad = None


def _holder(module: nn.Module, tensor: Tensor) -> dict[str, Any]:
    """The module's own dictionary that the tensor is in."""
    return module._parameters if isinstance(tensor, nn.Parameter) else module._buffers


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """(module, name, tensor) of every parameter, then of every buffer; shared ones once."""
    seen: set[int] = set()
    for group in ("_parameters", "_buffers"):
        for module in model.modules():
            for name, tensor in getattr(module, group).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield module, name, tensor


def _flatten(group: list[Tensor]) -> Tensor:
    flat = torch.cat([tensor.detach().reshape(-1) for tensor in group])
    for tensor, view in zip(group, torch.split(flat, [t.numel() for t in group]), strict=True):
        # `.data` keeps the identity of parameters and buffers, so shared ones stay shared.
        tensor.data = view.view(tensor.shape)
    return flat

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

from ddp.runtime.buffers import BufferChanges, Counters, moves

Empty = Callable[[str, int, torch.dtype], Tensor]
"""Gives flat memory by name, elements and type."""
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
    another tensor is taken back by `gather`; a parameter that is replaced is an error. Raises ValueError for complex
    parameters.
    """

    def __init__(self, model: nn.Module) -> None:
        self._slots = list(_slots(model))
        self._device = self._slots[0][2].device if self._slots else torch.device("cpu")
        self.named = list(model.named_parameters())
        refuse_complex(self.named)
        self.parameters = [p for _, p in self.named if p.requires_grad]
        self._frozen = [(name, p) for name, p in self.named if not p.requires_grad]
        self._shapes = {id(tensor): tensor.shape for _, _, tensor in self._slots}
        self.lay()

    def ordinary(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Memory of no particular kind, on the model's device."""
        return torch.empty(elements, dtype=dtype, device=self._device)

    def lay(self, empty: Empty | None = None, fill: bool = True) -> None:
        """Lay everything into new flat tensors, which `empty` gives; without `fill` parameters are left to the caller."""
        self._lay([tensor for _, _, tensor in self._slots], empty or self.ordinary, fill)

    def part(self) -> None:
        """Lay the buffers alone: parameters are elsewhere until the next `lay`."""
        self._lay([t for _, _, t in self._slots if not isinstance(t, nn.Parameter)], self.ordinary, True)

    def _lay(self, tensors: list[Tensor], empty: Empty, fill: bool) -> None:
        kinds = {tensor.dtype for tensor in tensors}
        dtypes = sorted(kinds, key=lambda dtype: (not dtype.is_floating_point, str(dtype)))
        groups = [[tensor for tensor in tensors if tensor.dtype == dtype] for dtype in dtypes]
        self.tensors = [self._flatten(f"state{i}", group, empty, fill) for i, group in enumerate(groups)]
        trained = [sum(t.numel() for t in group if isinstance(t, nn.Parameter)) for group in groups]
        halves = [
            part for flat, count in zip(self.tensors, trained, strict=True) for part in (flat[:count], flat[count:])
        ]
        kinds_of = ("parameters", "buffers") * len(groups)
        self.sections = [Section(kind, part) for kind, part in zip(kinds_of, halves, strict=True) if part.numel()]
        laid = {id(tensor) for tensor in tensors}
        self._held = [
            (_holder(module, tensor), name, tensor, tensor.data_ptr() if id(tensor) in laid else None, module)
            for module, name, tensor in self._slots
        ]
        """Where every tensor is looked up in each step, and its address if it lies here: as few words as there can be."""
        self.counters = [flat for flat in self.tensors if not (flat.is_floating_point() or flat.is_complex())]

    def _flatten(self, name: str, group: list[Tensor], empty: Empty, fill: bool) -> Tensor:
        sizes = [self._shapes[id(tensor)].numel() for tensor in group]
        flat = empty(name, sum(sizes), group[0].dtype)
        for tensor, view in zip(group, torch.split(flat, sizes), strict=True):
            if fill or not isinstance(tensor, nn.Parameter):
                view.copy_(tensor.detach().reshape(-1))
            # `.data` keeps the identity of parameters and buffers, so shared ones stay shared.
            tensor.data = view.view(self._shapes[id(tensor)])
        return flat

    @property
    def bytes(self) -> int:
        """Size of the state."""
        return sum(flat.nbytes for flat in self.tensors)

    def gather(self) -> None:
        """Make sure that the flat tensors are what the model works with. Raises ValueError for a replaced parameter."""
        for holder, name, tensor, place, module in self._held:
            held = holder.get(name)
            if held is tensor and (place is None or tensor.data_ptr() == place):
                continue
            if held is None or isinstance(tensor, nn.Parameter):
                where = f"{type(module).__name__}.{name}"
                raise ValueError(
                    f"{where} was replaced during training: change it in place (copy_), ranks share its memory"
                )
            tensor.data.copy_(held)
            module._buffers[name] = tensor

    def check_frozen(self) -> None:
        """Raises ValueError for a parameter that was not trained when this was made, and has a gradient now."""
        for name, parameter in self._frozen:
            if parameter.grad is not None and parameter.requires_grad:
                raise ValueError(
                    f"parameter {name} was unfrozen after training began, when gradients that ranks average were laid out: "
                    "unfreeze it where the model is made (what is frozen later is left alone), or use policy cadence"
                )

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

    def __init__(self, state: FlatState, empty: Empty | None = None, gradients: bool = True) -> None:
        """`empty` gives what a transport reduces without a copy. Without `gradients` they lie elsewhere."""
        self._state, parameters = state, state.parameters
        living = parameters if gradients else []
        moved = {section.values.dtype: section.values.numel() for section in state.sections if moves(section)}
        self.flats: list[Tensor] = []
        self.gradients: list[Tensor] = []
        """Of each of these the gradients alone."""
        self._used, self._unusual = torch.zeros(0), torch.zeros(0)
        views: dict[int, Tensor] = {}
        changes: dict[torch.dtype, Tensor] = {}
        for dtype in sorted({p.dtype for p in living} | set(moved) or {torch.float32}, key=str):
            group = [parameter for parameter in living if parameter.dtype == dtype]
            # Who was used, and whether counters differ, travels behind the first type: a collective of its own would cost as
            # much as the gradients.
            flags = (0, 0) if self.flats else (len(parameters), int(bool(state.counters)))
            sizes = [*(p.numel() for p in group), moved.get(dtype, 0), *flags]
            flat = (empty or state.ordinary)(f"gradients{len(self.flats)}", sum(sizes), dtype).zero_()
            *parts, change, used, unusual = torch.split(flat, sizes)
            self.gradients.append(flat[: sum(sizes[:-3])])
            if not self.flats:
                self._used, self._unusual = used, unusual
            self.flats.append(flat)
            changes[dtype] = change
            views |= {id(p): view.view(p.shape) for p, view in zip(group, parts, strict=True)}
        self._touched = [0.0] * len(parameters)
        self._gradients = [(parameter, views[id(parameter)]) for parameter in living]
        self._changes, self._counters = BufferChanges(state, changes), Counters(state)
        self._hooks: list[Any] = [
            parameter.register_post_accumulate_grad_hook(partial(self._touch, index))  # type: ignore[no-untyped-call]
            for index, parameter in enumerate(parameters)
        ]

    def close(self) -> None:
        """Gradients are of no interest any more, and live where autograd puts them."""
        for hook in self._hooks:
            hook.remove()
        for parameter, _ in self._gradients:
            parameter.grad = None

    def _touch(self, index: int, parameter: Tensor) -> None:
        self._touched[index] = 1.0

    def zero(self) -> None:
        """Clear the gradients before a backward pass."""
        self._touched = [0.0] * len(self._touched)
        self._counters.begin()
        for flat in self.flats:
            flat.zero_()
        for parameter, view in self._gradients:
            parameter.grad = view

    def undo(self) -> None:
        """Put buffers and counters back to what they were when the step began."""
        self._changes.undo()
        self._counters.undo()

    def rebase(self) -> None:
        """Buffers were replaced from outside: changes count from here."""
        self._changes.rebase()
        self._counters.forget()

    def gather(self) -> None:
        """Take in gradients that were put in place of the views, or taken away, from outside."""
        for parameter, view in self._gradients:
            gradient = parameter.grad
            if gradient is view:
                continue
            if gradient is None:
                view.zero_()
            else:
                view.copy_(gradient.to_dense() if gradient.is_sparse else gradient)
            parameter.grad = view

    def pack(self, weight: float, gradients: float | None = None) -> None:
        """Weigh the gradients, and lay what changed in the buffers beside them with the same weight.

        `gradients`: another weight for these, where the loss was taken over all ranks' samples. Raises ValueError for a
        parameter that was unfrozen meanwhile."""
        self._state.gather()
        self._state.check_frozen()
        self.gather()  # a step may clear gradients itself, and leave others in their place
        if all(self._touched):
            self._used.fill_(1.0)
        else:
            self._used.copy_(torch.tensor(self._touched))
        if self._state.counters:
            self._unusual.copy_(self._counters.unusual())
        for flat in self.flats:
            flat.mul_(weight if gradients is None else gradients)
        if weight:  # else zero, whatever a buffer holds
            self._changes.lay(weight)

    def apart(self) -> bool:
        """Whether counters of ranks may differ, once exchanged: `counters` are to take the maximum then, and `learn`."""
        return bool(self._state.counters) and bool(self._unusual)

    @property
    def counters(self) -> list[Tensor]:
        """Integer buffers, flat."""
        return self._state.counters

    def learn(self) -> None:
        """All ranks hold the same counters."""
        self._counters.learn()

    def unpack(self) -> None:
        """Move the buffers on by the averaged change; take away the gradients of parameters that nobody used."""
        self._changes.take()
        flags = self.used()
        if not all(flags):
            for parameter, used in zip(self._state.parameters, flags, strict=True):
                if not used:
                    parameter.grad = None

    def used(self) -> list[bool]:
        """Which parameters any rank used, once exchanged."""
        return [bool(count) for count in self._used.tolist()]


def refuse_complex(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise ValueError for a complex parameter: sums, norms and averages here are of real numbers."""
    for name, parameter in named:
        if parameter.is_complex():
            raise ValueError(
                f"parameter {name} is {str(parameter.dtype)[6:]}: complex parameters cannot be trained here; hold the real "
                "and the imaginary part as a real one (torch.view_as_complex in the forward pass)"
            )


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

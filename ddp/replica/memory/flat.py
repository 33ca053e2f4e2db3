"""Keeps a model's state in flat tensors, so that an average, a snapshot or a digest is a single operation.

Parameters and buffers become views into one flat tensor per data type. Knows nothing of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ddp.tensor_digest import tensor_digest

Empty = Callable[[str, int, torch.dtype], Tensor]
"""Allocates a flat tensor: (name, number of elements, data type) -> tensor."""
KINDS = ("parameters", "buffers", "optimizer")
"""Kinds of state that an average treats differently."""
_WHOLE = (torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32, torch.int64)
TYPES = frozenset((torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.bool, *_WHOLE))
"""Data types that torch can add and compare, as an average needs. Complex buffers are stored as pairs of these."""


@dataclass(frozen=True)
class Section:
    """A slice of a flat tensor that an average treats alike: one kind (of `KINDS`), one data type."""

    kind: str
    values: Tensor


class FlatState:
    """All parameters and buffers of `model` in flat tensors; the model works on views. Create the optimizer afterwards.

    `tensors` holds one flat tensor per data type, floating-point types first. In each of them parameters come before
    buffers; `sections` are the slices of either. Weights become contiguous. `gather` copies back a buffer that the model
    replaced by another tensor of the same size; a replaced parameter is an error. One of another size is an error, too,
    unless it is not persistent. Complex buffers are stored as pairs of real numbers.

    Raises ValueError for complex, sparse or uninitialised parameters, for types outside `TYPES`, and for parameters that
    share memory with another tensor."""

    def __init__(self, model: nn.Module) -> None:
        refuse_formless(
            (*model.named_parameters(), *model.named_buffers()), "where it is made, before the optimizer is"
        )
        self._slots = list(_slots(model))
        self._device = self._slots[0][2].device if self._slots else torch.device("cpu")
        self.named = list(model.named_parameters())
        refuse_complex(self.named)
        _refuse_narrow((*self.named, *model.named_buffers()))
        _refuse_shared(self.named, model.named_buffers())
        self.parameters = [p for _, p in self.named if p.requires_grad]
        self._frozen = [(name, p) for name, p in self.named if not p.requires_grad]
        self._shapes = {id(tensor): tensor.shape for _, _, tensor in self._slots}
        self._buffers: dict[int, Tensor] = {}
        """id of each buffer -> its view into a flat tensor."""
        self._saved = {name for name, _ in saved_buffers(model)}
        self._made = dict(model.named_buffers())
        self.lay()

    def ordinary(self, name: str, elements: int, dtype: torch.dtype) -> Tensor:
        """Allocate ordinary memory on the model's device: the default for `lay`."""
        return torch.empty(elements, dtype=dtype, device=self._device)

    def lay(self, empty: Empty | None = None, fill: bool = True) -> None:
        """Move all tensors to new flat tensors, allocated by `empty`. With `fill=False` the caller sets the parameters'
        values."""
        self._lay([tensor for _, _, tensor in self._slots], empty or self.ordinary, fill)

    def part(self) -> None:
        """Move the buffers alone to new flat tensors: the parameters stay elsewhere (sharded) until the next `lay`."""
        self._lay([t for _, _, t in self._slots if not isinstance(t, nn.Parameter)], self.ordinary, True)

    def _lay(self, tensors: list[Tensor], empty: Empty, fill: bool) -> None:
        kinds = {_real(tensor) for tensor in tensors}
        dtypes = sorted(kinds, key=lambda dtype: (not dtype.is_floating_point, str(dtype)))
        tensors = sorted(tensors, key=torch.is_complex)  # behind the parameters, which are never complex
        groups = [[tensor for tensor in tensors if _real(tensor) == dtype] for dtype in dtypes]
        self.tensors = [self._flatten(f"state{i}", group, empty, fill) for i, group in enumerate(groups)]
        trained = [sum(t.numel() for t in group if isinstance(t, nn.Parameter)) for group in groups]
        halves = [
            part for flat, count in zip(self.tensors, trained, strict=True) for part in (flat[:count], flat[count:])
        ]
        kinds_of = ("parameters", "buffers") * len(groups)
        self.sections = [Section(kind, part) for kind, part in zip(kinds_of, halves, strict=True) if part.numel()]
        laid = {id(tensor) for tensor in tensors}
        self._lookups = [
            (_holder(module, tensor), name, tensor, tensor.data_ptr() if id(tensor) in laid else None, module)
            for module, name, tensor in self._slots
        ]
        """Where `gather` looks up every tensor in each step, and its address if it is in a flat tensor (kept cheap)."""
        self.counters = [flat for flat in self.tensors if not flat.is_floating_point()]

    def _flatten(self, name: str, group: list[Tensor], empty: Empty, fill: bool) -> Tensor:
        shapes = [self._shapes[id(tensor)] for tensor in group]
        single = sum(shape.numel() for shape, tensor in zip(shapes, group, strict=True) if not tensor.is_complex())
        pairs = sum(shape.numel() for shape in shapes) - single
        gap = single % 2 if pairs else 0  # complex numbers must start at an even element
        flat, at = empty(name, single + gap + 2 * pairs, _real(group[0])), 0
        flat[single : single + gap] = 0
        for tensor, shape in zip(group, shapes, strict=True):
            at += at % 2 if tensor.is_complex() else 0
            view = flat[at : at + shape.numel() * (2 if tensor.is_complex() else 1)]
            at += view.numel()
            view = torch.view_as_complex(view.view(-1, 2)) if tensor.is_complex() else view
            if fill or not isinstance(tensor, nn.Parameter):
                view.copy_(tensor.detach().reshape(-1))
            # `.data` keeps the identity of parameters and buffers, so shared ones stay shared.
            tensor.data = view = view.view(shape)
            if not isinstance(tensor, nn.Parameter):
                self._buffers[id(tensor)] = view
        return flat

    @property
    def bytes(self) -> int:
        """The size of the state in bytes."""
        return sum(flat.nbytes for flat in self.tensors)

    def gather(self) -> None:
        """Ensure that the model still works on the flat tensors. Raises ValueError for a replaced parameter."""
        for holder, name, tensor, address, module in self._lookups:
            present = holder.get(name)
            if present is tensor and (address is None or tensor.data_ptr() == address):
                continue
            if name in module._non_persistent_buffers_set and self._is_other(present, tensor):
                self._lookups = [entry for entry in self._lookups if entry[2] is not tensor]
                continue
            if present is None or isinstance(tensor, nn.Parameter):
                where = f"{type(module).__name__}.{name}"
                remedy = "change it in place (copy_), ranks share its memory; an RNN must not call flatten_parameters()"
                raise ValueError(f"{where} was replaced during training: {remedy}")
            place = self._buffers[id(tensor)]
            if present.numel() != place.numel() or not torch.can_cast(present.dtype, place.dtype):
                raise ValueError(
                    f"buffer {type(module).__name__}.{name} was {_form(place)} and has become {_form(present)} in training, "
                    "which ranks cannot average: keep its size and type"
                )
            place.copy_(present.detach())
            tensor.data = place
            module._buffers[name] = tensor

    def _is_other(self, present: Tensor | None, tensor: Tensor) -> bool:
        """Return whether a buffer has become one of another shape or type, as a cache that grows: then it is each rank's
        own."""
        place = self._buffers[id(tensor)]
        return present is None or present.shape != place.shape or not torch.can_cast(present.dtype, place.dtype)

    def buffers(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of every buffer that ranks have in common, as `model` has it; of one that has become
        another, what it was."""
        present = dict(model.named_buffers())
        for name, made in self._made.items():
            yield name, made if self._is_other(present.get(name), made) else present[name]

    def check_frozen(self) -> None:
        """Raise ValueError for a parameter that was frozen when this state was made and has a gradient now."""
        for name, parameter in self._frozen:
            if parameter.grad is not None and parameter.requires_grad:
                raise ValueError(
                    f"parameter {name} was unfrozen after training began, when gradients that ranks average were laid out: "
                    "unfreeze it where the model is made (what is frozen later is left alone), or average replicas"
                )

    def check_added(self, model: nn.Module) -> None:
        """Raise ValueError for a trainable parameter or a saved buffer that was added to the model after this state was
        made."""
        places = self._shapes.keys()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in places:
                raise ValueError(
                    f"parameter {name} was added to the model after training began, when the optimizer was made and what "
                    "ranks average was laid out: make it where the model is made, and leave it unused until it is wanted; "
                    "values alone are changed in place (copy_)"
                )
        for name, buffer in saved_buffers(model):
            if name not in self._saved and id(buffer) not in places:
                raise ValueError(
                    f"buffer {name} was made after training began, when what ranks average was laid out: register it with a "
                    "tensor of its size where the model is made, or with persistent=False if no result needs it"
                )

    def digest(self) -> str:
        """Return the sha256 of all bits."""
        self.gather()
        return tensor_digest(self.tensors)


@contextmanager
def swapped(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[None]:
    """Swap in the values of the second tensor of every pair for a `with` block, then restore the first."""
    kept = [(tensor, tensor.clone(), other) for tensor, other in pairs]
    for tensor, _, other in kept:
        tensor.copy_(other)
    try:
        yield
    finally:
        for tensor, own, _ in kept:
            tensor.copy_(own)


def sizes(model: nn.Module) -> tuple[int, int]:
    """Return the number of elements of all parameters, and of the frozen ones, whose gradients are not exchanged."""
    sizes = [(p.numel(), p.requires_grad) for p in model.parameters()]
    return sum(size for size, _ in sizes), sum(size for size, trained in sizes if not trained)


def savable(model: nn.Module) -> dict[str, Any]:
    """Return the `state_dict` with `nn.Parameter`s kept. Complex buffers are copied: torch cannot save memory under two
    types."""
    state: dict[str, Any] = model.state_dict(keep_vars=True)
    return {name: v.clone() if isinstance(v, Tensor) and v.is_complex() else v for name, v in state.items()}


def refuse_complex(named: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Raise ValueError for a complex parameter: sums, norms and averages are of real numbers here."""
    for name, parameter in named:
        if parameter.is_complex():
            raise ValueError(
                f"parameter {name} is {str(parameter.dtype)[6:]}: complex parameters cannot be trained here; hold the real "
                "and the imaginary part as a real one (torch.view_as_complex in the forward pass)"
            )


def refuse_formless(named: Iterable[tuple[str, Tensor]], when: str) -> None:
    """Raise ValueError for a tensor that is not dense or not initialised. `when`: clause that says when it needs a
    shape."""
    for name, tensor in named:
        if is_lazy(tensor):
            raise ValueError(f"{name} has no shape yet: pass a batch through the model {when}")
        if tensor.layout is not torch.strided:
            raise ValueError(
                f"{name} is sparse, and ranks average dense ones: register its indices and values as buffers, and put it "
                "together in the forward pass"
            )


def _refuse_narrow(named: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ValueError for a tensor of a type that torch can store but not add, such as float8."""
    for name, tensor in named:
        if not tensor.is_complex() and tensor.dtype not in TYPES:
            raise ValueError(
                f"{name} is {str(tensor.dtype)[6:]}, which cannot be averaged: hold it as bfloat16 and convert it in the "
                "forward pass, or as a plain attribute if it is the same on all ranks and never changes"
            )


def _refuse_shared(named: Iterable[tuple[str, nn.Parameter]], buffers: Iterable[tuple[str, Tensor]]) -> None:
    """Raise ValueError for a parameter that shares memory with another tensor: flattening would separate the two."""
    spans = [(each.data_ptr(), name, each) for name, each in (*named, *buffers) if each.numel()]
    last = {True: (0, "", torch.empty(0)), False: (0, "", torch.empty(0))}
    """End, name and tensor that ends last so far, of the parameters and of the buffers."""
    for start, name, tensor in sorted(spans, key=lambda span: span[0]):
        own = isinstance(tensor, nn.Parameter)
        for end, first, other in (last[True], last[False])[: 1 + own]:
            if start < end and other is not tensor:  # meta tensors start at 0
                raise ValueError(
                    f"{first} and {name} share memory without being one parameter, and would be trained apart: tie them "
                    "by assigning the parameter itself (b.weight = a.weight), or give each its own (clone)"
                )
        extent = 1 + sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.nbytes if extent == tensor.numel() else 1  # others may lie in the gaps of a view
        last[own] = max(last[own], (start and start + size, name, tensor), key=lambda span: span[0])


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype)[6:]} {list(tensor.shape)}"


def _real(tensor: Tensor) -> torch.dtype:
    """Return the tensor's data type, or that of the real and imaginary parts if it is complex."""
    return tensor.dtype.to_real()


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of every buffer that is saved with the model."""
    for path, module in model.named_modules():
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                yield f"{path}.{name}".removeprefix("."), buffer


def _holder(module: nn.Module, tensor: Tensor) -> dict[str, Any]:
    """Return the module's dictionary (`_parameters` or `_buffers`) that holds the tensor."""
    return module._parameters if isinstance(tensor, nn.Parameter) else module._buffers


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """Yield (module, name, tensor) of every parameter, then of every buffer; a shared tensor once."""
    seen: set[int] = set()
    for group in ("_parameters", "_buffers"):
        for module in model.modules():
            for name, tensor in getattr(module, group).items():
                if tensor is not None and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield module, name, tensor

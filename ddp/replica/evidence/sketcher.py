"""Computes sketches of a replica (`ddp.sketches`): of its state, its gradients and its optimizer state.

Weights derive from the run's seed, the tensor's name and the element's index. So all ranks use the same ones, and the
sketches of a tensor's parts add up to that of the whole. Knows nothing of ranks, nor of who compares."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ddp.core.messages.event_parts import OptimizerSketch, SketchGroup
from ddp.permutation import derive
from ddp.replica.memory.flat import FlatState, Section
from ddp.replica.sparse import dense
from ddp.sketches import SHARDS, SUMS, encode

MOST = {"parameters": 18, "buffers": 6}
"""Most groups of each kind; if there are more tensors, neighbours share a group."""
PIECE = 1 << 22
"""Elements on a device that are converted at once."""
_FAST = (torch.float32, torch.float64)

Part = tuple[Tensor, int, int, int]
"""(values, index of their first element in the tensor, key of the tensor, group)."""


class Sharded(Protocol):
    """Elements of a parameter from `start` on, which the sharded optimizer has as a parameter of its own."""

    parameter: nn.Parameter
    start: int
    values: nn.Parameter


class Sketcher:
    """Computes sketches of the model in `state`, which `optimizer` trains. `seed`: the run's."""

    def __init__(self, model: nn.Module, state: FlatState, optimizer: torch.optim.Optimizer, seed: int) -> None:
        self._state = state
        from ddp.replica.evidence import sketch_kernel  # Numba loads slowly: not in the coordinator

        self._kernel = sketch_kernel
        self._table = sketch_kernel.table(derive(seed, "sketch"))
        buffers = [(name, b) for name, b in model.named_buffers() if b.is_floating_point() or b.is_complex()]
        tensors = {"parameters": _filled(state.named), "buffers": _filled(buffers)}
        trained = {
            id(parameter)
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad and group.get("lr", 1.0) != 0
        }
        self._names = {id(tensor): name for name, tensor in chain(*tensors.values())}
        self._keys = {name: derive(seed, "sketch", name) for name in self._names.values()}
        self._groups: dict[str, int] = {}
        self._tensors = tensors
        self.groups: tuple[SketchGroup, ...] = ()
        """What each row of a sketch is of; the same on all ranks."""
        for kind, members in tensors.items():
            for group in _chunks(members, MOST[kind]):
                self._groups |= {name: len(self.groups) for name, _ in group}
                self.groups += (_described(kind, group, trained),)
        self._kept_keys = _Keys(seed)
        self.shards: Sequence[Sharded] = ()
        """This rank's shards of the parameters, if its optimizer has only these."""
        self._laid: dict[str, _Laid] = {}
        self._sections: list[Section] = []

    def model(self) -> str:
        """Return the sketch of the parameters and buffers in the flat state."""
        total = self._zeros()
        for kind in MOST:
            self._add_laid(total, kind)
        return _text(total)

    def step(self) -> StepSum:
        """Begin the sketch of a step's gradients (in the rows of their parameters) and buffers."""
        return StepSum(self)

    def optimizer(self, optimizer: torch.optim.Optimizer) -> OptimizerSketch:
        """Return sketches of the optimizer's state: (key, sketch of one group over all parameters), sorted by key."""
        places: dict[str, int] = {}
        parts: list[Part] = []
        for name, parameter in self._state.named:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and value.is_floating_point():
                    place = places.setdefault(key, len(places))
                    parts.append((dense(value), 0, self._kept_keys[name, key], place))
        for shard in self.shards:
            name, state = self._names[id(shard.parameter)], optimizer.state.get(shard.values, {})
            for key, value in ("", shard.values.detach()), *state.items():
                each = isinstance(value, Tensor) and value.shape == shard.values.shape
                if isinstance(value, Tensor) and value.is_floating_point() and (each or not shard.start):
                    place = places.setdefault(f"{SHARDS} {key}".strip(), len(places))
                    parts.append((value, shard.start if each else 0, self._kept_keys[name, key], place))
        total = np.zeros((len(places), SUMS + 1))
        self._add(total, parts)
        return tuple((key, _text(total[place : place + 1])) for key, place in sorted(places.items()))

    def _zeros(self) -> NDArray[np.float64]:
        return np.zeros((len(self.groups), SUMS + 1))

    def _add_laid(self, total: NDArray[np.float64], kind: str) -> None:
        if self._sections is not self._state.sections:
            self._sections = self._state.sections
            self._laid = {each: self._lay(each) for each in MOST}
        laid = self._laid[kind]
        used = [self._sections[number].values for number in laid.used]
        if all(flat.dtype in _FAST and flat.device.type == "cpu" and flat.is_contiguous() for flat in used):
            bases = np.array([flat.data_ptr() for flat in used], dtype=np.int64)
            widths = np.array([flat.element_size() for flat in used], dtype=np.int64)
            addresses = (bases[laid.sections] + widths[laid.sections] * laid.starts) if used else laid.starts
            doubles = (widths == 8)[laid.sections] if used else np.zeros(0, dtype=np.bool_)
            zeros = np.zeros_like(laid.starts)
            self._kernel.add(addresses, doubles, zeros, laid.sizes, laid.keys, laid.groups, self._table, total)
        else:
            self._add(total, list(laid.parts(used)))

    def _lay(self, kind: str) -> _Laid:
        entries = []
        numbers = [n for n, section in enumerate(self._sections) if section.kind == kind]
        for name, tensor in self._tensors[kind] if numbers else ():  # sharded parameters have no address
            for place, number in enumerate(numbers):
                flat = self._sections[number].values
                at = tensor.data_ptr() - flat.data_ptr()
                if flat.is_floating_point() and 0 <= at < flat.nbytes:
                    size = tensor.numel() * (2 if tensor.is_complex() else 1)
                    entries.append((place, at // flat.element_size(), size, self._keys[name], self._groups[name]))
        return _Laid(numbers, entries)

    def _add(self, total: NDArray[np.float64], parts: Sequence[Part]) -> None:
        """Add tensors on any device and of any type to the sums."""
        near: list[Part] = []
        for values, start, key, group in parts:
            if values.device.type == "cpu":
                values = values if values.dtype in _FAST else values.float()
                near.append((values.contiguous(), start, key, group))
            else:
                total[group] += _elsewhere(values, start, key, self._table)
        if near:
            tensors, starts, keys, groups = zip(*near, strict=True)
            addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
            doubles = np.array([tensor.dtype == torch.float64 for tensor in tensors], dtype=np.bool_)
            sizes = np.array([tensor.numel() for tensor in tensors], dtype=np.int64)
            numbers = np.array(starts, dtype=np.int64), sizes, np.array(keys, dtype=np.uint64)
            self._kernel.add(addresses, doubles, *numbers, np.array(groups, dtype=np.int64), self._table, total)


class _Keys(dict[tuple[str, str], int]):
    """Caches (name of the parameter, key of the optimizer's state) -> key of the weights."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __missing__(self, names: tuple[str, str]) -> int:
        self[names] = derive(self._seed, "sketch", "optimizer", *names)
        return self[names]


class StepSum:
    """Accumulates the sketch of one step's gradients as they arrive."""

    def __init__(self, sketcher: Sketcher) -> None:
        self._sketcher, self._total = sketcher, sketcher._zeros()

    def add(self, gradients: Iterable[tuple[Tensor, Tensor | None, int]]) -> None:
        """Add (parameter, its gradient or a part of it or None, index of that part's first element) of several
        parameters."""
        own = self._sketcher
        parts = []
        for parameter, gradient, start in gradients:
            if gradient is not None and parameter.numel():
                name = own._names[id(parameter)]
                parts.append((dense(gradient), start, own._keys[name], own._groups[name]))
        own._add(self._total, parts)

    def text(self, buffers: bool = True) -> str:
        """Return the sketch; with `buffers` it includes the model's current buffers."""
        if buffers:
            self._sketcher._state.gather()
            self._sketcher._add_laid(self._total, "buffers")
        return _text(self._total)


class _Laid:
    """The layout of the tensors of one kind in the sections of a flat state."""

    def __init__(self, used: Sequence[int], entries: Sequence[tuple[int, int, int, int, int]]) -> None:
        self.used = used
        """Indices of the sections."""
        columns = list(zip(*entries, strict=True)) or [()] * 5
        self.sections, self.starts, self.sizes = (np.array(column, dtype=np.int64) for column in columns[:3])
        self.keys, self.groups = np.array(columns[3], dtype=np.uint64), np.array(columns[4], dtype=np.int64)

    def parts(self, flats: Sequence[Tensor]) -> Iterator[Part]:
        """Yield the parts, given the sections' values."""
        columns = (self.sections, self.starts, self.sizes, self.keys, self.groups)
        for section, start, size, key, group in zip(*(column.tolist() for column in columns), strict=True):
            yield flats[section][start : start + size], 0, key, group


def _filled(named: Iterable[tuple[str, Tensor]]) -> list[tuple[str, Tensor]]:
    return [(name, tensor) for name, tensor in named if tensor.numel()]


def _chunks(members: Sequence[tuple[str, Tensor]], most: int) -> Iterator[Sequence[tuple[str, Tensor]]]:
    """Yield groups of neighbours of one data type; each tensor alone if there are at most `most`."""
    size = -(-len(members) // most)
    start = 0
    while start < len(members):
        stop = start + 1
        while stop < min(start + size, len(members)) and members[stop][1].dtype == members[start][1].dtype:
            stop += 1
        yield members[start:stop]
        start = stop


def _described(kind: str, group: Sequence[tuple[str, Tensor]], trained: set[int]) -> SketchGroup:
    first, last = group[0], group[-1]
    name = first[0] if first is last else f"{first[0]} to {last[0]}"
    elements = sum(tensor.numel() for _, tensor in group)
    moves = any(id(tensor) in trained for _, tensor in group)
    return SketchGroup(name, kind, elements, str(first[1].dtype.to_real()).removeprefix("torch."), moves)


def _elsewhere(values: Tensor, start: int, key: int, places: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the sums and the sum of squares of a tensor on another device."""
    from ddp.replica.evidence.sketch_kernel import BLOCK, block_weights

    weights = torch.from_numpy(places).to(values.device).double()
    total = torch.zeros(SUMS + 1, dtype=torch.float64, device=values.device)
    flat = values.detach().reshape(-1)
    for first in range(0, values.numel(), PIECE):
        piece = flat[first : first + PIECE].double()
        total[SUMS] += torch.dot(piece, piece)
        at = (start + first) % BLOCK
        padded = torch.nn.functional.pad(piece, (at, -(at + piece.numel()) % BLOCK)).view(-1, BLOCK)
        numbers = (start + first) // BLOCK + np.arange(padded.shape[0])
        total[:SUMS] += (padded @ weights.T * torch.from_numpy(block_weights(key, numbers)).to(values.device)).sum(0)
    result: NDArray[np.float64] = total.cpu().numpy()
    return result


def _text(total: NDArray[np.float64]) -> str:
    with np.errstate(invalid="ignore"):
        return encode(total[:, :SUMS], np.sqrt(total[:, SUMS]))

"""`record_scalar`: lets a train step record numbers. They are collected here and sent with the rank's reports.

Nothing is read from the device until a report is due, so recording causes no synchronisation."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddp.core.values.frozen import finite

MOST_NAMES = 64
"""Most different names in a run: recorded scalars are sent with every report."""
LONGEST = 100
"""Most characters of a name."""
_FOLD = 1024
"""Tensors kept before they are added up."""

_TOGETHER, _MOST_BYTES = 64, 1 << 20
"""Deferred sums, and bytes of their tensors, before they are computed: cheap for a small model's step."""

_open = threading.local()


def record_scalar(name: str, value: float | Tensor) -> None:
    """Record a number of this step, such as an accuracy: its mean by epoch is in `EpochMetrics` and `metrics.json`.

    Call it inside a train step, as often as needed; each call has the same weight in the mean over all ranks. `value` is a
    number or a tensor of one element, on any device. Raises RuntimeError outside of a train step; ValueError for a name that
    is not printable text of 1 to 100 characters, for more than 64 names, and for a value that is not one real number.
    """
    scalars: Scalars | None = getattr(_open, "scalars", None)
    if scalars is None:
        raise RuntimeError(
            "record_scalar was called outside of a train step (in an evaluation, a callback, another thread or process): "
            "call it in the function that computes the training loss"
        )
    scalars.add(name, value)


def record_sum(name: str, count: int, total: Callable[..., Tensor], *tensors: Tensor) -> None:
    """Record a sum over `count` samples of this step that is cheaper to compute for many steps at once. When a report is
    due, `total` is called with the tensors of many calls, concatenated along the first dimension. The record shows the
    mean.

    The tensors must not change in the meantime. Does nothing outside of a train step, as evaluation calls the same
    functions."""
    scalars: Scalars | None = getattr(_open, "scalars", None)
    if scalars is not None:
        scalars.add_later(name, count, total, tensors)


class _Later(NamedTuple):
    """One call of `record_sum`."""

    samples: int
    total: Callable[..., Tensor]
    tensors: tuple[Tensor, ...]


@dataclass
class _Sum:
    total: float = 0.0
    calls: int = 0
    tensors: list[Tensor] = field(default_factory=list)
    later: list[_Later] = field(default_factory=list)
    later_bytes: int = 0

    def put_off(self, entry: _Later) -> None:
        """Defer a sum."""
        self.later.append(entry)
        self.later_bytes += sum(tensor.nbytes for tensor in entry.tensors)
        self.calls += entry.samples
        if len(self.later) >= _TOGETHER or self.later_bytes >= _MOST_BYTES:
            self.take()

    def take(self) -> None:
        """Compute the deferred sums."""
        if self.later:
            with torch.no_grad():
                joined = [torch.cat(column) for column in zip(*(entry.tensors for entry in self.later), strict=True)]
                self.tensors.append(self.later[0].total(*joined).to(torch.float64))
            self.later, self.later_bytes = [], 0

    def fold(self) -> Tensor:
        """Return the sum of the tensors, on their device, and forget them."""
        folded = torch.stack(self.tensors).sum()
        self.tensors = []
        return folded


class Scalars:
    """What the steps of one rank recorded since the last report. A context manager: entered while a pass of a step runs."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._sums: dict[str, _Sum] = {}
        self._step: list[tuple[str, float | Tensor | _Later]] = []
        """Entries of the last step, which may still be undone."""

    def __enter__(self) -> Scalars:
        _open.scalars = self
        return self

    def __exit__(self, *exc: object) -> None:
        _open.scalars = None

    def add(self, name: str, value: Any) -> None:
        """Record one value. Raises ValueError."""
        known = self._known(name)
        self._step.append((known, (_scalar if isinstance(value, Tensor) else _number)(known, value)))

    def add_later(self, name: str, count: int, total: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> None:
        """Record a sum that is computed later. Raises ValueError."""
        self._step.append(
            (self._known(name), _Later(count, total, tuple(t.detach() if t.requires_grad else t for t in tensors)))
        )

    @property
    def recorded(self) -> bool:
        """Whether the last step has called `record_scalar`."""
        return any(not isinstance(value, _Later) for _, value in self._step)

    def undo(self) -> None:
        """Forget the entries of the last step."""
        self._step.clear()

    def begin(self) -> None:
        """Begin a step: the entries of the one before become final."""
        for name, value in self._step:
            entry = self._sums.setdefault(name, _Sum())
            if isinstance(value, _Later):
                entry.put_off(value)
                continue
            if isinstance(value, Tensor):
                entry.tensors.append(value)
                if len(entry.tensors) >= _FOLD:
                    entry.tensors = [entry.fold()]
            else:
                entry.total += value
            entry.calls += 1
        self._step.clear()

    def _known(self, name: Any) -> str:
        if not isinstance(name, str) or not 1 <= len(name) <= LONGEST or not name.isprintable():
            raise ValueError(f"record_scalar: a name is printable text of 1 to {LONGEST} characters, not {name!r:.120}")
        if name not in self._names and len(self._names) == MOST_NAMES:
            raise ValueError(
                f"record_scalar: {name!r} would be one name more than the {MOST_NAMES} that a run may have; "
                "leave numbers of steps or samples out of names"
            )
        self._names.add(name)
        return name

    def drain(self) -> tuple[tuple[str, float | None, int], ...]:
        """Return (name, sum, calls) since the last call, sorted by name; a sum that is not finite is None."""
        self.begin()
        sums, self._sums = self._sums, {}
        for entry in sums.values():
            entry.take()
        folded = {name: entry.fold() for name, entry in sums.items() if entry.tensors}
        device = next(iter(folded.values())).device if folded else None
        read = torch.stack([total.to(device) for total in folded.values()]).tolist() if folded else []
        for name, total in zip(folded, read, strict=True):
            sums[name].total += total
        return tuple((name, finite(sums[name].total), sums[name].calls) for name in sorted(sums))


def _scalar(name: str, value: Tensor) -> Tensor:
    if value.numel() != 1 or value.is_complex():
        raise ValueError(f"record_scalar: {name!r} is a tensor of shape {tuple(value.shape)}; give one real number")
    return value.detach().reshape(()).to(torch.float64, copy=True)


def _number(name: str, value: Any) -> float:
    try:
        if not isinstance(value, (str, bytes, bytearray)):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"record_scalar: {name!r} is {value!r:.120}; give one real number, or a tensor of one element")

"""Compares the files that a run delivers, final states and checkpoints, with the model that it trained. Must not use
the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from bench.audit.audit_input import AuditOrder
from bench.audit.kept_files import PARAMETERS, Name, Parts, raw
from bench.audit.state_digest import digest
from bench.results.audit_file import AuditItem
from ddp import regular_files

LARGEST = 1 << 28
"""Most bytes of a file that is read."""


def delivered(order: AuditOrder, ends: Mapping[int, Parts]) -> Iterator[AuditItem]:
    """Compare each rank's final state file, and the model of the last checkpoint, with the kept model."""
    files = [(rank, order.kept / f"state-{rank}.pt") for rank in sorted(ends)]
    for rank, path in files:
        if path.is_file():
            line = _apart(_read(path), ends[rank], whole=bool(order.model))
            yield _item(line and f"the final state: {line}", rank)
    places = [] if order.checkpoints is None else sorted(order.checkpoints.glob("[0-9]*/model.pt"))
    if ends and places:
        part = _read(places[-1])
        other = _other_model(part, ends[min(ends)])
        if other is not None:
            yield _item(other, None)
        yield from _otherwise(order, places[-1].parent, part)


def _otherwise(order: AuditOrder, folder: Path, model: Mapping[str, Any]) -> Iterator[AuditItem]:
    """Compare the files of a checkpoint with the state that their ranks had when they wrote them."""
    index = int(folder.name)
    wanted = order.saved.get((index, None))
    if wanted is not None and "tensors" in model and _digest(model["tensors"]) != wanted:
        yield _item(f"the model in checkpoint {index} differs from the one to be saved", None)
    for rank in range(order.world_size):
        part = _read(folder / f"rank-{rank}.pt") if (index, rank) in order.saved else {}
        state: Mapping[Any, Mapping[str, Any]] = part.get("optimizer", {}).get("state", {})
        own = [value for entry in state.values() for value in entry.values() if isinstance(value, Tensor)]
        if part and _digest(own) != order.saved[index, rank]:
            yield _item(f"the optimizer in checkpoint {index} has a different state from the one to be saved", rank)


def _digest(tensors: Iterable[Tensor]) -> str:
    hashed = hashlib.sha256()
    for tensor in tensors:
        hashed.update(raw(tensor))
    return hashed.hexdigest()


def _item(line: str, rank: int | None) -> AuditItem:
    return AuditItem(what="delivered", outcome="different" if line else "equal", line=line, rank=rank)


def _read(path: Path) -> Mapping[str, Any]:
    """Return the content of a file; {} if it is too large, or has objects of the user's own classes."""
    with suppress(OSError, UnpicklingError), regular_files.opened(path, LARGEST) as file:
        state: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state
    return {}


def _apart(state: Mapping[str, Any], end: Parts, whole: bool) -> str:
    """Name the tensor of a state that differs from the final one; with `whole`, also a missing one; empty: none."""
    if not state:
        return ""
    for name, parts in end.items():
        value = state.get(name.name)
        if value is None and name.kind == PARAMETERS and whole:
            return f"{name} is missing"
        if not isinstance(value, Tensor) or len(parts) > 1 or parts[0].every > 1:
            continue
        if value.shape != parts[0].shape or hashlib.sha256(raw(value.detach())).hexdigest() != parts[0].sha256:
            return f"{name} differs from what the rank ended with"
    return ""


def _other_model(part: Mapping[str, Any], end: Parts) -> str | None:
    """Return a message if the `state_dict` of a checkpoint differs from the tensors that a resumed run loads; empty:
    they agree; None: the `state_dict` is incomplete, as some buffers are not saved."""
    named, tensors = part.get("state_dict", {}), part.get("tensors", [])
    if not all(isinstance(named.get(name.name), Tensor) for name in end):
        return None
    own: dict[Name, Tensor] = {name: named[name.name] for name in end}
    equal = digest(own) == _digest(tensors)
    return "" if equal else "the checkpoint's state_dict differs from the model that a resumed run loads"

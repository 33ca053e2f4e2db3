"""Holds what a run hands over, files with the model, against the model that it trained. Must not use the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from bench.audit.kept import PARAMETERS, Name, Parts, raw
from bench.audit.order import AuditOrder
from bench.audit.state_digest import digest
from bench.results.audit_file import AuditItem
from ddp import regular_files

LARGEST = 1 << 28
"""Bytes of a file that is read."""


def delivered(order: AuditOrder, ends: Mapping[int, Parts]) -> Iterator[AuditItem]:
    """Compare the final state that each rank left, and the model of the last checkpoint that can be resumed from."""
    files = [(rank, order.kept / f"state-{rank}.pt") for rank in sorted(ends)]
    for rank, path in files:
        if path.is_file():
            line = _apart(_read(path), ends[rank], whole=bool(order.model))
            yield _item(line and f"the final state: {line}", rank)
    places = [] if order.checkpoints is None else sorted(order.checkpoints.glob("[0-9]*/model.pt"))
    if ends and places:
        other = _other_model(_read(places[-1]), ends[min(ends)])
        if other is not None:
            yield _item(other, None)


def _item(line: str, rank: int | None) -> AuditItem:
    return AuditItem(what="delivered", outcome="different" if line else "equal", line=line, rank=rank)


def _read(path: Path) -> Mapping[str, Any]:
    """Return what a file holds; nothing of a large one, nor of one with objects of the user's own classes."""
    with suppress(OSError, UnpicklingError), regular_files.opened(path, LARGEST) as file:
        state: Mapping[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        return state
    return {}


def _apart(state: Mapping[str, Any], end: Parts, whole: bool) -> str:
    """Say which tensor of a state is another than the module had at the end; `whole`: or is not there."""
    if not state:
        return ""
    for name, parts in end.items():
        value = state.get(name.name)
        if value is None and name.kind == PARAMETERS and whole:
            return f"{name} is not in it"
        if not isinstance(value, Tensor) or len(parts) > 1 or parts[0].every > 1:
            continue
        if value.shape != parts[0].shape or hashlib.sha256(raw(value.detach())).hexdigest() != parts[0].sha256:
            return f"{name} is another than the rank ended with"
    return ""


def _other_model(part: Mapping[str, Any], end: Parts) -> str | None:
    """Say that the `state_dict` of a checkpoint is another model than a run that resumes from it has; None: it has not all
    of it, as some buffers are not saved."""
    named, tensors = part.get("state_dict", {}), part.get("tensors", [])
    if not all(isinstance(named.get(name.name), Tensor) for name in end):
        return None
    own: dict[Name, Tensor] = {name: named[name.name] for name in end}
    resumed = hashlib.sha256(b"".join(bytes(raw(tensor)) for tensor in tensors)).hexdigest()
    return "" if digest(own) == resumed else "the checkpoint's state_dict is another model than is resumed from it"

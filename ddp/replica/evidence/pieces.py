"""Named pieces of a replica's state (parameters, buffers, optimizer state), and the files that hold them.

A file contains the values of its pieces, one after the other; then JSON that describes them; and in its last eight bytes
(little-endian) the length of the JSON. Does not know which states are wanted, nor why."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from ddp.replica.memory.flat import KINDS, FlatState

MOST = 1 << 14
"""Most values of a piece to write where it is sampled, at equal distances."""
ALIGNED = 16
"""Alignment of values in a file, bytes, so that they can be used without a copy."""
PARAMETERS, BUFFERS, OPTIMIZER = KINDS
Entry = dict[str, Any]
"""A file's description of a piece: kind, name, key, start, shape, dtype; `every`: 1 of so many values is stored; and `at`
and `bytes`, where they are stored, or `sha256` instead of them."""


@dataclass(frozen=True)
class StatePiece:
    """Values of one tensor of the state in row-major order, beginning with its element `start`."""

    kind: str
    """One of `ddp.replica.memory.flat.KINDS`."""
    name: str
    """Name of the parameter or buffer."""
    values: Tensor
    shape: tuple[int, ...]
    """Shape of the whole tensor."""
    key: str = ""
    """Key in the optimizer's state."""
    start: int = 0
    shared: bool = False
    """Whether other ranks hold the same values at this point."""


def of_model(model: nn.Module, state: FlatState, shared: bool) -> Iterator[StatePiece]:
    """Iterate over parameters and buffers."""
    for name, parameter in model.named_parameters():
        yield StatePiece(PARAMETERS, name, parameter.detach(), tuple(parameter.shape), shared=shared)
    yield from of_buffers(model, state, shared)


def of_buffers(model: nn.Module, state: FlatState, shared: bool) -> Iterator[StatePiece]:
    """Iterate over the buffers that ranks have in common by `state`, including those that are not saved."""
    for name, buffer in state.buffers(model):
        yield StatePiece(BUFFERS, name, buffer.detach(), tuple(buffer.shape), shared=shared)


def of_optimizer(named: Iterable[tuple[str, Tensor]], optimizer: Any, shared: bool) -> Iterator[StatePiece]:
    """Iterate over an optimizer's state of the named parameters."""
    for name, parameter in named:
        for key, value in tensors_of(optimizer.state.get(parameter, {})):
            value = (
                value.detach().to_dense() if value.is_sparse else value.detach()
            )  # such as momenta of sparse gradients
            yield StatePiece(OPTIMIZER, name, value, tuple(value.shape), key, shared=shared)


def tensors_of(state: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Iterate over an optimizer's state of one parameter; numbers become tensors of one element."""
    for key, value in state.items():
        if isinstance(value, (bool, int, float)):
            value = torch.tensor(value, dtype=torch.float64)
        if isinstance(value, Tensor):
            yield key, value


class PieceFile:
    """A file of pieces being written. As a context manager it removes the file if an exception is raised. Raises
    OSError."""

    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank, self._at = path, rank, 0
        self._file = path.open("wb", buffering=1 << 16)

    def lay(self, pieces: Iterable[StatePiece], whole: bool = True) -> list[Entry]:
        """Write pieces (with `whole=False` only a sample of the large ones); return their descriptions. Of a piece that all
        ranks share, only rank 0 writes the values; the others give the digest."""
        return [self._laid(piece, whole) for piece in pieces]

    def _laid(self, piece: StatePiece, whole: bool) -> Entry:
        flat = piece.values.reshape(-1)
        every = 1 if whole else max(-(-flat.numel() // MOST), 1)
        entry: Entry = {"kind": piece.kind, "name": piece.name, "key": piece.key, "start": piece.start}
        entry["shape"], entry["dtype"], entry["every"] = piece.shape, _type_name(flat.dtype), every
        if piece.shared and self._rank:
            entry["sha256"] = digest(flat)
            return entry
        values = _bytes(flat if every == 1 else flat[::every])
        entry["at"], entry["bytes"] = self._at, len(values)
        self._write(values)
        if len(values) % ALIGNED:
            self._write(bytes(-len(values) % ALIGNED))
        return entry

    def _write(self, values: Any) -> None:
        self._file.write(values)
        self._at += len(values)

    def close(self, about: dict[str, Any]) -> Path:
        """Write the description of the pieces and close the file; return its path."""
        text = msgspec.json.encode(about)
        self._write(text)
        self._write(len(text).to_bytes(8, "little"))
        self._file.close()
        return self._path

    def __enter__(self) -> PieceFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with suppress(OSError):  # the buffered rest does not fit either
                self._file.close()
            self._path.unlink(missing_ok=True)


@cache
def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _bytes(flat: Tensor) -> Any:
    """Return the bytes of a flat tensor, without a copy where it is contiguous and on the CPU."""
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    if not flat.numel():
        return b""
    here = flat if flat.device.type == "cpu" else flat.cpu()
    return here.contiguous().view(torch.uint8).numpy().data


def recorded(path: Path) -> tuple[str, int, str]:
    """Return name, size and sha256 of a file, as records have them. Raises OSError."""
    with path.open("rb") as file:
        return path.name, os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()


def digest(values: Tensor) -> str:
    """Return the sha256 of a tensor's bytes."""
    return hashlib.sha256(_bytes(values.reshape(-1))).hexdigest()

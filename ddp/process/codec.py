"""One text form for events and commands: a JSON object with its `type`. The control channel and `events.jsonl` share it.

No pickle: what arrives is checked field by field against the dataclass it claims to be.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from ddp.core import commands, events, run_bounds
from ddp.core.errors import ProtocolError

_EVENTS = events.Event | events.PolicyEvent | events.PolicyRecord | events.Slice | events.Memory | events.Merged
_BOUNDS = run_bounds.RunHeader | run_bounds.Launched | run_bounds.RunEnd
Record = _EVENTS | events.Resumed | _BOUNDS | commands.Command
COMMANDS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(commands.Command)}
EVENTS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Record) if cls.__name__ not in COMMANDS}


class MeasuredSlice(msgspec.Struct, tag_field="type", tag="Slice", gc=False):
    """A `Slice` where there are many: it is read in half the time and written in a tenth. A small model's step has four and
    takes half a millisecond."""

    at: float
    rank: int
    kind: str
    seconds: float
    seq: int = 0
    bytes: int = 0


_encoder = msgspec.json.Encoder()
_decoders = {name: msgspec.json.Decoder(cls) for name, cls in (EVENTS | COMMANDS).items()}
_decoders |= {"Share": _decoders["SendState"], "Adopt": _decoders["LoadState"]}  # as earlier versions recorded them
_PLAN = ((b'"takeover":', b'"rebalance":'),)
_RENAMED = {"Plan": _PLAN, "Publish": (*_PLAN, (b'"books":', b'"coordinator":'))}
"""Fields as earlier versions recorded them, and their names now."""


_heads = {cls: b'{"type":"%b",' % name.encode() for name, cls in (EVENTS | COMMANDS).items()}
_HEAD = b'{"type":"'
SLICE_HEAD = _heads[events.Slice]
"""How the line of a slice begins, as `encode` writes it."""
_measured = msgspec.json.Decoder(MeasuredSlice)


class _Kind(msgspec.Struct):
    """The part of a line that tells how to read it."""

    type: str = ""


class _Stamp(msgspec.Struct):
    """The time of a recorded line."""

    at: float


_kind, _stamp = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(_Stamp)


def encode(record: Record, at: float | None = None) -> bytes:
    """Return one line without its end. `at` stamps a command, which carries no time of its own, for the record."""
    head = _heads[type(record)]
    if at is not None and not hasattr(record, "at"):
        head = b'%b"at":%b,' % (head, _encoder.encode(at))
    fields = _encoder.encode(record)
    return head + fields[1:] if len(fields) > 2 else head[:-1] + b"}"


def decode(line: bytes | str) -> Any:
    """Return the event or command in `line`. Raises ProtocolError that says what is wrong with it."""
    try:
        kind = _type(line)
        return _decoders[kind].decode(_renamed(line, kind))
    except KeyError as error:
        raise ProtocolError(f"message without a known type ({error}): {line[:200]!r}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {line[:200]!r}") from None


def decode_all(lines: Sequence[bytes]) -> list[Any]:
    """Return what is in each line, as `decode` does; slices, which are by far the most, in a shorter way."""
    read = _decoders[events.Slice.__name__].decode
    try:
        return [read(line) if line.startswith(SLICE_HEAD) else decode(line) for line in lines]
    except (msgspec.MsgspecError, ValueError):
        return [decode(line) for line in lines]  # which says what is wrong


def decode_slice(line: bytes) -> MeasuredSlice:
    """Return the slice in a line that begins with `SLICE_HEAD`. Raises ProtocolError, as `decode`."""
    try:
        return _measured.decode(line)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {line[:200]!r}") from None


def _type(line: bytes | str) -> str:
    """Return the type that a line tells: as `encode` writes it, or wherever it stands."""
    if isinstance(line, bytes) and line.startswith(_HEAD):
        return line[len(_HEAD) : line.index(b'"', len(_HEAD))].decode()
    return _kind.decode(line).type


def _renamed(line: bytes | str, kind: str) -> bytes | str:
    """Return `line` with the names that its fields have now."""
    for old, new in _RENAMED.get(kind, ()):
        line = line.encode() if isinstance(line, str) else line
        line = line.replace(old, new)
    return line


def body(line: bytes | str) -> dict[str, Any]:
    """Return all that a recorded line tells, by the names of now; its type and time too. Raises ProtocolError."""
    try:
        return msgspec.json.decode(_renamed(line, _kind.decode(line).type), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {line[:200]!r}") from None


def stamp(line: bytes | str) -> float:
    """Return the time of a recorded line, seconds. Raises ProtocolError if it has none."""
    try:
        return _stamp.decode(line).at
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"not a recorded line ({error}): {line[:200]!r}") from None

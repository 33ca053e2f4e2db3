"""The text form of events and commands: a JSON object with its `type`, in the control channel and in `events.jsonl`.

No pickle: each field of a message is checked against the class that its type names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

import msgspec

from ddp.core.errors import ProtocolError
from ddp.core.messages import commands, events, run_bounds
from ddp.core.messages.measurements import Slice

_EVENTS = events.Event | events.PolicyEvent | events.PolicyRecord | events.Slice | events.Memory | events.Merged
_BOUNDS = run_bounds.RunHeader | run_bounds.Launched | run_bounds.RunEnd
Record = _EVENTS | events.Resumed | _BOUNDS | commands.Command
COMMANDS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(commands.Command)}
EVENTS: dict[str, type[Any]] = {cls.__name__: cls for cls in get_args(Record) if cls.__name__ not in COMMANDS}

_encoder = msgspec.json.Encoder()
_decoders = {name: msgspec.json.Decoder(cls) for name, cls in (EVENTS | COMMANDS).items()}
_decoders |= {"Share": _decoders["SendState"], "Adopt": _decoders["LoadState"]}  # names in earlier versions
_PLAN = ((b'"takeover":', b'"rebalance":'),)
_RENAMED = {"Plan": _PLAN, "Publish": (*_PLAN, (b'"books":', b'"coordinator":'))}
"""Field names in earlier versions, and the present ones, by type of record."""

_heads = {cls: b'{"type":"%b",' % name.encode() for name, cls in (EVENTS | COMMANDS).items()}
_timed = {cls for cls in _heads if "at" in cls.__match_args__}
_HEAD = b'{"type":"'
SLICE_HEAD = _heads[Slice]
"""How `encode` begins the line of a slice."""
_read_slice = msgspec.json.Decoder(Slice).decode
SHOWN = 100
"""Bytes of a line that an error shows."""


class _Kind(msgspec.Struct):
    """The field of a line that tells its type."""

    type: str = ""


class _Stamp(msgspec.Struct):
    """The field of a line that tells its time."""

    at: float


_kind, _stamp = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(_Stamp)


def encode(record: Record, at: float | None = None) -> bytes:
    """Return one line without its newline. `at`: time to record for a command, which has none of its own."""
    head = _heads[type(record)]
    if at is not None and type(record) not in _timed:
        head = b'%b"at":%b,' % (head, _encoder.encode(at))
    fields = _encoder.encode(record)
    return head + fields[1:] if len(fields) > 2 else head[:-1] + b"}"


def encode_slices(slices: Sequence[Slice]) -> bytes:
    """Return the lines of slices, in a third of the time of `encode` for each."""
    # No text in a slice can contain this: in JSON, its quotes would follow a backslash.
    return _encoder.encode_lines(slices).replace(b'{"at":', SLICE_HEAD + b'"at":')


def decode(line: bytes | str) -> Any:
    """Return the event or command in `line`. Raises ProtocolError that describes the defect."""
    try:
        kind = _type(line)
        return _decoders[kind].decode(_renamed(line, kind))
    except KeyError as error:
        raise ProtocolError(f"message without a known type ({error}): {_shown(line)}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {_shown(line)}") from None


def _shown(line: bytes | str) -> str:
    """Return the begin of a line for an error; of bytes that are no text, one mark each."""
    text = line[:SHOWN].decode("utf-8", "replace") if isinstance(line, bytes) else line[:SHOWN]
    return repr("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))


def decode_all(lines: Sequence[bytes]) -> list[Any]:
    """Decode several lines as `decode` does, but faster for slices, which are by far the most."""
    try:
        return [_read_slice(line) if line.startswith(SLICE_HEAD) else decode(line) for line in lines]
    except (msgspec.MsgspecError, ValueError):
        return [decode(line) for line in lines]  # raises an error that describes the defect


def decode_slice(line: bytes) -> Slice:
    """Return the slice in a line that begins with `SLICE_HEAD`. Raises ProtocolError, as `decode`."""
    try:
        return _read_slice(line)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {_shown(line)}") from None


def _type(line: bytes | str) -> str:
    """Return the type of a line, fast if `encode` wrote it."""
    if isinstance(line, bytes) and line.startswith(_HEAD):
        return line[len(_HEAD) : line.index(b'"', len(_HEAD))].decode()
    return _kind.decode(line).type


def _renamed(line: bytes | str, kind: str) -> bytes | str:
    """Return `line` with its fields renamed to their present names."""
    for old, new in _RENAMED.get(kind, ()):
        line = line.encode() if isinstance(line, str) else line
        line = line.replace(old, new)
    return line


def body(line: bytes | str) -> dict[str, Any]:
    """Return all fields of a recorded line by their present names, with its type and time. Raises ProtocolError."""
    try:
        return msgspec.json.decode(_renamed(line, _kind.decode(line).type), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {_shown(line)}") from None


def stamp(line: bytes | str) -> float:
    """Return the time of a recorded line, seconds. Raises ProtocolError if it has none."""
    try:
        return _stamp.decode(line).at
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"not a recorded line ({error}): {_shown(line)}") from None

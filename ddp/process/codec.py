"""One text form for events and commands: a JSON object with its `type`. The control channel and `events.jsonl` share it.

No pickle: what arrives is checked field by field against the dataclass it claims to be.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ddp.core import commands, events
from ddp.core.errors import ProtocolError

Record = (
    events.Event
    | events.PolicyEvent
    | events.PolicyRecord
    | events.Slice
    | events.Memory
    | events.Merged
    | events.Launched
    | events.Resumed
    | commands.Command
)

EVENTS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        events.Ready,
        events.Progress,
        events.Snapshot,
        events.Reduced,
        events.Averaged,
        events.AverageFailed,
        events.Shared,
        events.Evaluated,
        events.Saved,
        events.Alive,
        events.Finished,
        events.Failed,
        events.Lost,
        events.Tick,
        events.Slice,
        events.Memory,
        events.RoundClosed,
        events.Merged,
        events.GuardVerdict,
        events.Launched,
        events.Resumed,
    )
}
COMMANDS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        commands.Train,
        commands.Pace,
        commands.Join,
        commands.Average,
        commands.SendState,
        commands.LoadState,
        commands.Reduce,
        commands.Apply,
        commands.Evaluate,
        commands.Save,
        commands.Publish,
        commands.Stop,
        commands.Drop,
        commands.Abort,
        commands.Plan,
    )
}
_TYPES = EVENTS | COMMANDS
_encoder = msgspec.json.Encoder()
_decoders = {name: msgspec.json.Decoder(cls) for name, cls in _TYPES.items()}
_decoders |= {"Share": _decoders["SendState"], "Adopt": _decoders["LoadState"]}  # as earlier versions recorded them


class _Kind(msgspec.Struct):
    """What tells how to read a line; the rest of it is passed over."""

    type: str = ""


class _Stamp(msgspec.Struct):
    """Of a recorded line."""

    at: float


_kind, _stamp = msgspec.json.Decoder(_Kind), msgspec.json.Decoder(_Stamp)


def encode(record: Record, at: float | None = None) -> bytes:
    """One line without its end. `at` stamps a command, which carries no time of its own, for the record."""
    body: dict[str, Any] = {"type": type(record).__name__}
    if at is not None:
        body["at"] = at
    body.update(msgspec.to_builtins(record))
    return _encoder.encode(body)


def decode(line: bytes | str) -> Any:
    """The event or command that `line` holds. Raises ProtocolError that says what is wrong with it."""
    try:
        return _decoders[_kind.decode(line).type].decode(line)
    except KeyError as error:
        raise ProtocolError(f"message without a known type ({error}): {line[:200]!r}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {line[:200]!r}") from None


def stamp(line: bytes | str) -> float:
    """The time of a recorded line, seconds. Raises ProtocolError if it has none."""
    try:
        return _stamp.decode(line).at
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"not a recorded line ({error}): {line[:200]!r}") from None

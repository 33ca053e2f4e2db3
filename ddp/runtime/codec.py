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
        events.Resumed,
    )
}
COMMANDS: dict[str, type[Any]] = {
    cls.__name__: cls
    for cls in (
        commands.Train,
        commands.Join,
        commands.Average,
        commands.Share,
        commands.Adopt,
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
_decoder = msgspec.json.Decoder(dict[str, Any])


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
        body = _decoder.decode(line)
        cls = _TYPES[body.pop("type")]
        return msgspec.convert(body, cls)
    except KeyError as error:
        raise ProtocolError(f"message without a known type ({error}): {line[:200]!r}") from None
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed message ({error}): {line[:200]!r}") from None


def stamp(line: bytes | str) -> float:
    """The time of a recorded line, seconds."""
    return float(_decoder.decode(line)["at"])

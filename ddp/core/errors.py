"""Errors caused by the environment, as opposed to a mistake of the user (ValueError) or of this code (AssertionError).

EngineError
+-- ProtocolError       a message that does not parse, or an event in a state that does not know it
+-- RankFailed          a rank raised; carries its rank and traceback
+-- RankLost            a rank's process died, or was silent beyond the deadline
+-- Diverged            the training loss stopped being finite
+-- ReduceFailed        the coordinator's process could not average snapshots
+-- OutOfResources      the system lacks what the run needs: memory, disk, descriptors, processes
|   +-- LinksRefused    emulated links are faster than the transport
+-- Corrupted           a rank's replica is not what it must be
+-- Aborted             the user ended the run before its end
+-- PeerGone (in `ddp.process`)        a channel's other end hung up
+-- ExchangeBroken (in `ddp.comm`)     a collective could not be completed
"""

from __future__ import annotations


def encodable(text: str) -> str:
    """Return `text` in characters that a message and a record can encode; a file name may contain others."""
    return text.encode("utf-8", "backslashreplace").decode()


class EngineError(Exception):
    """Base class of all errors of the engine."""


class ProtocolError(EngineError):
    """A message that does not parse, or an event in a state that does not know it."""


class RankFailed(EngineError):
    """A rank raised an exception."""

    def __init__(self, rank: int, error: str, traceback: str) -> None:
        super().__init__(f"rank {rank} failed: {encodable(error)}")
        self.rank = rank
        self.traceback = encodable(traceback)


class RankLost(EngineError):
    """A rank's process died, or was silent beyond the deadline."""


class ReduceFailed(EngineError):
    """The coordinator's process could not average snapshots."""


class OutOfResources(EngineError):
    """The system lacks what the run needs: memory, disk, descriptors, processes. The message is one line with the remedy."""


class LinksRefused(OutOfResources):
    """Emulated links are faster than the transport. All ranks measure together, so this error ends the run."""


class Corrupted(EngineError):
    """A rank's replica is not what it must be: a bit has flipped. The message is one line that says how it was found."""


class Aborted(EngineError):
    """The user ended the run before its end."""


class Diverged(EngineError):
    """The training loss stopped being finite."""

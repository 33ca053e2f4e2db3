"""A `Job` as data, for a node agent: checked field by field on arrival, never unpickled.

A task travels by name: a function of a catalogue that both ends have, and arguments of the types that it says. Functions of
the user's own do not travel to other processes than those that the parent forks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from ddp.core.errors import ProtocolError
from ddp.core.policies import POLICIES
from ddp.remote.file_mirror import RESUME
from ddp.replica.task import Job, Task

Catalogue = Mapping[str, tuple[Callable[..., Task], tuple[Any, ...]]]
"""Name -> a function that makes a task, and the types of its arguments."""


LOCAL = frozenset(
    {"task", "policy", "scratch", "checkpoint_folder", "resume", "offers", "preload", "elsewhere", "threads"}
    | {"host", "local_rank", "clock_shift", "clock_error_s", "hostname"}
)
"""Fields of a `Job` that are made anew where it arrives."""
_TYPES = get_type_hints(Job, localns={"ThreadGroup": Any})  # of a local field, so there is no need to import it
_TRAVELLING = {name: kind for name, kind in _TYPES.items() if name not in LOCAL}
_Travelling = msgspec.defstruct("_Travelling", list(_TRAVELLING.items()))
"""What of a `Job` is the same everywhere: all other fields, with their types."""


@dataclass(frozen=True)
class Order:
    """What a node agent is told to run."""

    job: msgspec.Raw
    """Its fields that are not `LOCAL`."""
    task: str
    arguments: tuple[Any, ...]
    policy: str
    settings: dict[str, Any]
    scratch: str = ""
    """The run's own scratch folder, where the node agent is on the coordinator's host; empty: it takes one of its own."""
    checkpoint_folder: str = ""
    """Where it is there."""
    resume: str | None = None
    """The checkpoint that is gone on from, there; of a node agent elsewhere: it was sent ahead."""


def encode(job: Job, catalogue: Catalogue, here: bool) -> bytes:
    """Encode a job for a node agent `here` or elsewhere. Raises ValueError for a task that cannot travel."""
    function, arguments = (job.task.func, job.task.args) if isinstance(job.task, partial) else (job.task, ())
    named = next((name for name, (own, _) in catalogue.items() if own is function), None)
    if named is None or (isinstance(job.task, partial) and job.task.keywords):
        raise ValueError("a task of your own cannot be sent to ranks that were started elsewhere: train on one host")
    policy = next(name for name, kind in POLICIES.items() if kind is type(job.policy))
    order = Order(
        msgspec.Raw(msgspec.json.encode({name: getattr(job, name) for name in _TRAVELLING})),
        named,
        arguments,
        policy,
        vars(job.policy),
        str(job.scratch) if here else "",
        str(job.checkpoint_folder or "") if here else "",
        None if job.resume is None else str(job.resume) if here else RESUME,
    )
    return msgspec.json.encode(order)


def read(data: bytes) -> Order:
    """Decode an order. Raises ProtocolError."""
    try:
        return msgspec.json.decode(data, type=Order)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ProtocolError(f"malformed order ({error})") from error


def job_of(order: Order, catalogue: Catalogue, scratch: Path) -> Job:
    """Return the job, in a scratch folder of this host. Raises ProtocolError."""
    try:
        function, types = catalogue[order.task]
        arguments: list[Any] = [
            msgspec.convert(value, kind) for value, kind in zip(order.arguments, types, strict=True)
        ]
        policy = msgspec.convert(order.settings, POLICIES[order.policy])
        travelled: dict[str, Any] = msgspec.structs.asdict(msgspec.json.decode(order.job, type=_Travelling))
    except (msgspec.MsgspecError, ValueError, KeyError) as error:
        raise ProtocolError(f"malformed order ({error})") from error
    folder = Path(order.checkpoint_folder) if order.scratch else scratch / "checkpoints"
    return Job(
        task=partial(function, *arguments),
        policy=policy,
        scratch=scratch,
        checkpoint_folder=folder if travelled["checkpoints"] is not None else None,
        resume=None if order.resume is None else scratch / order.resume,  # which may be a path from the root
        **travelled,
    )

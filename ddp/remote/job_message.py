"""A `Job` as data for a node agent: validated field by field on arrival, never unpickled.

A task is sent by name: a function of a catalogue that both ends have, with arguments of declared types. A user's own
functions are only sent to processes that the parent forks.
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
"""Name -> (function that makes a task, types of its arguments)."""


LOCAL = frozenset(
    {"task", "policy", "scratch", "checkpoint_folder", "resume", "offers", "preload", "elsewhere", "threads"}
    | {"host", "local_rank", "clock_shift", "clock_error_s", "hostname"}
)
"""Fields of a `Job` that the receiving host sets anew."""
_TYPES = get_type_hints(Job, localns={"ThreadGroup": Any})  # the type of a local field, which needs no import
_TRAVELLING = {name: kind for name, kind in _TYPES.items() if name not in LOCAL}
_Travelling = msgspec.defstruct("_Travelling", list(_TRAVELLING.items()))
"""All other fields of a `Job`, with their types: they are the same on all hosts."""


@dataclass(frozen=True)
class Order:
    """What a node agent is to run."""

    job: msgspec.Raw
    """The fields of the job that are not in `LOCAL`."""
    task: str
    arguments: tuple[Any, ...]
    policy: str
    settings: dict[str, Any]
    scratch: str = ""
    """The run's scratch folder, if the node agent is on the coordinator's host; empty: the agent makes its own."""
    checkpoint_folder: str = ""
    """Path of the checkpoint folder on the node agent's host."""
    resume: str | None = None
    """Path of the checkpoint to resume from; for a node agent on another host, a relative path to which it was sent
    before."""


def encode(job: Job, catalogue: Catalogue, here: bool) -> bytes:
    """Encode a job for a node agent. `here`: it is on this host. Raises ValueError for a task that cannot be sent."""
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
    """Return the job, with a scratch folder of this host. Raises ProtocolError."""
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
        resume=None if order.resume is None else scratch / order.resume,  # an absolute path stays as it is
        **travelled,
    )

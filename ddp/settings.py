"""Names and settings that a user gives, checked: what is wrong is one line that names the remedy. Imports no torch."""

from __future__ import annotations

import inspect
import math
import os
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from ddp.comm.transports import TRANSPORTS
from ddp.core.errors import encodable
from ddp.core.faults import LOSING, Fault, parse
from ddp.core.policies import POLICIES, Policy
from ddp.registries import missing
from ddp.suggest import unknown

MOST_EPOCHS, MOST_SAMPLES = 1_000_000, 10**9
"""Of a run, and of a batch. All samples of a run are then a number that every record holds."""
HIGHEST_RATE = 1e6
"""A learning rate above this, or a factor on one, only diverges."""
WHOLE = 1e-6
"""How far parts of the work may be off from one together: they are written with few digits."""


def known(kind: str, name: str, registry: Collection[str]) -> str:
    """Return `name` if it is in the registry of all `kind`; else ValueError with the nearest one."""
    if not isinstance(name, str) or name not in registry:
        raise ValueError(missing(kind, str(name), registry))
    return name


def check_transport(name: str, device: str, gpus: int, ranks: int, key: str = "transport") -> str:
    """Return `name` if it suits `ranks` of one host that train on `device`, as there are `gpus`; else ValueError."""
    known(key, name, ("auto", *TRANSPORTS))
    own_gpus = device != "cpu" and gpus >= ranks
    suits = {"nccl": own_gpus, "memory": not own_gpus and device != "cuda"}
    if not suits.get(name, True):
        need = "a GPU for every rank" if name == "nccl" else "ranks on CPUs"
        raise ValueError(f"{key}={name} needs {need}; leave it out to take what applies")
    return name


def make_policy(name: str, settings: dict[str, Any]) -> Policy:
    """Make the policy `name` with these settings, the others as documented. ValueError for an unknown one or a bad value."""
    policy = POLICIES[known("policy", name, POLICIES)]
    names = inspect.signature(policy).parameters
    for key in settings.keys() - names.keys():
        raise ValueError(unknown(f"setting of policy {name!r}:", key, names))
    try:
        checked = msgspec.convert(settings, policy)  # looks at the types, too
    except ValueError as error:
        raise ValueError(f"policy={name}: {str(error).replace(' - at `$.', ' for `')}") from None
    # What msgspec makes lacks the defaults in `vars`.
    return policy(**{key: getattr(checked, key) for key in settings})


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return `value` if it is a whole number from `least` to `most`; else ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={_shown(value)} must be a whole number {bounds}")
    return value


def number(name: str, value: Any, least: float, most: float = math.inf, *, remedy: str = "") -> float:
    """Return `value` as a finite float from `least` to `most`; else ValueError that ends with `remedy`."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not real or not math.isfinite(value) or not least <= value <= most:
        bounds = f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name}={_shown(value)} must be a finite number {bounds}{remedy and f'; {remedy}'}")
    return float(value)


def path(name: str, value: Any) -> str:
    """Return `value` if a file or folder may be called so; else ValueError: an empty one is the folder of the command."""
    if not isinstance(value, (str, os.PathLike)):  # a number may be a mistake for another argument
        raise ValueError(f"{name}={_shown(value)} must be a path, such as {name}='runs'")
    said = os.fsdecode(value)
    if not said.strip() or "\0" in said:
        raise ValueError(f"{name}={_shown(said)} is no path: name one, or leave {name} out")
    if (absolute := os.path.abspath(said)) != encodable(absolute):
        raise ValueError(f"{name}={_shown(absolute)} is not UTF-8, and records could not name it: rename it")
    return said


def check_parts(policy: Policy) -> None:
    """Raise ValueError for `partition_ratios` of a policy that are not the whole of the work."""
    parts: tuple[float, ...] | None = getattr(policy, "partition_ratios", None)
    if parts is not None and abs(sum(parts) - 1) > WHOLE:
        shares = ", ".join(f"{part / sum(parts):.4g}" for part in parts)
        raise ValueError(f"partition_ratios={list(parts)} are {sum(parts):g} of the work, not 1; write [{shares}]")


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False; else ValueError: words would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={_shown(value)} must be True or False")
    return value


def listed(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Return `value` as a tuple; ValueError with an example if it is no list, a word included."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name}={_shown(value)} must be a list, such as {example}")
    return tuple(value)


def function(name: str, value: Any) -> None:
    """Raise ValueError unless `value` can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function, not {_shown(value)}")


def emulated(name: str, given: Any, devices: int | None = None) -> tuple[float, ...]:
    """Return emulated relative speeds, one for each of `devices` or none at all; ValueError for others."""
    speeds = listed(name, given, "[1.0, 0.4]")
    if speeds and devices is not None and len(speeds) != devices:
        raise ValueError(f"{name} has {len(speeds)} values for {devices} ranks; give one for each")
    return tuple(number(name, speed, 0.01, 1.0, remedy="0.5 makes a rank half as fast") for speed in speeds)


def norm_limit(name: str, value: Any) -> float | None:
    """Return a limit on the norm of the gradients, or None; ValueError for 0, less, or what is no number."""
    return None if value is None else number(name, value, 1e-12, 1e12, remedy="leave it out for no limit")


def restarts(given: Any) -> int | None:
    """Return how often a lost rank is started again, None for always; ValueError for what is no number of times."""
    if given in ("never", "always"):
        return 0 if given == "never" else None
    if not str(given).isdecimal():
        raise ValueError(
            f"cluster.restart={_shown(given)} must be never, always or how often each rank is started again"
        )
    return int(given)


def run_steps(name: str, value: Any, epochs: int) -> int | None:
    """Return the steps of a run, or None; ValueError for what is no number of them, or not equally many for each epoch."""
    if value is None:
        return None
    steps = whole(name, value, 1, MOST_SAMPLES)
    if steps % epochs:
        near = max(round(steps / epochs), 1) * epochs
        raise ValueError(f"{name}={steps} cannot be cut into {epochs} epochs of equally many steps: {near} can")
    return steps


def script(faults: Sequence[str], world_size: int) -> tuple[Fault, ...]:
    """Return a fault script, in the order of its steps; ValueError for one that cannot be played on so many ranks."""
    given = listed("faults", faults, "['1@40:crash']")
    read = sorted((parse(str(text)) for text in given), key=lambda fault: (fault.step, fault.rank, fault.kind))
    if read and world_size == 1:
        raise ValueError("faults with one rank, which trains in this very process: use world_size=2 or more")
    ended: dict[int, Fault] = {}
    for fault in read:
        if fault.rank >= world_size:
            raise ValueError(f"fault {fault} is for rank {fault.rank}, but ranks are 0 to {world_size - 1}")
        if fault.rank in ended:
            raise ValueError(f"fault {fault} cannot come: {ended[fault.rank]} ends that rank; leave one of them out")
        if fault.kind in LOSING[:-1]:
            ended[fault.rank] = fault
    return tuple(read)


def check_reach(faults: Sequence[Fault], samples: int, epochs: int, batch_size: int, ranks: int, alike: bool) -> None:
    """Raise ValueError for a fault at a step that its rank never comes to. `alike`: all ranks do equally many steps; else
    one may do nearly all of the work, as may those that are left when others are lost."""
    for fault in faults:
        lost = {other.rank for other in faults if other.kind in LOSING and other.rank != fault.rank}
        sharing = ranks - len(lost) if alike else 1
        # What a lost rank leaves, and what ends an epoch, comes in smaller batches.
        rest = 0 if alike and not lost else ranks
        most = epochs * (-(-samples // (batch_size * sharing)) + rest)
        if fault.step >= most:
            raise ValueError(
                f"fault {fault} cannot come: {epochs} epochs of {samples} samples are at most {most} steps of a rank, "
                f"counted from 0; name a step below {most}"
            )


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())[:60]

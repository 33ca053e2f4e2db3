"""Checks names and settings that a user gives. Each mistake is one line that says how to correct it. Imports no torch."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from ddp.comm.transports import TRANSPORTS
from ddp.core.errors import encodable
from ddp.core.guard import GUARDS
from ddp.core.policies import POLICIES, Policy
from ddp.core.settings.faults import LOSING, Fault, parse
from ddp.core.settings.world import World
from ddp.registries import missing
from ddp.suggest import unknown

MAX_WORLD = 64
"""Maximum of the ranks of a run."""
MAX_VIRTUAL = 4096
"""The same in virtual time."""
DEVICES = ("auto", "cpu", "cuda")
"""Devices that a user can choose."""
DAY_S = 86_400
"""Maximum of a waiting time, in seconds."""
MOST_EPOCHS, MOST_SAMPLES = 1_000_000, 10**9
"""Maximum of the epochs of a run and of the samples of a batch, so that every record can hold the run's samples."""
HIGHEST_RATE = 1e6
"""Maximum of a learning rate, or of a factor on one: training with a larger one only diverges."""
WHOLE = 1e-6
"""Tolerance for the sum of `partition_ratios`, which users write with few digits."""


def known(kind: str, name: str, registry: Collection[str]) -> str:
    """Return `name` if the registry of `kind` has it. Raise ValueError with the nearest name otherwise."""
    if not isinstance(name, str) or name not in registry:
        raise ValueError(missing(kind, str(name), registry))
    return name


def check_transport(name: str, device: str, gpus: int, ranks: int, key: str = "transport") -> str:
    """Return `name` if that transport suits `ranks` ranks of one host with `gpus` GPUs that train on `device`; else raise
    ValueError."""
    known(key, name, ("auto", *TRANSPORTS))
    own_gpus = device != "cpu" and gpus >= ranks
    suits = {"nccl": own_gpus, "memory": not own_gpus and device != "cuda"}
    if not suits.get(name, True):
        need = "a GPU for every rank" if name == "nccl" else "ranks on CPUs"
        raise ValueError(f"{key}={name} needs {need}; leave it out to take what applies")
    return name


def make_policy(name: str, settings: dict[str, Any]) -> Policy:
    """Make the policy `name` with these settings and the default of all others. Raise ValueError for an unknown setting or
    an invalid value."""
    policy = POLICIES[known("policy", name, POLICIES)]
    names = inspect.signature(policy).parameters
    for key in settings.keys() - names.keys():
        raise ValueError(unknown(f"setting of policy {name!r}:", key, names))
    guard = settings.get("guard")
    if isinstance(guard, str) and guard in GUARDS.complete().broken:
        raise ValueError(missing("guard", guard, GUARDS))
    try:
        checked = msgspec.convert(settings, policy)  # checks types, too
    except ValueError as error:
        raise ValueError(f"policy={name}: {str(error).replace(' - at `$.', ' for `')}") from None
    # The `vars` of an object made by msgspec lack default values.
    return policy(**{key: getattr(checked, key) for key in settings})


def whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """Return `value` if it is an integer from `least` to `most`; else raise ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        bounds = f"of {least} or more" if most is None else f"from {least} to {most}"
        raise ValueError(f"{name}={_shown(value)} must be a whole number {bounds}")
    return value


def number(name: str, value: Any, least: float, most: float = math.inf, *, remedy: str = "") -> float:
    """Return `value` as a finite float from `least` to `most`; else raise ValueError that ends with `remedy`."""
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not real or not least <= value <= min(most, sys.float_info.max):  # of any size, as integers are
        bounds = f"of {least:g} or more" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name}={_shown(value)} must be a finite number {bounds}{remedy and f'; {remedy}'}")
    return float(value)


def path(name: str, value: Any) -> str:
    """Return `value` if it can be the path of a file or folder. Raise ValueError otherwise, also if it is empty (which
    would mean the current folder) or not UTF-8."""
    if not isinstance(value, (str, os.PathLike)):  # a number is probably meant for another argument
        raise ValueError(f"{name}={_shown(value)} must be a path, such as {name}='runs'")
    text = os.fsdecode(value)
    if not text.strip() or "\0" in text:
        raise ValueError(f"{name}={_shown(text)} is no path: name one, or leave {name} out")
    if (absolute := os.path.abspath(text)) != encodable(absolute):
        raise ValueError(f"{name}={_shown(absolute)} is not UTF-8, and records could not name it: rename it")
    return text


def check_policy(policy: Policy, size: int) -> None:
    """Raise ValueError if the policy has settings for another number of ranks, its first plan gives a rank no step, or its
    `partition_ratios` do not sum to 1."""
    if size > 1:
        _, plan = policy.init(World(size, 1, 1, 1, blocking=True, in_step=False))
        if not len(plan.counts) == len(plan.ahead) == size or min(plan.counts) < 1 or min(plan.ahead) < 0:
            given = f"counts={plan.counts} ahead={plan.ahead}"
            raise ValueError(f"{policy}: its first plan has {given}; {size} ranks need {size} counts of 1 or more")
    parts: tuple[float, ...] | None = getattr(policy, "partition_ratios", None)
    if parts is not None and abs(sum(parts) - 1) > WHOLE:
        shares = ", ".join(f"{part / sum(parts):.4g}" for part in parts)
        raise ValueError(f"partition_ratios={list(parts)} are {sum(parts):g} of the work, not 1; write [{shares}]")


def flag(name: str, value: Any) -> bool:
    """Return `value` if it is True or False; else raise ValueError, because any non-empty word would count as true."""
    if not isinstance(value, bool):
        raise ValueError(f"{name}={_shown(value)} must be True or False")
    return value


def listed(name: str, value: Any, example: str) -> tuple[Any, ...]:
    """Return `value` as a tuple. Raise ValueError with an example if it is no list; a string is none."""
    with suppress(TypeError):  # a tensor without dimensions is an Iterable that raises it
        if not isinstance(value, str):
            return tuple(value)
    raise ValueError(f"{name}={_shown(value)} must be a list, such as {example}")


def function(name: str, value: Any) -> None:
    """Raise ValueError unless `value` can be called."""
    if not callable(value):
        raise ValueError(f"{name} must be a function, not {_shown(value)}")


def emulated(name: str, given: Any, devices: int | None = None) -> tuple[float, ...]:
    """Return the emulated relative speeds: one for each of `devices`, or none. Raise ValueError for invalid ones."""
    speeds = listed(name, given, "[1.0, 0.4]")
    if speeds and devices is not None and len(speeds) != devices:
        raise ValueError(f"{name} has {len(speeds)} values for {devices} ranks; give one for each")
    return tuple(number(name, speed, 0.01, 1.0, remedy="0.5 makes a rank half as fast") for speed in speeds)


def norm_limit(name: str, value: Any) -> float | None:
    """Return the limit on the norm of the gradients, or None. Raise ValueError unless it is a positive number."""
    return None if value is None else number(name, value, 1e-12, 1e12, remedy="leave it out for no limit")


def restarts(given: Any) -> int | None:
    """Return how often a lost rank is restarted; None: always. Raise ValueError unless it is `never`, `always` or a
    number."""
    if given in ("never", "always"):
        return 0 if given == "never" else None
    if not str(given).isdecimal():
        raise ValueError(
            f"cluster.restart={_shown(given)} must be never, always or how often each rank is started again"
        )
    return int(given)


def run_steps(name: str, value: Any, epochs: int) -> int | None:
    """Return the number of steps of a run, or None. Raise ValueError unless it is an integer and a multiple of `epochs`."""
    if value is None:
        return None
    steps = whole(name, value, 1, MOST_SAMPLES)
    if steps % epochs:
        near = max(round(steps / epochs), 1) * epochs
        raise ValueError(f"{name}={steps} cannot be cut into {epochs} epochs of equally many steps: {near} can")
    return steps


def script(faults: Sequence[str], world_size: int, returns: int | None = 0) -> tuple[Fault, ...]:
    """Return the faults in the order of their steps. Raise ValueError for a fault that cannot happen with `world_size`
    ranks, of which each lost one returns at most `returns` times (None: always)."""
    given = listed("faults", faults, "['1@40:crash']")
    read = sorted((parse(str(text)) for text in given), key=lambda fault: (fault.step, fault.rank, fault.kind))
    if read and world_size == 1:
        raise ValueError("faults with one rank, which trains in this very process: use world_size=2 or more")
    ended: dict[int, list[Fault]] = {}
    for fault in read:
        if fault.rank >= world_size:
            raise ValueError(f"fault {fault} is for rank {fault.rank}, but ranks are 0 to {world_size - 1}")
        ends = ended.setdefault(fault.rank, [])
        if fault in ends or (returns is not None and len(ends) > returns):
            raise ValueError(f"fault {fault} cannot come: {ends[-1]} ends that rank; leave one of them out")
        if fault.kind in LOSING[:-1]:
            ends.append(fault)
    return tuple(read)


def check_reach(faults: Sequence[Fault], samples: int, epochs: int, batch_size: int, ranks: int, alike: bool) -> None:
    """Raise ValueError for a fault at a step that its rank never reaches. `alike`: all ranks do the same number of steps.
    Otherwise one rank may do nearly all of the work, and so may the ranks that are left when others are lost."""
    for fault in faults:
        lost = {other.rank for other in faults if other.kind in LOSING and other.rank != fault.rank}
        sharing = ranks - len(lost) if alike else 1
        # The work of a lost rank, and the end of an epoch, are trained in smaller batches.
        rest = 0 if alike and not lost else ranks
        most = epochs * (-(-samples // (batch_size * sharing)) + rest)
        if fault.step >= most:
            raise ValueError(
                f"fault {fault} cannot come: {epochs} epochs of {samples} samples are at most {most} steps of a rank, "
                f"counted from 0; name a step below {most}"
            )


def _shown(value: Any) -> str:
    return " ".join(repr(value).split())[:60]

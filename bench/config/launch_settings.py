"""`launch=slurm` and `launch=ray` with their settings, `launch.KEY=VALUE`, taken from a command line. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ddp.suggest import nearest

WORD = "launch"
LEAST_S = 60.0
"""Least seconds of a task before the signal of its end: in this time it imports torch and resumes."""


@dataclass(frozen=True)
class SlurmSettings:
    """Settings of a sweep on SLURM."""

    cells: int = 4
    """Cells that a task of the array trains, one after the other."""
    nodes: int = 1
    """Hosts of a cell; on several, a rank is a task."""
    ranks: int = 1
    """Tasks on each host; on one host ranks are forked."""
    cpus: int = 1
    """Cores of a task."""
    gpus: int = 0
    """GPUs of a task."""
    memory: str = ""
    """Of a host, as sbatch takes it: `32G`. Empty: the cluster's default."""
    minutes: int = 60
    """Most that a task may last before it is requeued."""
    signal_s: int = 60
    """Seconds before that limit at which a task gets a signal."""
    at_once: int = 256
    """Tasks that may run at a time."""
    exclusive: bool = True
    """Whether hosts are exclusive; otherwise runs are marked as sharing cores."""
    wait: bool = True
    """Whether the command waits for the end, and reports."""
    partition: str = ""
    """Empty: the default one."""
    account: str = ""
    """Whom the time is charged to. Empty: the default one."""
    qos: str = ""
    """Quality of service. Empty: the default one."""

    def __post_init__(self) -> None:
        _check(self)
        if 60 * self.minutes < self.signal_s + LEAST_S:
            least = -(-(self.signal_s + int(LEAST_S)) // 60)
            raise ValueError(
                f"{WORD}.minutes={self.minutes} leaves a task no time before {WORD}.signal_s={self.signal_s}: set "
                f"{WORD}.minutes={least} or more"
            )


@dataclass(frozen=True)
class RaySettings:
    """Settings of a sweep on Ray."""

    address: str = "auto"
    """Of the cluster; `auto`: the one that this host is in; `local`: a new one of this host alone."""
    nodes: int = 1
    """Hosts of a cell; on several, a rank is an actor."""
    ranks: int = 1
    """Actors on each host; on one host ranks are forked."""
    cpus: int = 1
    """Cores of an actor."""
    gpus: int = 0
    """GPUs of an actor."""
    at_once: int = 64
    """Cells that may run or be waited for at a time."""
    restarts: int = 10
    """Most times that a cell goes on after an actor was lost."""

    def __post_init__(self) -> None:
        _check(self)


Settings = SlurmSettings | RaySettings
LAUNCHERS: dict[str, type[Settings]] = {"slurm": SlurmSettings, "ray": RaySettings}
FROM_NOTHING = ("gpus", "restarts")
MOST = 1_000_000
"""Largest number that a scheduler is asked for."""


def _check(settings: Settings) -> None:
    """Raise ValueError for a number out of range."""
    for field in fields(settings):
        value, least = getattr(settings, field.name), int(field.name not in FROM_NOTHING)
        if type(value) is int and value < least:
            raise ValueError(f"{WORD}.{field.name}={value} must be {least} or more")
        if type(value) is int and value > MOST:
            raise ValueError(f"{WORD}.{field.name} must be {MOST:,} or less")
    if settings.nodes == 1 and settings.ranks > 1:
        raise ValueError(
            f"{WORD}.ranks={settings.ranks} on one host, whose ranks are forked: set {WORD}.cpus and world_size"
        )


def taken(words: Sequence[str]) -> tuple[Settings | None, list[str]]:
    """Return the launcher's settings in a command line (None: no launcher), and its other words. Raises ValueError."""
    own = [word for word in words if word == WORD or word.startswith((f"{WORD}=", f"{WORD}."))]
    rest = [word for word in words if word not in own]
    if not own:
        return None, rest
    chosen = [word.partition("=")[2] for word in own if word.partition("=")[0] == WORD]
    choices = " or ".join(f"{WORD}={name}" for name in LAUNCHERS)
    if not chosen:
        raise ValueError(f"{own[0]} without {choices}: add that, or leave it out")
    name = chosen[-1]
    if name not in LAUNCHERS:
        raise ValueError(f"{WORD}={name}: {choices} is what there is")
    kind, values = LAUNCHERS[name], dict[str, Any]()
    kinds = {field.name: type(field.default) for field in fields(kind)}
    for word in own:
        key, _, value = word.partition("=")
        setting = key.partition(".")[2]
        if key == WORD:
            continue
        if setting not in kinds:
            best = nearest(setting, kinds)
            hint = f"; did you mean {WORD}.{best}?" if best else ""
            raise ValueError(f"{key} is no setting of {WORD}={name}{hint}")
        values[setting] = _converted(word, value, kinds[setting])
    return kind(**values), rest


def _converted(word: str, value: str, kind: type[Any]) -> Any:
    if kind is bool:
        if value not in ("true", "false"):
            raise ValueError(f"{word} must be true or false")
        return value == "true"
    if kind is int and not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{word} must be a whole number, 0 or more")
    return kind(value)


def batches(left: Sequence[Any], size: int) -> list[list[Any]]:
    """Return `left` cut into batches of `size`."""
    return [list(left[first : first + size]) for first in range(0, len(left), size)]

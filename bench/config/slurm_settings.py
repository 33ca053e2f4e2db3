"""`launch=slurm` and its settings, `launch.KEY=VALUE`, taken from a command line. Knows no scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

from ddp.suggest import nearest

WORD = "launch"


@dataclass(frozen=True)
class SlurmSettings:
    """What is asked of SLURM for a sweep."""

    cells: int = 4
    """Cells that a task of the array trains, one after the other."""
    nodes: int = 1
    """Hosts of a cell; on several, a rank is a task."""
    ranks: int = 1
    """Tasks on each host; on one host ranks are forked."""
    cpus: int = 1
    """Cores of a task."""
    minutes: int = 60
    """Most that a task may last before it is requeued."""
    signal_s: int = 60
    """Seconds before the end at which a task is told."""
    at_once: int = 256
    """Tasks that may run at a time."""
    exclusive: bool = True
    """Whether hosts are asked for alone; otherwise runs are marked as sharing cores."""
    wait: bool = True
    """Whether the command waits for the end, and reports."""
    partition: str = ""
    """Empty: the default one."""

    def __post_init__(self) -> None:
        for name in ("cells", "nodes", "ranks", "cpus", "minutes", "signal_s", "at_once"):
            if getattr(self, name) < 1:
                raise ValueError(f"{WORD}.{name}={getattr(self, name)} must be 1 or more")
        if self.nodes == 1 and self.ranks > 1:
            raise ValueError(
                f"{WORD}.ranks={self.ranks} on one host, whose ranks are forked: set {WORD}.cpus and world_size"
            )


def taken(words: Sequence[str]) -> tuple[SlurmSettings | None, list[str]]:
    """Return what a command line asks of SLURM, None for nothing, and its other words. Raises ValueError."""
    own = [word for word in words if word == WORD or word.startswith((f"{WORD}=", f"{WORD}."))]
    rest = [word for word in words if word not in own]
    if not own:
        return None, rest
    values: dict[str, Any] = {}
    kinds = {field.name: type(field.default) for field in fields(SlurmSettings)}
    for word in own:
        key, _, value = word.partition("=")
        if key == WORD:
            if value != "slurm":
                raise ValueError(f"{word}: launch=slurm is what there is")
            continue
        name = key.partition(".")[2]
        if name not in kinds:
            best = nearest(name, kinds)
            raise ValueError(
                f"{key} is no setting of launch=slurm" + (f"; did you mean {WORD}.{best}?" if best else "")
            )
        values[name] = _converted(word, value, kinds[name])
    if f"{WORD}=slurm" not in own:
        raise ValueError(f"{own[0]} without {WORD}=slurm: add that, or leave it out")
    return SlurmSettings(**values), rest


def _converted(word: str, value: str, kind: type[Any]) -> Any:
    if kind is bool:
        if value not in ("true", "false"):
            raise ValueError(f"{word} must be true or false")
        return value == "true"
    if kind is int and not (value.isascii() and value.isdecimal()):
        raise ValueError(f"{word} must be a whole number")
    return kind(value)


def batches(left: Sequence[Any], size: int) -> list[list[Any]]:
    """Return what is left to do in batches of `size`."""
    return [list(left[first : first + size]) for first in range(0, len(left), size)]

"""What a timeline must know of its run beside the records: from its `RunSpec`, or from its folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.results.runfolder import CONFIG, read_object
from bench.results.schema import MOST_RANKS
from bench.runner.modes import mode_name


class Named(Protocol):
    """A run, as far as its timeline shows it; a `RunSpec` is one."""

    @property
    def run_id(self) -> str: ...
    @property
    def config_hash(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def mode(self) -> str: ...
    @property
    def world_size(self) -> int: ...
    @property
    def speeds(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class TimelineHeader:
    """The same, read from a folder."""

    run_id: str
    config_hash: str
    model: str
    mode: str
    world_size: int
    speeds: tuple[float, ...]


def about(folder: Path) -> TimelineHeader:
    """Of the run in `folder`, by its `config.json`. Raises ValueError: one line."""
    said = read_object(folder / CONFIG)
    try:
        policy = said["policy"] or {"name": "none"}
        return TimelineHeader(
            run_id=_text(said["run_id"]),
            config_hash=_text(said["config_hash"]),
            model=_text(said["model"]),
            mode=mode_name(_text(said["engine"]), _text(policy["name"]), str(said["backend"])),
            world_size=_ranks(said["world_size"]),
            speeds=tuple(float(speed) for speed in said["cluster"]["speeds"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{folder / CONFIG}: not the configuration of a run ({type(error).__name__}: {error})"
        ) from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _ranks(value: Any) -> int:
    if not isinstance(value, int) or not 1 <= value <= MOST_RANKS:
        raise TypeError(f"{value!r} is no number of ranks")
    return value

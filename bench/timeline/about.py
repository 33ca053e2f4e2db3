"""What a timeline needs to know of its run besides the records: from its `RunSpec`, or from its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec

from bench.config.spec import RunSpec
from bench.results.runfolder import CONFIG, read_object
from bench.results.schema import MOST_RANKS
from ddp.engine.modes import mode_name


class TimelineHeader(msgspec.Struct):
    """The fields of a `RunSpec` that a timeline shows, read from a run folder."""

    run_id: str
    config_hash: str
    model: str
    engine: str
    policy: dict[str, Any] | None
    backend: str | None
    world_size: Annotated[int, msgspec.Meta(ge=1, le=MOST_RANKS)]
    cluster: dict[str, Any]
    train: dict[str, Any] = msgspec.field(default_factory=dict)
    mode: str = ""
    speeds: tuple[float, ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """Return what is read of the resolved configuration, in its form."""
        return {"train": self.train}


Named = RunSpec | TimelineHeader
"""A run, as far as its timeline needs it."""


def about(folder: Path) -> TimelineHeader:
    """Read the header from the `config.json` in `folder`. Raises ValueError, one line."""
    config = read_object(folder / CONFIG)
    try:
        header = msgspec.convert(config, TimelineHeader)
        policy = "none" if header.policy is None else str(header.policy["name"])
        header.mode = mode_name(header.engine, policy, str(header.backend))
        header.speeds = msgspec.convert(header.cluster["speeds"], tuple[float, ...])
    except (KeyError, ValueError) as error:
        raise ValueError(
            f"{folder / CONFIG}: not the configuration of a run ({type(error).__name__}: {error})"
        ) from None
    return header

"""The settings `data.*` of a data set. Imports no torch.

`bench.models.data.DATA` lists which data set accepts which of them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

MOST = 2**40
"""Upper limit of all sizes. Whether data fits in memory is checked where memory is allocated."""


@dataclass(frozen=True)
class DataOptions:
    """Settings of a data set; None: the default of the data set."""

    path: str | None = None
    """A user's own file or folder."""
    seq_len: int | None = None
    """Characters in one sample of a text."""
    samples: int | None = None
    """Number of training samples."""
    classes: int | None = None
    shape: tuple[int, ...] | None = None
    """(channels, height, width) of an image."""
    seed: int | None = None
    """Seed of random numbers in the data set, independent of the seed of a run."""

    def __post_init__(self) -> None:
        if self.path is not None and (not self.path.strip() or "\0" in self.path):
            raise ValueError(f"data.path={self.path!r} is no path; give a file or folder")
        for name, least in (("seq_len", 1), ("samples", 1), ("classes", 2), ("seed", 0)):
            _within(f"data.{name}", getattr(self, name), least)
        if self.shape is not None:
            if len(self.shape) != 3:
                shown = ",".join(map(str, self.shape))
                raise ValueError(f"data.shape=[{shown}] must be channels, height and width, as in data.shape=[3,32,32]")
            for size in self.shape:
                _within("data.shape", size, 1)

    @property
    def location(self) -> Path:
        """Return `path` with `~` expanded. Raise ValueError for an unknown user."""
        assert self.path is not None
        try:
            return Path(self.path).expanduser()
        except RuntimeError as error:
            raise ValueError(f"data.path={self.path}: {error}") from error

    @property
    def given(self) -> dict[str, Any]:
        """Return the settings that are not None, as JSON values."""
        settings = {key: value for key, value in asdict(self).items() if value is not None}
        return settings | ({"shape": list(settings["shape"])} if "shape" in settings else {})

    def only(self, names: tuple[str, ...]) -> DataOptions:
        """Return only the settings `names`."""
        return DataOptions(**{key: getattr(self, key) for key in names})

    def over(self, other: DataOptions) -> DataOptions:
        """Return these settings, completed by those of `other` where these are None."""
        chosen = {field.name: getattr(self, field.name) for field in fields(self)}
        return DataOptions(**{k: getattr(other, k) if v is None else v for k, v in chosen.items()})


def _within(key: str, value: int | None, least: int) -> None:
    if value is not None and not least <= value <= MOST:
        raise ValueError(f"{key}={value} must be a whole number from {least} to {MOST}")


PLAIN = DataOptions()
"""All settings at their defaults."""

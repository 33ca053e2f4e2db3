"""Defines `DataSet`: the samples, and what a model must know about them; and `Origin`: how a data set is prepared and
opened. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from bench.models.data.options import DataOptions

if TYPE_CHECKING:
    from ddp.replica.task import Source


@dataclass(frozen=True)
class DataSet:
    """An open data set: a source of training samples and a source of evaluation samples, of the same form.

    Images: float32 [n, c, h, w], normalised, with labels, int64 [n]. Text: tokens, int64 [n, length], with the token that
    follows each of them, int64 [n, length]."""

    shape: tuple[int, ...]
    """Shape of one sample: (channels, height, width) of an image, (length,) of a piece of text."""
    classes: int
    """Number of classes, or of different tokens. Labels and tokens are in 0 to `classes` - 1."""
    load: Callable[[], tuple[Source, Source]]
    """() -> (train, eval), each in a form that `ddp.data.as_source` accepts. Never downloads. Raises ValueError, in one
    line, for missing or damaged files."""
    std: tuple[float, ...] = (1.0,)
    """Standard deviation by which images were divided, one for each channel or one for all, in units of pixels in [0, 1]; 1
    if unknown."""

    @property
    def is_text(self) -> bool:
        """Return whether samples are pieces of text; otherwise they are images."""
        return len(self.shape) == 1


@dataclass(frozen=True)
class Origin:
    """How a data set is prepared and opened. A data set file `models/data/<name>.py` has one, named `ORIGIN`."""

    describe: Callable[[str, DataOptions], DataSet]
    """(data folder, settings) -> the data set as a rank opens it. Reads no more than it needs for the shape and the number
    of classes. Raises ValueError, in one line, for invalid settings or files."""
    prepare: Callable[[str, DataOptions], None] | None = None
    """(data folder, settings) -> None: creates or downloads the files and checks them. The parent process calls it once,
    before ranks start. Raises ValueError, in one line, if that fails or a file is damaged. None: the data set is loaded
    once instead."""
    options: tuple[str, ...] = ()
    """Settings of `DataOptions` that a user's own data set accepts, such as `("path", "samples")`; for the project's own,
    `DATA` lists them."""

    def __post_init__(self) -> None:
        if not callable(self.describe) or not (self.prepare is None or callable(self.prepare)):
            raise TypeError("describe and prepare must be functions of the data folder and DataOptions")
        names = [field.name for field in fields(DataOptions)]
        if isinstance(self.options, str) or not set(self.options) <= set(names):
            raise TypeError(f"options must be a tuple of names, such as ('path',), of {', '.join(names)}")


def afford(size: int, what: str) -> None:
    """Raise ValueError if `what`, of `size` bytes, does not fit in the memory that is free now."""
    import psutil

    free = psutil.virtual_memory().available
    if size > free:
        sizes = f"{what} takes {size / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"
        raise ValueError(f"{sizes}; make it smaller")

"""`DataSet`: what a model must know of its data, and the samples; `Origin`: what a data set's file says.

Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.models.data.options import DataOptions

if TYPE_CHECKING:
    from ddp.replica.task import Source


@dataclass(frozen=True)
class DataSet:
    """A data set, open: two sources of samples of one form.

    Images: float32 [n, c, h, w], normalised, and their labels, int64 [n]. Text: tokens, int64 [n, length], and the token
    that follows each of them, int64 [n, length]."""

    shape: tuple[int, ...]
    """Of one sample: (channels, height, width) of an image, (length,) of a piece of text."""
    classes: int
    """Number of classes, or of different tokens. Labels and tokens are 0 to `classes` - 1."""
    load: Callable[[], tuple[Source, Source]]
    """() -> (train, eval), each what `ddp.data.as_source` takes. Never downloads. ValueError, in one line, for
    files that are damaged or not there."""
    std: tuple[float, ...] = (1.0,)
    """What images were divided by, of each channel or of all, on a scale of 0 to 1; 1 where that is not known."""

    @property
    def is_text(self) -> bool:
        """Tell whether samples are pieces of text; they are images otherwise."""
        return len(self.shape) == 1


@dataclass(frozen=True)
class Origin:
    """How one data set is got ready and opened. The `ORIGIN` of a file `models/data/<name>.py`."""

    describe: Callable[[str, DataOptions], DataSet]
    """(data folder, settings): the data set as a rank opens it. Reads no more than form and classes take, and nothing where
    they are known. ValueError, in one line, for settings or files that cannot be."""
    prepare: Callable[[str, DataOptions], None] | None = None
    """(data folder, settings): makes the files ready, downloading if need be, and checks them. The parent calls it once,
    before ranks start. ValueError, in one line, where that is impossible or a file is damaged. None: it loads them once."""
    options: tuple[str, ...] = ()
    """The settings of `DataOptions` that it takes, such as `("path", "samples")`; of one of ours, its line has them."""


def afford(size: int, what: str) -> None:
    """Raise ValueError where `what` takes more memory than is free now; `size` in bytes."""
    import psutil

    free = psutil.virtual_memory().available
    if size > free:
        sizes = f"{what} takes {size / 2**30:.1f} GiB of memory, and {free / 2**30:.1f} GiB are free"
        raise ValueError(f"{sizes}; make it smaller")

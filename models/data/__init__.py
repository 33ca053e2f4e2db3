"""The data sets: one file each. Importing this package imports no torch.

Owns the files of data sets, their content and their download. Knows nothing of models, recipes or ranks.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.models.data.dataset import DataSet, Origin
from bench.models.data.options import PLAIN, DataOptions
from ddp import user_code
from ddp.registries import blamed, member
from ddp.registry import Registry
from ddp.settings import known

if TYPE_CHECKING:
    from ddp.replica.task import Source

__all__ = ["DATA", "DataOptions", "DataSet", "Entry", "Origin", "check", "data_set", "own_data", "prepare", "title"]


@dataclass(frozen=True)
class Entry:
    """The entry of a data set in the registry."""

    module: str
    """Source (`ddp.user_code`) of the module that has its `ORIGIN`; imported on first use."""
    takes: tuple[str, ...] | None = ()
    """Settings of `DataOptions` that it accepts, also from a recipe for another data set; None: its `ORIGIN` lists them. It
    always accepts `samples` from a user, but not from such a recipe."""
    fewer: str = "first"
    """Which samples `data.samples` selects: the `first` ones, ones `drawn` by `data.seed`, or as many as the `file` then
    generates."""

    @property
    def options(self) -> tuple[str, ...]:
        """Settings that it accepts. Raises Unusable if its module must be imported and is broken."""
        return self.inherited if self.takes is None or "samples" in self.takes else (*self.takes, "samples")

    @property
    def inherited(self) -> tuple[str, ...]:
        """Settings that it accepts from a recipe of another data set. Raises Unusable as `options`."""
        if self.takes is not None:
            return self.takes
        origin: Origin = member("data set", self.module, self.module, "ORIGIN", Origin)
        return origin.options


_OURS = {
    "cifar10": Entry("bench.models.data.cifar10"),
    "cifar100": Entry("bench.models.data.cifar100"),
    "digits": Entry("bench.models.data.digits"),
    "fashion_mnist": Entry("bench.models.data.fashion_mnist"),
    "image_folder": Entry("bench.models.data.image_folder", ("path", "shape", "seed"), "drawn"),
    "mnist": Entry("bench.models.data.mnist"),
    "noisy_digits": Entry("bench.models.data.noisy_digits", ("samples",)),
    "pydoc": Entry("bench.models.data.pydoc", ("seq_len", "samples")),
    "shakespeare": Entry("bench.models.data.shakespeare", ("seq_len",)),
    "shifted_digits": Entry("bench.models.data.shifted_digits"),
    "synthetic": Entry("bench.models.data.synthetic", ("samples", "classes", "shape", "seed"), "file"),
    "text_file": Entry("bench.models.data.text_file", ("path", "seq_len")),
    "toy_language": Entry("bench.models.data.toy_language", ("seq_len", "samples")),
}
DATA: Registry[Entry] = Registry("data", _OURS, lambda entry: Entry(entry.value, None))
"""Name -> module of the data set, and the settings that it accepts."""


def own_data(word: str, beside: Path | None = None, name: str = "") -> str:
    """Return the name of a data set: `word` itself, or the name of the user's file or module that `word` means, which is
    added to `DATA`.

    Files are searched in `beside` (None: the current folder). `name`: name to register it under. Raise ValueError."""
    if word in DATA or not user_code.is_source(word):
        return word
    own, source = user_code.named(word, beside or Path.cwd())
    DATA.enrol(name or own, Entry(source, None), source)
    return name or own


def data_set(name: str, data_dir: str = "data", options: DataOptions = PLAIN) -> DataSet:
    """Open the data set `name`. Raise ValueError, in one line, for an unknown name, or for invalid settings or files."""
    origin = _origin(name, options)
    with _blamed(name):
        opened = origin.describe(data_dir, options)
    return opened if _all_of(name, options) else replace(opened, load=lambda: _fewer(name, opened, options))


def prepare(name: str, data_dir: str, options: DataOptions = PLAIN) -> None:
    """Prepare the files of data set `name`, once, before ranks open it. Raise ValueError as `data_set`."""
    origin = _origin(name, options)
    with _blamed(name):
        if origin.prepare is not None:
            origin.prepare(data_dir, options)
        if origin.prepare is None or not _all_of(name, options):
            data_set(name, data_dir, options).load()


def _all_of(name: str, options: DataOptions) -> bool:
    """Tell whether training uses all samples that the data set's file yields."""
    return options.samples is None or DATA[name].takes is None or DATA[name].fewer == "file"


def _fewer(name: str, opened: DataSet, options: DataOptions) -> tuple[Source, Source]:
    """Return (train, eval) with the requested number of training samples. Raise ValueError if there are fewer."""
    train, test = opened.load()
    if (samples := options.samples or 0) > len(train):
        raise ValueError(f"data.samples={samples}: data set {name} has {len(train)} samples to train on")
    part: Source = train.first(samples, options.seed or 0 if DATA[name].fewer == "drawn" else None)  # type: ignore[attr-defined]
    return part, test


def _origin(name: str, options: DataOptions) -> Origin:
    entry = DATA[known("data set", name, DATA)]
    check(name, options)
    origin: Origin = member("data set", name, entry.module, "ORIGIN", Origin)
    return origin


def _blamed(name: str) -> AbstractContextManager[None]:
    return blamed("data set", name, DATA[name].module, ValueError, OSError)


def title(name: str, options: DataOptions) -> str:
    """Describe a data set and its settings: `pydoc`, or `synthetic (samples 100, shape 3x8x8)`."""
    settings = [f"{key} {'x'.join(map(str, v)) if isinstance(v, list) else v}" for key, v in options.given.items()]
    return f"{name} ({', '.join(settings)})" if settings else name


def check(name: str, options: DataOptions) -> None:
    """Raise ValueError for a setting that the known data set `name` does not accept."""
    for key in options.given:
        if key not in DATA[name].options:
            takers = ", ".join(other for other, entry in DATA.items() if entry.takes and key in entry.options)
            remedy = f"leave it out, or choose data.name of {takers}"
            raise ValueError(f"data.{key} means nothing to data set {name}; {remedy}")

"""Converts a user's data set to a source: tensors, PyTorch's map-style data sets, or a source itself."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from ddp.data.draws import Draws
from ddp.data.errors import BadSample, some
from ddp.data.seeded import Seeded
from ddp.data.source import TensorSource, move

Collate = Callable[[list[Any]], Any]
"""List of samples -> batch."""
UNEQUAL = "; pad samples to one size, or give Trainer a collate_fn that does"


class _Turn:
    """Admits one thread at a time. After a fork it is free, because the thread that held it does not exist in the child."""

    def __init__(self) -> None:
        self._pid, self._lock = os.getpid(), threading.Lock()

    def taken(self) -> AbstractContextManager[Any]:
        """Return a context manager that holds it."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        return self._lock


class MapSource:
    """The samples of a map-style data set (`len`, `[index]`), collated by PyTorch's `default_collate` or by `collate`.

    Uses `__getitems__` if there is one, like PyTorch's own DataLoader. One thread reads at a time."""

    def __init__(
        self,
        dataset: Any,
        device: torch.device | None = None,
        turn: _Turn | None = None,
        collate: Collate = default_collate,
    ) -> None:
        if len(dataset) == 0:
            raise ValueError("the data set is empty")
        self.dataset, self._device, self._turn, self.collate = dataset, device, turn or _Turn(), collate

    def __reduce__(self) -> tuple[Any, ...]:
        return MapSource, (self.dataset, self._device, None, self.collate)

    def collated(self, collate: Collate) -> MapSource:
        """Return the same data, collated by `collate`."""
        return MapSource(self.dataset, self._device, self._turn, collate)

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, indices: Tensor, draws: Draws | None = None) -> Any:
        """Return the samples at `indices` (int64, shape [n]), in that order, collated, with tensors on the device.

        `draws`: random streams of these samples. The data set's draws from torch then use the stream of each sample, and
        are the same in every batch; `__getitems__` uses the stream of the first sample, and `collate` goes on where the
        samples end. Without `draws` they use torch's global generator. Raise BadSample."""
        wanted = indices.tolist()
        with self._turn.taken():
            samples, mode = self._read(wanted, draws)
        with _blamed(f"samples {some(wanted)} make no batch", self.collate):
            return move(_put_together(self.collate, samples, mode), self._device)

    def _read(self, wanted: list[int], draws: Draws | None) -> tuple[list[Any], Seeded | None]:
        """Return the samples, and what draws with `draws` go on with."""
        several = self._several()
        if draws is None:
            return self._together(several, wanted) if several else [self._one(index) for index in wanted], None
        with Seeded() as mode:
            seeds = draws.keys.tolist()
            if several and wanted:
                mode.seed(seeds[0])
                return self._together(several, wanted), mode
            samples = []
            for index, seed in zip(wanted, seeds, strict=True):
                mode.seed(seed)
                samples.append(self._one(index))
            return samples, mode

    def _several(self) -> Any:
        """Return the data set's `__getitems__`, if it has one. A Subset's is ignored if the data set below it has none,
        because it would read samples one by one."""
        inner = self.dataset
        while type(inner) is Subset:  # a Subset of a Subset
            inner = inner.dataset
        return getattr(self.dataset, "__getitems__", None) if hasattr(inner, "__getitems__") else None

    def _together(self, several: Any, wanted: list[int]) -> list[Any]:
        with _blamed(f"samples {some(wanted)}"):
            samples = several(wanted)
        # In a batch that is collated already, members of the same shape would be taken for samples.
        if isinstance(samples, Sized) and len(samples) != len(wanted):
            raise BadSample(
                f"samples {some(wanted)}: __getitems__ gave {len(samples)} for {len(wanted)} of them; it must give a "
                "list of samples, one for each, not a batch that is put together"
            )
        return samples  # type: ignore[no-any-return]

    def _one(self, index: int) -> Any:
        with _blamed(f"sample {index}"):
            return self.dataset[index]

    def to(self, device: torch.device) -> MapSource:
        """Return the same data, with batches on `device`."""
        return MapSource(self.dataset, device, self._turn, self.collate)


@contextmanager
def _blamed(what: str, collate: Collate | None = None) -> Iterator[None]:
    """Raise BadSample about `what` for any exception of the user's code in this block, with a remedy if torch's
    `default_collate` found samples of different sizes."""
    try:
        yield
    except Exception as error:
        remedy = UNEQUAL if collate is default_collate and "equal size" in str(error) else ""
        raise BadSample(f"{what}: {type(error).__name__}: {error}{remedy}") from error


class Rows:
    """Tensors of equal length as samples (a row of each; of a single tensor, the row itself) that `collate` makes into
    batches."""

    def __init__(self, source: TensorSource, collate: Collate) -> None:
        self.tensors, self._source, self.collate = source.tensors, source, collate

    def __len__(self) -> int:
        return len(self._source)

    @property
    def nbytes(self) -> int:
        """Return the bytes that `to` needs on a device."""
        return self._source.nbytes

    def batch(self, indices: Tensor, draws: Draws | None = None) -> Any:
        """Return the samples at `indices` (int64, shape [n]), in that order, collated. With `draws`, `collate` draws as for
        a `MapSource` of them. Raise BadSample."""
        members = self._source.batch(indices)
        samples = list(zip(*members, strict=True)) if len(members) > 1 else list(members[0])
        mode = None if draws is None else Seeded()
        if mode and draws and samples:
            mode.seed(int(draws.keys[-1]))
        with _blamed(f"samples {some(indices.tolist())} make no batch"):
            return move(_put_together(self.collate, samples, mode), self.tensors[0].device)

    def to(self, device: torch.device) -> Rows:
        """Return the same data on `device`."""
        return Rows(self._source.to(device), self.collate)


DRAWING = MapSource, Rows
"""Sources whose `batch` takes the random streams of its samples."""


def _put_together(collate: Collate, samples: list[Any], mode: Seeded | None) -> Any:
    """Return the batch of `samples`; `mode` seeds what `collate` draws. Raise ValueError if it returns None."""
    with nullcontext() if mode is None or collate is default_collate else mode:  # the default draws nothing
        batch = collate(samples)
    if batch is None:
        raise ValueError("collate_fn returned nothing; it must return the batch")
    return batch


def collated(source: Any, collate: Collate | None) -> Any:
    """Return `source` with its samples collated by `collate`; None: `source` itself.

    Raise ValueError for a source that gives whole batches."""
    if collate is None or not len(source):
        return source
    if type(source) is TensorSource:
        return Rows(source, collate)
    if isinstance(source, MapSource):
        return source.collated(collate)
    raise ValueError(
        f"collate_fn with a {type(source).__name__}, which gives whole batches: put samples together in its batch()"
    )


def as_source(dataset: Any, collate: Collate | None = None) -> Any:
    """Make a source from a tensor, a tuple or list of tensors, a TensorDataset, a map-style data set (also a list of tuples
    or mappings), or a source. With `collate`, every list is a list of samples.

    Raise ValueError for anything else, and for an empty data set."""
    if isinstance(dataset, Tensor):
        return TensorSource(dataset)
    if type(dataset) is TensorDataset:
        return TensorSource(*dataset.tensors)
    samples = isinstance(dataset, list) and all(isinstance(sample, (tuple, Mapping)) for sample in dataset)
    if isinstance(dataset, list) and dataset and (samples or collate is not None):
        return MapSource(dataset)
    if isinstance(dataset, (tuple, list)):
        if not dataset or not all(isinstance(member, Tensor) for member in dataset):
            raise ValueError("a tuple or list as data set must hold tensors of equal length, such as (inputs, targets)")
        return TensorSource(*dataset)
    if isinstance(dataset, Mapping) and 0 not in dataset:
        raise ValueError(
            "a mapping as data set must have samples 0, 1, ...; of tensors by name, give tuple(data.values())"
        )
    if isinstance(dataset, IterableDataset):
        raise ValueError("an IterableDataset has no order to be divided over ranks; give a map-style Dataset")
    if isinstance(dataset, DataLoader):
        raise ValueError(
            "a DataLoader of PyTorch as data set: give its own, dataset=loader.dataset, with batch_size, collate_fn and "
            "sampler as it has them; ranks read ahead and shuffle by themselves"
        )
    gives_batches = all(callable(getattr(dataset, name, None)) for name in ("batch", "to"))
    needed = ("__len__",) if gives_batches else ("__len__", "__getitem__")
    if not all(hasattr(type(dataset), name) for name in needed):
        kind = type(dataset).__name__
        raise ValueError(f"{kind} is no data set: give tensors, or a Dataset with a length and an index")
    if gives_batches and len(dataset) == 0:
        raise ValueError("the data set is empty")
    return dataset if gives_batches else MapSource(dataset)

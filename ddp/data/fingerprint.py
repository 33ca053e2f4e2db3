"""A fingerprint of a data set, of a few kilobytes: it distinguishes data sets of the same length. Knows no checkpoints.

Integers and strings are compared by a digest. Floats are compared by weighted sums of stretches, because another machine
may round differently: a difference of at most `ROUNDING` of a stretch counts as none.

Tensors of up to `WHOLE` bytes are read completely, larger ones in `PARTS` stretches at equal distances. In addition, some
samples at equal distances are read as the model gets them: collated, and augmented with the random numbers of their first
epoch. They are read twice. If the two readings differ, they say nothing about the data set, and are left out.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ddp.data.augment import Augment, augmented
from ddp.data.dataset import DRAWING
from ddp.data.draws import Draws
from ddp.data.epoch_order import EpochOrder
from ddp.data.seeded import others, seed_others, set_others
from ddp.tensor_digest import tensor_digest

WHOLE = 1 << 26
PARTS = 64
MOST, PATIENCE_S = 16, 0.5
"""Maximum number of samples that are read, and about the seconds that this may take; at least one is read."""
ORDER = 1 << 16
"""Number of positions of the first epoch that are compared."""
STRETCH = 1 << 14
"""Number of values in one sum."""
ROUNDING = 1e-6
UNSURE = "gives other samples each time it is read, so whether it is the one of before could not be checked"

Print = dict[str, Any]
"""A fingerprint: tensors and plain containers, which a checkpoint can hold."""


def fingerprint(source: Any, visits: EpochOrder, augment: Augment | None = None, like: Print | None = None) -> Print:
    """Return the fingerprint of a source whose samples are visited in the order of `visits`. `like`: another fingerprint to
    compare with; the same samples are read. Random generators are left unchanged."""
    tensors: tuple[Tensor, ...] = getattr(source, "tensors", ())
    marks: Print = {"tensors": [_described(tensor) for tensor in tensors]}
    if not len(source):
        return marks
    marks["order"] = tensor_digest([visits(0)[:ORDER]])
    with undisturbed():
        try:
            marks["drawn"] = _positions(source, visits) if like is None else like.get("drawn")
            marks["batch"] = _batch(source, visits, augment, marks["drawn"])
        except Exception:  # the user's code may raise anything: it will raise again when the sample is trained
            marks["batch"] = None
    return marks


def difference(before: Print, now: Print) -> str:
    """Describe the difference between two fingerprints; empty if there is none."""
    tensors = before.get("tensors"), now.get("tensors")
    if all(tensors) and not _same(*tensors):  # otherwise the same samples may be read one by one now
        return "samples"
    if before.get("order") != now.get("order"):
        return "order of samples"
    if unsure(before) or unsure(now) or _same(before.get("batch"), now.get("batch")):
        return ""
    return "batches (what a sample is, how batches are put together, or augmentation)"


def unsure(mark: Print) -> bool:
    """Return whether samples differed from one reading to the next."""
    return "batch" in mark and mark["batch"] is None


def _positions(source: Any, visits: EpochOrder) -> list[int]:
    """Choose samples at equal distances; fewer if reading is slow."""
    began = time.monotonic()
    _read(source, visits, None, [0])
    took = max(time.monotonic() - began, 1e-6)
    count = min(MOST, len(source), max(int(PATIENCE_S / (2 * took)), 1))
    return [len(source) * place // count for place in range(count)]


def _batch(source: Any, visits: EpochOrder, augment: Augment | None, drawn: Any) -> Any:
    """Describe some samples as the model gets them; None if they differ from one reading to the next."""
    if not isinstance(drawn, list) or not all(isinstance(n, int) and 0 <= n < len(source) for n in drawn):
        return []
    seen = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        seed_others(seed)
        seen.append(_parts(_read(source, visits, augment, drawn)))
    return seen[0] if _same(*seen) else None


def _read(source: Any, visits: EpochOrder, augment: Augment | None, drawn: list[int]) -> Any:
    indices = torch.tensor(drawn)
    draws = partial(Draws, visits.seed, 0, indices)
    batch = source.batch(indices, draws()) if isinstance(source, DRAWING) else source.batch(indices)
    return augmented(augment, batch, draws)


def _parts(batch: Any) -> list[Any]:
    """Describe all members of a batch."""
    if isinstance(batch, Tensor):
        return [_described(batch)]
    if isinstance(batch, Mapping):
        return [part for key, value in batch.items() for part in (str(key), *_parts(value))]
    if isinstance(batch, (tuple, list)):
        return [len(batch), *(part for member in batch for part in _parts(member))]
    if isinstance(batch, (str, bytes, int)):
        return [hashlib.sha256(repr(batch).encode()).hexdigest()]
    return [_described(torch.tensor(batch))] if isinstance(batch, float) else [type(batch).__name__]


def _described(tensor: Tensor) -> dict[str, Any]:
    about = {"shape": list(tensor.shape), "dtype": str(tensor.dtype), "layout": str(tensor.layout)}
    if tensor.layout is not torch.strided or not tensor.numel():
        return about
    if tensor.is_floating_point() or tensor.is_complex():
        sums, sizes = zip(*map(_sums, _stretches(tensor)), strict=True)
        return {**about, "sums": torch.cat(sums), "sizes": torch.cat(sizes)}
    return {**about, "digest": tensor_digest(_stretches(tensor))}


def _stretches(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensor, or stretches of a large one."""
    tensor = tensor.detach()
    if tensor.nbytes <= WHOLE or not tensor.dim():
        yield tensor
        return
    rows = len(tensor)
    each = max(WHOLE // PARTS * rows // tensor.nbytes, 1)
    for part in range(min(PARTS, rows)):
        start = (rows - each) * part // max(min(PARTS, rows) - 1, 1)
        yield tensor[start : start + each]


def _sums(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Return weighted sums of all stretches, and the sums of their magnitudes, float64."""
    flat = tensor.cpu().resolve_conj()
    flat = (torch.view_as_real(flat) if flat.is_complex() else flat).reshape(-1)
    weights = 1.5 + torch.sin(torch.arange(STRETCH, dtype=torch.float64))
    sums, sizes = [], []
    for stretch in torch.split(flat, STRETCH):
        values = stretch.double()
        sums.append(values @ weights[: len(values)])
        sizes.append(values.abs().sum())
    return torch.stack(sums), torch.stack(sizes)


def _same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        if left.keys() != right.keys():
            return False
        if "sums" in left:
            return _close(left, right)
        return all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    return bool(left == right)


def _close(left: dict[str, Any], right: dict[str, Any]) -> bool:
    alike = all(left[key] == right[key] for key in ("shape", "dtype", "layout"))
    if not alike or left["sums"].shape != right["sums"].shape:
        return False
    apart, size = (left["sums"] - right["sums"]).abs(), torch.maximum(left["sizes"], right["sizes"])
    same = torch.isclose(left["sums"], right["sums"], rtol=0.0, atol=0.0, equal_nan=True)  # infinite, or NaN
    return bool((same | (apart <= ROUNDING * size)).all())


@contextmanager
def undisturbed(gpus: bool = True) -> Iterator[None]:
    """Restore random generators after the block; with `gpus` also those of GPUs, which initialises CUDA."""
    before = others()
    devices = range(torch.cuda.device_count()) if gpus and torch.cuda.is_available() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        set_others(before)

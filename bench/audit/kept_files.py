"""Reads the files that ranks kept, which hold pieces of a state (`ddp.replica.evidence.pieces` has the format)."""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import Tensor

from ddp import regular_files


def raw(values: Tensor | None) -> Any:
    """Return the bytes of a tensor."""
    if values is None or not values.numel():
        return b""
    flat = torch.view_as_real(values) if values.is_complex() else values
    return flat.reshape(-1).contiguous().view(torch.uint8).numpy().data


PARAMETERS, BUFFERS, OPTIMIZER = "parameters", "buffers", "optimizer"


class Name(NamedTuple):
    """Identifies a tensor of a state."""

    kind: str
    name: str
    key: str = ""

    def __str__(self) -> str:
        return f"{self.kind.removesuffix('s')} {self.name}" + (f" {self.key}" if self.key else "")


@dataclass(frozen=True)
class Part:
    """Elements of a tensor from `start` on, every `every`-th one; or only their digest."""

    values: Tensor | None
    digest: str
    start: int
    every: int
    shape: tuple[int, ...]

    @property
    def sha256(self) -> str:
        """The digest of the values."""
        return self.digest or hashlib.sha256(raw(self.values)).hexdigest()


Parts = dict[Name, list[Part]]


class FollowingStep(NamedTuple):
    """A further step of a row."""

    seen: float
    work: tuple[tuple[int, int], ...]
    total: int


@dataclass(frozen=True)
class KeptStep:
    """What one rank kept of a step, or of a row of steps: the state before the first step and after the last."""

    file: str
    rank: int
    step: int
    """The rank's own number of the first step."""
    averages: int
    """Number of averages that the rank had applied before."""
    epoch: int
    seen: float
    """Samples that all ranks together had seen before the step, by what the rank was told."""
    work: tuple[tuple[int, int], ...]
    """(start, stop) positions in the epoch's order, batch by batch."""
    total: int
    """Samples in the step of all ranks."""
    together: bool
    """Whether it is a step of all ranks."""
    losses: tuple[float | None, ...]
    rates: tuple[float, ...]
    """Learning rates of the last step."""
    before: Parts
    after: Parts
    then: tuple[FollowingStep, ...] = ()
    scale: tuple[float, int] = (1.0, 0)
    """(Loss scale before the first step, steps since it changed), in fp16."""
    averaged: bool = False
    """Whether parameters were averaged inside it; then they were not kept after it."""
    at_once: bool = False
    """Whether one operation computed it for many ranks; such sums are rounded differently."""

    @property
    def row(self) -> tuple[FollowingStep, ...]:
        """All steps of the row, in order."""
        return (FollowingStep(self.seen, self.work, self.total), *self.then)

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """Positions of the batches of all steps."""
        return tuple(span for each in self.row for span in each.work)

    @property
    def place(self) -> str:
        """The place of the step, for messages."""
        return f"rank {self.rank}, epoch {self.epoch}, step {self.step}"


EvaluatedBatch = tuple[int, int, float | None, float | None]
"""(start, stop, sum of the loss, sum of the metric) of a batch; None: not finite."""


@dataclass(frozen=True)
class KeptEvaluation:
    """The model that was evaluated after an epoch."""

    file: str
    model: Parts
    whole: bool = True
    """Whether to repeat it on the whole test set; else on one batch."""


@dataclass(frozen=True)
class Kept:
    """Everything that ranks kept of a run."""

    steps: list[KeptStep] = field(default_factory=list)
    final: Parts = field(default_factory=dict)
    ends: dict[int, Parts] = field(default_factory=dict)
    """Rank -> the part of its final model that it kept."""
    evaluated: dict[int, KeptEvaluation] = field(default_factory=dict)
    """Epoch before the last -> the evaluated model."""
    batches: dict[int, dict[int, tuple[EvaluatedBatch, ...]]] = field(default_factory=dict)
    """Epoch -> rank -> evaluated batches of its part. Earlier versions have only the first rank's, or none."""
    averages: list[dict[str, Any]] = field(default_factory=list)
    """Digests of optimizer states before and after averages, with `rank` and `round`."""
    missing: list[str] = field(default_factory=list)
    """Names of recorded files that do not exist."""
    changed: list[str] = field(default_factory=list)
    """Names of files with another digest than recorded."""


def read(folder: Path, recorded: Iterable[tuple[str, int, str]]) -> Kept:
    """Read the files that were `recorded` (name, size, sha256) from a folder."""
    kept = Kept()
    for name, _, sha256 in recorded:
        try:
            with regular_files.opened(folder / name, regular_files.RECORDS) as file:
                values = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except FileNotFoundError:
            kept.missing.append(name)
            continue
        except (OSError, ValueError):  # an empty file
            kept.changed.append(name)
            continue
        if hashlib.sha256(values).hexdigest() == sha256:
            _take(kept, name, values)
        else:
            kept.changed.append(name)
    return kept


def _take(kept: Kept, name: str, values: mmap.mmap) -> None:
    size = int.from_bytes(values[-8:], "little")
    about: dict[str, Any] = msgspec.json.decode(values[-8 - size : -8])
    for state in ("before", "after", "final", "evaluated"):
        if state in about:
            about[state] = _parts(about[state], values)
    if "final" in about:
        kept.ends[about["rank"]] = about["final"]
        if about["rank"] == 0 or not kept.final:
            kept.final.update(about["final"])
        kept.averages.extend({**entry, "rank": about["rank"]} for entry in about["averages"])
        return
    if "evaluated" in about:
        batches = tuple((start, stop, loss, metric) for start, stop, loss, metric in about.get("batches", ()))
        if batches:
            kept.batches.setdefault(about["epoch"], {})[about["rank"]] = batches
        if not about["rank"]:
            kept.evaluated[about["epoch"]] = KeptEvaluation(name, about["evaluated"], about.get("whole", True))
        return
    about |= {name: tuple(about[name]) for name in ("losses", "rates", "scale") if name in about}
    about["work"] = _spans(about["work"])
    about["then"] = tuple(FollowingStep(seen, _spans(work), total) for seen, work, total in about.get("then", ()))
    others = about.pop("others", ())
    losses = about["losses"]
    own = {"losses": losses[:1]} if others else {}
    kept.steps.append(KeptStep(file=name, **about | own))
    for place, (rank, work) in enumerate(others, 1):  # ranks that share this state
        rest = {"rank": rank, "work": _spans(work), "losses": losses[place : place + 1], "before": {}, "after": {}}
        kept.steps.append(KeptStep(file=name, **about | rest))


def _spans(work: Iterable[Iterable[int]]) -> tuple[tuple[int, int], ...]:
    return tuple((start, stop) for start, stop in work)


def _parts(entries: Iterable[Mapping[str, Any]], values: mmap.mmap) -> Parts:
    parts: Parts = {}
    for entry in entries:
        name = Name(entry["kind"], entry["name"], entry["key"])
        tensor = None
        if "at" in entry:
            dtype: torch.dtype = getattr(torch, entry["dtype"])
            count = entry["bytes"] // dtype.itemsize
            tensor = torch.frombuffer(values, dtype=dtype, count=count, offset=entry["at"]) if count else torch.empty(0)
        part = Part(tensor, entry.get("sha256", ""), entry["start"], entry["every"], tuple(entry["shape"]))
        parts.setdefault(name, []).append(part)
    return parts


class Incomplete(ValueError):
    """A part of a state was not kept."""


def whole(parts: Iterable[tuple[Name, Part]]) -> dict[Name, Tensor]:
    """Return tensors by name, joined from the parts of all ranks. Raises Incomplete if a part is missing."""
    pieces: dict[Name, list[Part]] = {}
    for name, part in parts:
        if part.values is not None:
            pieces.setdefault(name, []).append(part)
    return {name: _joined(name, each) for name, each in pieces.items()}


def _joined(name: Name, parts: list[Part]) -> Tensor:
    shape, at, values = parts[0].shape, 0, []
    for part in sorted(parts, key=lambda each: each.start):
        assert part.values is not None
        if part.start != at or part.every != 1:
            raise Incomplete(f"{name} is kept in part")
        values.append(part.values)
        at += len(part.values)
    if at != torch.Size(shape).numel():
        raise Incomplete(f"{name} is kept in part")
    return torch.cat(values).view(shape)


def every(steps: Iterable[KeptStep], state: str) -> Iterator[tuple[Name, Part]]:
    """Iterate over all parts of a state, `before` or `after`, in the ranks' files of one step."""
    for step in steps:
        for name, parts in getattr(step, state).items():
            for part in parts:
                yield name, part

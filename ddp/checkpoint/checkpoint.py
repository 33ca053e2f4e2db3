"""Checkpoints on disk: writes the parts, puts a whole checkpoint into its place, finds and reads one.

    <folder>/000007/model.pt       parameters and buffers, `state_dict` among them; and what the backend keeps
                    rank-<r>.pt    the rank's optimizer state, rates and counters
                    books          the coordinator's checkpoint, size and sha256 of every part (msgpack); sha256 of it all

Parts are written in `.part-000007` beside it, which is renamed once all are there; the last two are kept. One that is torn
in spite of that (a disk that lost power) does not match its sums and is passed over. Nothing is unpickled but tensors and
plain containers (`weights_only`). Knows neither policies nor ranks' processes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from ddp import regular_files
from ddp.backends import world_of
from ddp.checkpoint.identity import Origin, RunIdentity, origin
from ddp.checkpoint.validity import contradiction, revived
from ddp.core.commands import CoordinatorCheckpoint, Publish
from ddp.process.resource_errors import of_file
from ddp.replica.task import Job

VERSION = 6
"""5 had no sha256 of the manifest itself."""
READABLE = (5, 6)
KEEP = 2
LARGEST_MANIFEST = 1 << 26
"""Bytes. They are a few thousand."""
LARGEST_PART = 1 << 42
"""Bytes. Parts have the size that the manifest says."""
MANIFEST, MODEL = "books", "model.pt"
RENAMED = (b"\xa8takeover", b"\xa9rebalance")
"""A field of plans as earlier versions wrote it, and its name now; both with the length that msgpack puts before them."""
File = tuple[str, int, str]
"""(name, bytes, sha256)."""
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes, torch.Size, torch.dtype, torch.device))
"""What is read back as it is, beside tensors and containers."""


class InvalidCheckpoint(ValueError):
    """A checkpoint that is not whole, or not of this project."""


class NotPlain(ValueError):
    """State to keep that would not be read back."""


@dataclass(frozen=True)
class Manifest:
    """The content of the file `books`."""

    version: int
    identity: RunIdentity
    run: str
    """Of the job that made it."""
    index: int
    members: tuple[int, ...]
    files: tuple[File, ...]
    books: CoordinatorCheckpoint
    """The coordinator's part, by its name on the disk."""


@dataclass(frozen=True)
class Checkpoint:
    """A whole checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def coordinator(self) -> CoordinatorCheckpoint:
        """As of the average that the checkpoint holds."""
        return self.manifest.books

    def part(self, rank: int) -> Path:
        """Return the file that `rank` goes on with: its own state, or another rank's if it was lost before."""
        return self.path / rank_file(rank if self.is_own(rank) else self.manifest.members[0])

    def origin(self, rank: int | None) -> Origin:
        """Return what the part that `rank` goes on with must say of itself; None: the model's part."""
        owner = rank if rank is None or self.is_own(rank) else self.manifest.members[0]
        return origin(self.manifest.run, self.manifest.index, owner)

    def is_own(self, rank: int) -> bool:
        """Return whether the part that `rank` goes on with is its own."""
        return rank in self.manifest.members


def rank_file(rank: int) -> str:
    """Return the name of a rank's part."""
    return f"rank-{rank}.pt"


def part_folder(folder: Path, index: int) -> Path:
    """Return where the parts of a checkpoint are written."""
    return folder / f".part-{index:06}"


def place(folder: Path, index: int) -> Path:
    """Return where a whole checkpoint lies."""
    return folder / f"{index:06}"


def _plain(state: Any) -> Any:
    """Return `state` with Python's numbers for NumPy's, which are not read back. Raises NotPlain for what has no such
    form."""
    if type(state) in (dict, OrderedDict):
        return type(state)((key, _plain(value)) for key, value in state.items())
    if type(state) in (list, tuple, set):
        return type(state)(_plain(value) for value in state)
    if isinstance(state, np.generic):
        return state.item()
    if isinstance(state, torch.Tensor) or type(state) in PLAIN:
        return state
    raise NotPlain(
        f"the state of the optimizer holds a {type(state).__name__}, and checkpoints hold tensors, numbers, texts, and "
        "lists, tuples, sets and dictionaries of these"
    )


def save(folder: Path, index: int, name: str, part: dict[str, Any]) -> File:
    """Write one part; one that cannot be written whole leaves nothing. Raises OSError that names it, NotPlain."""
    path = part_folder(folder, index) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = _plain(part)
    try:
        with path.open("wb") as file:  # of a path, torch keeps to itself why it could not be written
            torch.save(plain, file)
        return (name, path.stat().st_size, _sha256(path))
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise of_file(error, path) from error


def publish(job: Job, order: Publish) -> Path:
    """Put a checkpoint whose parts are all there into its place, and remove those that are too old; not the one that the
    run resumes from, which a rank that is started again reads. Raises OSError."""
    folder = job.checkpoint_folder
    assert folder is not None
    parts = part_folder(folder, order.index)
    manifest = Manifest(
        VERSION, RunIdentity.of(job), job.run, order.index, order.members, order.files, order.coordinator
    )
    (parts / MANIFEST).write_bytes(bound(msgspec.msgpack.encode(manifest)))
    whole = place(folder, order.index)
    shutil.rmtree(whole, ignore_errors=True)  # of an earlier run, as are all beyond this one
    os.rename(parts, whole)
    present = [path for path in _places(folder) if (path / MANIFEST).is_file()]
    beyond = [path for path in present if int(path.name) > order.index]
    # The next one may be in the making.
    left = [path for path in unfinished(folder) if int(path.name.rpartition("-")[2]) < order.index]
    source = None if job.resume is None else job.resume.resolve()
    outdated = [path for path in present[len(beyond) + KEEP :] if path.resolve() != source]
    for old in (*beyond, *outdated, *left):
        shutil.rmtree(old, ignore_errors=True)
    return whole


def discard(folder: Path, index: int) -> None:
    """Remove the parts of a checkpoint that cannot be made: on a full disk they would take the room of the next one."""
    shutil.rmtree(part_folder(folder, index), ignore_errors=True)


def _places(folder: Path) -> list[Path]:
    """Return the folders of checkpoints, the latest first. What else lies there is the user's."""
    return sorted(_named(folder, r"\d{6,}"), key=lambda path: int(path.name), reverse=True)


def unfinished(folder: Path) -> list[Path]:
    """Return the folders in which parts of a checkpoint were written that is not in its place."""
    return _named(folder, r"\.part-\d{6,}")


def _named(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob("*") if re.fullmatch(pattern, path.name, re.ASCII) and path.is_dir()]


def find(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """Return the latest whole checkpoint in `folder`, and a line for each one that is not whole."""
    problems: list[str] = []
    for path in _places(folder):
        try:
            return read(path), problems
        except InvalidCheckpoint as error:
            problems.append(str(error))
    return None, problems


def read(place: Path, job: Job | None = None, rank: int | None = None) -> Checkpoint:
    """Return the checkpoint in a folder. Of `rank` of `job`, only the parts that it reads are compared with their sha256.
    Raises InvalidCheckpoint with one line."""
    try:
        content = regular_files.content(place / MANIFEST, LARGEST_MANIFEST)
        body = unbound(content)
        manifest = msgspec.msgpack.decode((body or content).replace(*RENAMED), type=Manifest)
        if manifest.version not in READABLE:
            raise InvalidCheckpoint(f"{place}: of version {manifest.version}, this one reads {VERSION}")
        if (body is None) == (manifest.version >= VERSION):
            raise InvalidCheckpoint(f"{place / MANIFEST}: torn, its content is not what was written")
        _check(place, manifest)
        checkpoint = Checkpoint(place, manifest)
        own = None
        if rank is not None and job is not None and job.world_size == manifest.identity.world_size:  # no state is recut
            own = MODEL, checkpoint.part(rank).name
        for name, size, sha256 in manifest.files:
            path = place / name
            read_here = own is None or name in own
            if regular_files.size(path, LARGEST_PART) != size or (read_here and _sha256(path) != sha256):
                raise InvalidCheckpoint(f"{path}: torn, its content is not what was written")
    except OSError as error:
        raise InvalidCheckpoint(f"{error.filename or place}: {error.strerror or error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidCheckpoint(
            f"{place / MANIFEST}: not the manifest of a checkpoint, or not as it was written ({error})"
        ) from error
    return checkpoint


def bound(body: bytes) -> bytes:
    """Return the content of the file `books`: what it says, and the sha256 of that."""
    return body + hashlib.sha256(body).digest()


def unbound(content: bytes) -> bytes | None:
    """Return what the file `books` says; None if its sha256 is another one, or it has none."""
    size = hashlib.sha256().digest_size
    return content[:-size] if hashlib.sha256(content[:-size]).digest() == content[-size:] else None


def copy(checkpoint: Checkpoint, to: Path) -> None:
    """Write the files of a checkpoint into a new folder; what else lies there stays there. Raises OSError."""
    to.mkdir(parents=True)
    for name in (MANIFEST, *(name for name, _, _ in checkpoint.manifest.files)):
        regular_files.copy(checkpoint.path / name, to / name, LARGEST_PART)


def _check(place: Path, manifest: Manifest) -> None:
    """Raise InvalidCheckpoint unless the manifest can be what it claims."""
    world, members = manifest.identity.world_size, manifest.members
    names = sorted([MODEL, *map(rank_file, members)])
    whole = bool(members) and members == tuple(sorted(set(members))) and 0 <= members[0] <= members[-1] < world
    if not whole or sorted(name for name, _, _ in manifest.files) != names:
        raise InvalidCheckpoint(f"{place / MANIFEST}: it contradicts itself (ranks and their parts)")
    if wrong := contradiction(manifest.books, world, manifest.identity.epochs, manifest.index):
        raise InvalidCheckpoint(f"{place / MANIFEST}: it contradicts itself ({wrong})")


def resume(job: Job, rank: int | None = None) -> Checkpoint | None:
    """Return the checkpoint that `job` resumes from, with its policy's state; `rank`: see `read`. Raises ValueError if it
    is of another run."""
    if job.resume is None:
        return None
    checkpoint = read(job.resume, job, rank)
    before = checkpoint.manifest.identity
    if difference := RunIdentity.of(job).difference(before):
        raise ValueError(f"{job.resume}: {difference}; go on with what it was begun with, or begin anew")
    saved = checkpoint.coordinator
    if before.world_size != job.world_size:  # what the policy has learnt is of other ranks
        ledgers = tuple(ledger.among(job.world_size) for ledger in saved.ledgers)
        saved = replace(saved, policy_state=None, plan=None, ledgers=ledgers)
    world = world_of(job.backend, job.world_size, saved.epoch_samples, job.batch_size, job.epochs)
    try:
        saved = revived(saved, job.policy, world)
    except ValueError as error:
        raise InvalidCheckpoint(f"{job.resume}: {error}") from error
    return replace(checkpoint, manifest=replace(checkpoint.manifest, books=saved))


def _sha256(path: Path) -> str:
    with regular_files.opened(path, LARGEST_PART) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

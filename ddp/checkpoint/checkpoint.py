"""Checkpoints on disk: writes their parts, publishes complete ones, finds and reads them.

    <folder>/000007/model.pt       parameters and buffers, also as `state_dict`; and tensors of the backend
                    rank-<r>.pt    the rank's optimizer state, modules' extra state, learning rates and counters
                    books          manifest (msgpack): the coordinator's part, size and sha256 of each file; own sha256

Parts are written to `.part-000007` in the same folder, which is renamed when all parts are complete. The last two
checkpoints are kept. A checkpoint that is damaged nevertheless (the disk lost power) does not match its checksums and is
skipped. Only tensors and plain containers are unpickled (`weights_only`). Knows neither policies nor ranks' processes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from ddp import regular_files
from ddp.backends import world_of
from ddp.checkpoint.identity import Origin, RunIdentity, origin, other_epochs
from ddp.checkpoint.validity import contradiction, revived
from ddp.core.messages.commands import CoordinatorCheckpoint, Publish
from ddp.process.resource_errors import of_file
from ddp.replica.memory.plain import plain
from ddp.replica.task import Job, epoch_samples

VERSION = 6
"""Version of the format. Version 5 had no sha256 of the manifest."""
READABLE = (5, 6)
KEEP = 2
LARGEST_MANIFEST = 1 << 26
"""Maximum size in bytes; real manifests have a few thousand."""
LARGEST_PART = 1 << 42
"""Maximum size in bytes; the manifest has the exact size of each part."""
MANIFEST, MODEL = "books", "model.pt"
RENAMED = (b"\xa8takeover", b"\xa9rebalance")
"""(former, present) name of a field of plans, each with its msgpack length prefix."""
File = tuple[str, int, str]
"""(name, bytes, sha256)."""


class InvalidCheckpoint(ValueError):
    """The checkpoint is damaged, or was not written by this project."""


@dataclass(frozen=True)
class Manifest:
    """Content of the file `books`."""

    version: int
    identity: RunIdentity
    run: str
    """Name of the run that saved it."""
    index: int
    members: tuple[int, ...]
    files: tuple[File, ...]
    books: CoordinatorCheckpoint
    """The coordinator's part, under the name that it has on disk."""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint."""

    path: Path
    manifest: Manifest

    @property
    def coordinator(self) -> CoordinatorCheckpoint:
        """Return the coordinator's state at the average that the checkpoint contains."""
        return self.manifest.books

    def part(self, rank: int) -> Path:
        """Return the file from which `rank` resumes: its own, or another rank's if `rank` was lost when the checkpoint was
        saved."""
        return self.path / rank_file(rank if self.is_own(rank) else self.manifest.members[0])

    def origin(self, rank: int | None) -> Origin:
        """Return the origin that must be recorded in the part from which `rank` resumes; None: in the model's part."""
        owner = rank if rank is None or self.is_own(rank) else self.manifest.members[0]
        return origin(self.manifest.run, self.manifest.index, owner)

    def is_own(self, rank: int) -> bool:
        """Return whether `rank` resumes from its own part."""
        return rank in self.manifest.members

    def absent(self, job: Job) -> int:
        """Return how many of the last ranks are absent when `job` resumes: none of those that had joined."""
        size = self.manifest.identity.world_size
        return min(job.absent, size - 1 - self.manifest.members[-1]) if job.world_size == size else job.absent


def rank_file(rank: int) -> str:
    """Return the name of a rank's part."""
    return f"rank-{rank}.pt"


def part_folder(folder: Path, index: int) -> Path:
    """Return the folder in which the parts of a checkpoint are written."""
    return folder / f".part-{index:06}"


def place(folder: Path, index: int) -> Path:
    """Return the folder of a complete checkpoint."""
    return folder / f"{index:06}"


def save(folder: Path, index: int, name: str, part: dict[str, Any]) -> File:
    """Write one part. If that fails, no file is left. Raises OSError that names the file; NotPlain."""
    path = part_folder(folder, index) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    checked = plain(part, "the state of the optimizer")
    try:
        with path.open("wb") as file:  # given a path, torch does not report why writing failed
            torch.save(checked, file)
        return (name, path.stat().st_size, _sha256(path))
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise of_file(error, path) from error


def publish(job: Job, order: Publish) -> Path:
    """Rename a checkpoint whose parts are complete to its final name, and remove older ones. Keeps the checkpoint that the
    run resumes from, which a restarted rank reads. Raises OSError."""
    folder = job.checkpoint_folder
    assert folder is not None
    parts = part_folder(folder, order.index)
    manifest = Manifest(
        VERSION, RunIdentity.of(job), job.run, order.index, order.members, order.files, order.coordinator
    )
    (parts / MANIFEST).write_bytes(bound(msgspec.msgpack.encode(manifest)))
    whole = place(folder, order.index)
    shutil.rmtree(whole, ignore_errors=True)  # checkpoints with this or a higher index are of an earlier run
    os.rename(parts, whole)
    present = [path for path in _places(folder) if (path / MANIFEST).is_file()]
    beyond = [path for path in present if int(path.name) > order.index]
    # Parts of the next checkpoint may be in progress.
    left = [path for path in unfinished(folder) if int(path.name.rpartition("-")[2]) < order.index]
    source = None if job.resume is None else job.resume.resolve()
    outdated = [path for path in present[len(beyond) + KEEP :] if path.resolve() != source]
    for old in (*beyond, *outdated, *left):
        shutil.rmtree(old, ignore_errors=True)
    return whole


def discard(folder: Path, index: int) -> None:
    """Remove the parts of a checkpoint that failed; on a full disk, the next one needs their space."""
    shutil.rmtree(part_folder(folder, index), ignore_errors=True)


def _places(folder: Path) -> list[Path]:
    """Return the folders of complete checkpoints, the latest first. Ignores other files, which are the user's."""
    return sorted(_named(folder, r"\d{6,}"), key=lambda path: int(path.name), reverse=True)


def unfinished(folder: Path) -> list[Path]:
    """Return the folders with parts of checkpoints that were not published."""
    return _named(folder, r"\.part-\d{6,}")


def _named(folder: Path, pattern: str) -> list[Path]:
    return [path for path in folder.glob("*") if re.fullmatch(pattern, path.name, re.ASCII) and path.is_dir()]


def find(
    folder: Path, check: Callable[[Checkpoint], None] = lambda checkpoint: None
) -> tuple[Checkpoint | None, list[str]]:
    """Return the latest valid checkpoint in `folder` (None: there is none), and one line for each invalid one. `check`
    raises InvalidCheckpoint for those that cannot be used."""
    problems: list[str] = []
    for path in _places(folder):
        try:
            checkpoint = read(path)
            check(checkpoint)
            return checkpoint, problems
        except InvalidCheckpoint as error:
            problems.append(str(error))
    return None, problems


def _manifest(place: Path) -> Manifest:
    content = regular_files.content(place / MANIFEST, LARGEST_MANIFEST)
    body = unbound(content)
    manifest = msgspec.msgpack.decode((body or content).replace(*RENAMED), type=Manifest)
    if manifest.version not in READABLE:
        raise InvalidCheckpoint(f"{place}: of version {manifest.version}, this one reads {VERSION}")
    if (body is None) == (manifest.version >= VERSION):
        raise InvalidCheckpoint(f"{place / MANIFEST}: torn, its content is not what was written")
    _check(place, manifest)
    return manifest


def names(place: Path) -> tuple[str, ...]:
    """Return the names of the files of a checkpoint that was read before; others in its folder are the user's."""
    return (MANIFEST, *(name for name, _, _ in _manifest(place).files))


def read(place: Path, job: Job | None = None, rank: int | None = None) -> Checkpoint:
    """Return the checkpoint in a folder. With `job` and `rank`, only the parts that this rank reads are checked by their
    sha256. Raises InvalidCheckpoint, in one line."""
    try:
        manifest = _manifest(place)
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
    """Return the content of the file `books`: `body` and its sha256."""
    return body + hashlib.sha256(body).digest()


def unbound(content: bytes) -> bytes | None:
    """Return the body of the file `books`; None if its sha256 is missing or wrong."""
    size = hashlib.sha256().digest_size
    return content[:-size] if hashlib.sha256(content[:-size]).digest() == content[-size:] else None


def copy(checkpoint: Checkpoint, to: Path) -> None:
    """Copy the files of a checkpoint to a new folder; other files are not copied. Raises OSError."""
    to.mkdir(parents=True)
    for name in (MANIFEST, *(name for name, _, _ in checkpoint.manifest.files)):
        regular_files.copy(checkpoint.path / name, to / name, LARGEST_PART)


def _check(place: Path, manifest: Manifest) -> None:
    """Raise InvalidCheckpoint if the manifest contradicts itself."""
    world, members = manifest.identity.world_size, manifest.members
    names = sorted([MODEL, *map(rank_file, members)])
    whole = bool(members) and members == tuple(sorted(set(members))) and 0 <= members[0] <= members[-1] < world
    if not whole or sorted(name for name, _, _ in manifest.files) != names:
        raise InvalidCheckpoint(f"{place / MANIFEST}: it contradicts itself (ranks and their parts)")
    if wrong := contradiction(manifest.books, world, manifest.identity.epochs, manifest.index):
        raise InvalidCheckpoint(f"{place / MANIFEST}: it contradicts itself ({wrong})")


def resume(job: Job, rank: int | None = None) -> Checkpoint | None:
    """Return the checkpoint from which `job` resumes, with the state of its policy; None if it does not resume. `rank`:
    as in `read`. Raises ValueError for a checkpoint of another run, InvalidCheckpoint for a damaged one."""
    if job.resume is None:
        return None
    checkpoint = read(job.resume, job, rank)
    before = checkpoint.manifest.identity
    if difference := RunIdentity.of(job).difference(before):
        raise ValueError(f"{job.resume}: {difference}; go on with what it was begun with, or begin anew")
    saved = checkpoint.coordinator
    length = epoch_samples(job)
    if length is not None and (difference := other_epochs(saved.epoch_samples, length, before, job)):
        raise InvalidCheckpoint(f"{job.resume}: {difference}")
    if before.world_size != job.world_size:  # the policy's state is about other ranks
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

"""The run folder, the only interface between producing and judging: what lies in it, where it lies, and how it is read.

Knows nothing of what the numbers mean, nor of how a folder comes into place (`bench.results.writer`).
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from errno import ELOOP
from pathlib import Path
from typing import Any

import msgspec
import psutil
from pydantic import ValidationError

from bench.base.usage import tame
from bench.results.lease import Hidden, in_making, leased
from bench.results.schema import READABLE, Metrics
from ddp import regular_files
from ddp.core.errors import ProtocolError
from ddp.process.codec import Record, decode

METRICS, CONFIG, EVENTS, GRAPH = "metrics.json", "config.json", "events.jsonl", "graph.json"
LOG = "training.log"
SLICES = "slices-*.jsonl"
"""What ranks measure themselves, while the run lasts; among the events when it is over."""
CHECKPOINTS = "checkpoints"
"""Folder of checkpoints in that of a run that is not finished."""
FAILED = ".failed"
"""Suffix of a failed rerun that lies beside the finished run it must not destroy."""


def place(output: Path, model: str, mode: str, run_id: str) -> Path:
    """Return where the folder of a run lies."""
    return output / model / mode / run_id


class Shut(ValueError):
    """What may not be looked at. One line that names it."""


def finished(output: Path, model: str, mode: str, run_id: str, timed: bool = False) -> bool:
    """Return whether that run is there with status `ok`, and with its speed, if it is to be `timed`. Raises Shut where
    nobody may look."""
    try:
        metrics = _read(place(output, model, mode, run_id)).metrics
        return metrics.status == "ok" and (metrics.timing or not timed)
    except Shut as error:
        raise Shut(f"{error}; whether that run is finished cannot be told: make its folder readable") from None
    except ValueError:
        return False


def status(folder: Path) -> str | None:
    """Return the status of the run in `folder`; None if there is no result to be read."""
    try:
        return _read_metrics(folder).status
    except ValueError:
        return None


def may_be_ok(folder: Path) -> bool:
    """Return whether a finished run is there, as far as anybody may look."""
    try:
        return _read_metrics(folder).status == "ok"
    except ValueError as error:
        return isinstance(error, Shut)


def resumable(folder: Path) -> bool:
    """Return whether there is a checkpoint that somebody may want to resume from."""
    return any((folder / CHECKPOINTS).glob("[0-9]*"))


def reached(folder: Path) -> int:
    """Return the number of the last checkpoint; 0: there is none."""
    return max((int(path.name) for path in (folder / CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()), default=0)


def going_on(folder: Path) -> str:
    """Return the command that goes on with the run in `folder`; empty if it has no checkpoint."""
    return resuming(folder) if resumable(folder) else ""


def resuming(folder: Path) -> str:
    """Return the command that goes on with the run in `folder`, which has a checkpoint or will have."""
    return f"python -m bench {shlex.quote(f'resume={folder.absolute()}')}"


def writer(folder: Path) -> Hidden | None:
    """Return who writes a hidden folder, if that process may live. One of this host that began after the last record only
    bears its number."""
    own = in_making(folder)
    if own is None:
        return None
    if not own.here:
        return own if leased(folder) else None
    try:
        began, wrote = psutil.Process(own.pid).create_time(), (folder / EVENTS).stat().st_mtime
    except (psutil.Error, OSError, OverflowError):
        return None
    return own if began <= wrote else None


def unfinished(path: Path) -> list[tuple[Path, Hidden | None]]:
    """Return the runs in `path`, a tree or the place of one, that have no folder yet: their places, and the process that
    makes one; None: it was killed, and can be resumed."""
    runs = []
    for folder in sorted(path.rglob(".tmp-*-*")):
        own, process = in_making(folder), writer(folder)
        if own is not None and folder.is_dir() and (process is not None or resumable(folder)):
            runs.append((folder.with_name(own.name), process))
    return runs


@dataclass(frozen=True)
class Run:
    """A run folder as read."""

    path: Path
    metrics: Metrics
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration; empty if it is not there."""


def find_runs(path: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in `path` (a run folder or a tree), in the order of their paths; and one line for each that cannot
    be read, and for each folder that may not be looked into. Raises ValueError if `path` is no folder."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give a run folder or a tree of them, such as runs/")
    runs: list[Run] = []
    problems: list[str] = []
    shut: list[OSError] = []
    for folder in _run_folders(path, shut):
        try:
            runs.append(_read(folder))
        except ValueError as error:
            problems.append(tame(str(error)))
        except RecursionError:
            problems.append(tame(f"{folder}: a file in it is nested too deeply to be a run's"))
    return runs, [*problems, *map(located, shut)]


def _run_folders(path: Path, unread: list[OSError]) -> Iterator[Path]:
    inside = os.path.realpath(path)
    for folder, subfolders, files in regular_files.walk(path, unread):
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        if not {METRICS, EVENTS, CONFIG}.isdisjoint(files):
            subfolders.clear()
            yield folder
        for link in filter(Path.is_symlink, map(folder.joinpath, subfolders)):
            if not Path(os.path.realpath(link)).is_relative_to(inside):
                unread.append(OSError(ELOOP, "a link out of the tree; give what it leads to", str(link)))


def _read(folder: Path) -> Run:
    """Read it. Raises ValueError: one line that names the file and what is wrong with it."""
    return Run(folder, _read_metrics(folder), _read_config(folder))


def _read_metrics(folder: Path) -> Metrics:
    """Read it. Raises ValueError: one line that names the file and what is wrong with it."""
    path = folder / METRICS
    body = read_object(path)
    version = body.get("schema_version")
    if version not in READABLE:
        raise ValueError(
            f"{path}: schema_version is {version!r}, this version reads {' and '.join(map(str, READABLE))}"
        )
    try:
        return Metrics.model_validate(tame_all(body))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ValueError(f"{path}: {where}: {first['msg']}{more}") from None


def tame_all(value: Any) -> Any:
    """Return what JSON can hold with its texts tame."""
    if isinstance(value, str):
        return tame(value)
    if isinstance(value, list):
        return [tame_all(inner) for inner in value]
    return {tame_all(key): tame_all(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _read_config(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = tame_all(read_object(folder / CONFIG)) if there(folder / CONFIG) else {}
    return config


def located(error: OSError) -> str:
    """Return a line that begins with the path that an error is about."""
    return f"{error.filename}: {error.strerror}"


def there(path: Path) -> bool:
    """Return whether there is anything of that name, readable or not; a link that leads nowhere is something. Raises
    OSError where nobody may look."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises ValueError: one line that names the file and what is wrong with it."""
    try:
        body = msgspec.json.decode(regular_files.content(path))
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except PermissionError as error:
        raise Shut(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"{path}: not a JSON object")
    return body


def flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return dotted keys and values as text, in the order of the file."""
    if not isinstance(config, dict) or not config:
        text = config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)
        return [(prefix, text)] if prefix else []
    return [pair for key, value in config.items() for pair in flat(value, f"{prefix}.{key}" if prefix else str(key))]


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the events and commands of a run, one by one, as written. Raises ValueError that names file and line."""
    path = folder / EVENTS
    for number, line in enumerate(regular_files.lines(path), 1):
        try:
            yield decode(line)
        except ProtocolError as error:
            raise ValueError(f"{path}:{number}: {error}") from None

"""The run folder, the only interface between producing and judging results: its files, its place, and how it is read.

Knows nothing of what the numbers mean, nor of how a folder gets into place (`bench.results.writer`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from errno import ELOOP
from pathlib import Path
from typing import Any

import msgspec
import psutil
from pydantic import ValidationError

from bench.base.canonical import once
from bench.base.paths import searched
from bench.base.usage import tame
from bench.config.overrides import setting
from bench.results.lease import Hidden, in_making, leased
from bench.results.schema import READABLE, Metrics
from ddp import regular_files
from ddp.core.errors import ProtocolError
from ddp.process.codec import Record, decode

METRICS, CONFIG, EVENTS, GRAPH = "metrics.json", "config.json", "events.jsonl", "graph.json"
LOG = "training.log"
SLICES = "slices-*.jsonl"
"""Files of the ranks' own measurements during the run; at its end they are merged into the events."""
CHECKPOINTS = "checkpoints"
"""Folder of checkpoints inside the folder of an unfinished run."""
FAILED = ".failed"
"""Suffix of the folder of a failed rerun, which must not replace the finished run beside it."""


def place(output: Path, model: str, mode: str, run_id: str) -> Path:
    """Return the path of a run's folder."""
    return output / model / mode / run_id


class Shut(ValueError):
    """Access to a file or folder is denied. The message is one line that names it."""


def finished(output: Path, model: str, mode: str, run_id: str, timed: bool = False) -> bool:
    """Return whether that run exists with status `ok`, and if `timed` with measured speeds. Raises Shut if access is
    denied."""
    try:
        metrics = _read(place(output, model, mode, run_id)).metrics
        return metrics.status == "ok" and (metrics.timing or not timed)
    except Shut as error:
        raise Shut(f"{error}; whether that run is finished cannot be told: make its folder readable") from None
    except ValueError:
        return False


def status(folder: Path) -> str | None:
    """Return the status of the run in `folder`; None if no result can be read."""
    try:
        return _read_metrics(folder).status
    except ValueError:
        return None


def may_be_ok(folder: Path) -> bool:
    """Return whether a finished run is in `folder`; also true if access is denied."""
    try:
        return _read_metrics(folder).status == "ok"
    except ValueError as error:
        return isinstance(error, Shut)


def resumable(folder: Path) -> bool:
    """Return whether there is a checkpoint to resume from."""
    return any((folder / CHECKPOINTS).glob("[0-9]*"))


def reached(folder: Path) -> int:
    """Return the number of the last checkpoint; 0 if there is none."""
    return max((int(path.name) for path in (folder / CHECKPOINTS).glob("[0-9]*") if path.name.isdecimal()), default=0)


def going_on(folder: Path) -> str:
    """Return the command that resumes the run in `folder`; empty if it has no checkpoint."""
    return resuming(folder) if resumable(folder) else ""


def resuming(folder: Path) -> str:
    """Return the command that resumes the run in `folder`, which has a checkpoint or will have one."""
    return f"python -m bench {setting('resume', str(folder.absolute()))}"


def unended(folder: Path) -> str:
    """Return what there is to do about a run whose records have no end: it is going on, or was killed."""
    if (maker := writer(folder)) is not None:
        return f"it has not ended: process {maker.process} is at it; wait for it"
    more = going_on(folder)
    return (
        f"it was killed before its end; {f'go on with it: {more}' if more else 'it has no checkpoint: train it again'}"
    )


def writer(folder: Path) -> Hidden | None:
    """Return the process that writes a hidden folder, if it may live. A process of this host that began after the last
    record has only inherited the process id."""
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
    """Return the runs in `path` (a tree, or the place of one run) that have no final folder yet: (place, writing
    process). None: the process was killed, and the run can be resumed."""
    runs = []
    for folder in sorted(path.rglob(".tmp-*-*")):
        own, process = in_making(folder), writer(folder)
        if own is not None and folder.is_dir() and (process is not None or resumable(folder)):
            runs.append((folder.with_name(own.name), process))
    return runs


@dataclass(frozen=True)
class Run:
    """A run folder that was read."""

    path: Path
    metrics: Metrics
    config: dict[str, Any] = field(default_factory=dict)
    """The resolved configuration; empty if there is none."""


def find_runs(path: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in `path` (a run folder or a tree), sorted by path; and a line for each run that cannot be read
    and each folder to which access is denied. Raises ValueError if `path` is no folder."""
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
        subfolders[:] = sorted(filter(searched, subfolders))
        if not {METRICS, EVENTS, CONFIG}.isdisjoint(files):
            subfolders.clear()
            yield folder
        for link in filter(Path.is_symlink, map(folder.joinpath, subfolders)):
            if not Path(os.path.realpath(link)).is_relative_to(inside):
                unread.append(OSError(ELOOP, "a link out of the tree; give what it leads to", str(link)))


def _read(folder: Path) -> Run:
    """Read a run folder. Raises ValueError, one line that names the file and what is wrong with it."""
    return Run(folder, _read_metrics(folder), _read_config(folder))


def _read_metrics(folder: Path) -> Metrics:
    """Read the result of a run. Raises ValueError, one line that names the file and what is wrong with it."""
    path = folder / METRICS
    body = _tame_object(path)
    version = body.get("schema_version")
    if version not in READABLE:
        raise ValueError(
            f"{path}: schema_version is {version!r}, this version reads {' and '.join(map(str, READABLE))}"
        )
    try:
        return Metrics.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        raise ValueError(f"{path}: {where}: {first['msg']}{more}") from None


def tame_all(value: Any) -> Any:
    """Return a JSON value with control characters in its texts made harmless."""
    if isinstance(value, str):
        return tame(value)
    if isinstance(value, list):
        return [tame_all(inner) for inner in value]
    return {tame_all(key): tame_all(inner) for key, inner in value.items()} if isinstance(value, dict) else value


def _read_config(folder: Path) -> dict[str, Any]:
    return _tame_object(folder / CONFIG) if there(folder / CONFIG) else {}


def _tame_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file through `tame_all`, which printable ASCII without escapes does not need. Raises
    ValueError as `read_object`."""
    text = _content(path)
    body = _object(path, text)
    tame_already = text.isascii() and b"\\" not in text and b"\x7f" not in text
    return body if tame_already else {tame_all(key): tame_all(value) for key, value in body.items()}


def located(error: OSError) -> str:
    """Return the error as a line that begins with its path."""
    return f"{error.filename}: {error.strerror}"


def there(path: Path) -> bool:
    """Return whether the path exists, readable or not; a dangling link exists. Raises OSError if access is denied."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def group_of(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a group of a run's configuration, which may be malformed: {} if it has no such group."""
    group = config.get(name)
    return group if isinstance(group, dict) else {}


def read_object(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file. Raises ValueError, one line that names the file and what is wrong with it."""
    return _object(path, _content(path))


def check_keys(path: Path) -> None:
    """Raise ValueError, one line that names the file, if an object in its JSON has a key twice."""
    try:
        json.loads(_content(path), object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None


def _content(path: Path) -> bytes:
    try:
        return regular_files.content(path)
    except FileNotFoundError:
        raise ValueError(f"{path}: missing") from None
    except PermissionError as error:
        raise Shut(f"{path}: {error.strerror}") from None
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # a name that no file can have
        raise ValueError(f"{path}: not JSON: {error}") from None


def _object(path: Path, text: bytes) -> dict[str, Any]:
    try:
        body = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise ValueError(f"{path}: not a JSON object")
    return body


def flat(config: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Return (dotted key, value as text) pairs, in the order of the file."""
    if not isinstance(config, dict) or not config:
        text = config if isinstance(config, str) else json.dumps(config, ensure_ascii=False)
        return [(prefix, text)] if prefix else []
    return [pair for key, value in config.items() for pair in flat(value, f"{prefix}.{key}" if prefix else str(key))]


@contextmanager
def of_run(folder: Path) -> Iterator[None]:
    """Raise ValueError, one line, for an error of what is computed from records in a folder that no run has written."""
    try:
        yield
    except (ArithmeticError, AssertionError, LookupError) as error:
        raise ValueError(f"{folder / EVENTS}: not the records of a run ({type(error).__name__}: {error})") from error


def read_records(folder: Path) -> Iterator[Record]:
    """Yield the events and commands of a run, as written. Raises ValueError that names the file and line."""
    path = folder / EVENTS
    for number, line in enumerate(regular_files.lines(path), 1):
        try:
            yield decode(line)
        except ProtocolError as error:
            raise ValueError(f"{path}:{number}: {error}") from None

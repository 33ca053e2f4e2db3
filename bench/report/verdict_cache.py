"""A cache of verdicts in the user's cache folder, so that a report need not read all records of a tree judged before.

Only reports use it: `bench validate` judges anew each time. The key is a digest of everything that verdicts follow
from: contents and paths of run folders and baselines, the project's source, its libraries, and the day. Any change
leads to a new judgement. Nothing is cached beside runs, so that a copied tree brings no verdicts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import msgspec

from bench.base.paths import CONF, PACKAGE, ROOT, judged_by
from bench.base.writing import write_bytes
from bench.results.cells import Cell
from bench.validate import Verdict, judge_cells
from bench.validate.baseline_history import head
from bench.validate.checks import CHECKS
from bench.validate.expected import FILE
from ddp import regular_files

MOST = 64
"""Most trees in the cache; the latest stay."""
ENDING = ".verdicts"
UNREAD = ("audit", "timeline.csv", "timeline.html", "timeline.json", "timeline.png")
"""Large files of a run folder that are left out of the digest, as no verdict follows from them."""
LIBRARIES = ("numpy", "scipy", "msgspec", "pydantic")
SOURCES = (PACKAGE, ROOT / "ddp", CONF, (PACKAGE / "models").resolve())
_encoder, _decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(list[Verdict])


def verdicts(grouped: Sequence[Cell], unreadable: Sequence[tuple[str, str]], baselines: Path) -> list[Verdict]:
    """Return the verdicts of `judge_cells` on cells already read, from the cache if nothing has changed."""
    key = _key(grouped, unreadable, baselines)
    with suppress(OSError, msgspec.MsgspecError):
        if key:
            return _decoder.decode(regular_files.content(folder() / key))
    anew = judge_cells(grouped, unreadable, baselines).verdicts
    with suppress(OSError):
        if key and key == _key(grouped, unreadable, baselines):  # nothing was changed meanwhile
            _keep(folder() / key, _encoder.encode(anew))
    return anew


def _key(grouped: Sequence[Cell], unreadable: Sequence[tuple[str, str]], baselines: Path) -> str:
    """Return the name of the cache file; empty if the inputs cannot all be read, so that nothing is cached."""
    if not all(map(CHECKS.is_ours, CHECKS)):
        return ""
    try:
        folder()
        return f"{_digest(grouped, unreadable, baselines)}{ENDING}"
    except (OSError, RuntimeError):  # or nobody has a home
        return ""


def folder() -> Path:
    """Return the cache folder, which only this user can read."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "elche-bench" / "verdicts"


def _keep(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_bytes(path, body)
    for old in sorted(path.parent.glob(f"*{ENDING}"), key=lambda file: file.stat().st_mtime)[:-MOST]:
        old.unlink(missing_ok=True)


def _digest(grouped: Sequence[Cell], unreadable: Sequence[tuple[str, str]], baselines: Path) -> str:
    """Return the digest of all that verdicts follow from: results as read, and files as they lie there. Raise OSError."""
    used = judged_by(baselines)
    places = [path if path.is_dir() else path.parent for path in used]
    runs = [run for cell in grouped for run in cell.runs]
    about = [*map(version, LIBRARIES), sys.version, str(datetime.now(UTC).date()), str(Path.cwd()), repr(unreadable)]
    about += [cell.name for cell in grouped] + [run.metrics.model_dump_json() for run in runs]
    about += [repr(run.config) for run in runs] + [*map(head, places), *map(str, used)]
    total = sha256()
    for text in about:
        total.update(sha256(text.encode(errors="surrogateescape")).digest())
    references = (*used, *(place / FILE for place in places))
    for path in (*_files((run.path for run in runs), UNREAD), *_files(references), *_files(SOURCES)):
        total.update(sha256(os.fsencode(path)).digest())
        total.update(sha256(regular_files.content(path)).digest())
    return total.hexdigest()


def _files(roots: Iterable[Path], without: Collection[str] = ("__pycache__",)) -> Iterator[Path]:
    """Yield the files below folders in a fixed order, and roots that are files themselves; leaves out the names
    `without`. Raises OSError for a folder that cannot be read."""
    for root in roots:
        unread: list[OSError] = []
        for place, folders, names in regular_files.walk(root, unread):
            folders[:] = sorted(name for name in folders if name not in without)
            yield from (place / name for name in sorted(names) if name not in without)
        if unread:
            raise unread[0]
        if root.is_file():
            yield root

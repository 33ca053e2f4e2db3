"""Whether git's history confirms a baseline: each version names the digest of the version that it replaced.

This finds an edited file whose digest was recomputed: it does not name the version before it, or it is weaker without a
reason. It does not find what git does not know: a file that was never committed, a folder without git, a rewritten
history.
"""

from __future__ import annotations

import json
import subprocess
from functools import lru_cache
from pathlib import Path

from pydantic import ValidationError

from bench.validate.baselines.reference import Reference
from bench.validate.revisions.baseline_change import weaker

SECONDS = 20.0
"""Timeout of a git command."""
VERSIONS = 3
"""Number of latest commits of a file that are read."""


def unrooted(path: Path, reference: Reference) -> str:
    """Say why the reference in `path` is not an accepted one; empty: it is, or git does not know the file."""
    history = _history(path, path.stat().st_mtime_ns)
    before = next(((sha, body) for sha, body in history if body.get("digest") != reference.digest), None)
    if before is None:
        return ""
    sha, body = before
    line = f"{path}: changed since commit {sha[:12]}, not by `bench baseline accept`"
    if reference.supersedes != body.get("digest"):
        return (
            f"{line}: it does not name that version as the one that it replaced; restore it, or propose and accept anew"
        )
    try:
        less = weaker(Reference.model_validate(body), reference)
    except ValidationError:  # it has another version of the schema
        return ""
    return f"{line}: it asks less ({less[0]}), and gives no reason" if less and not reference.because else ""


def committed(path: Path) -> str | None:
    """Return the digest in the committed version of a file; None: git has none."""
    body = _body(path, "HEAD")
    digest = None if body is None else body.get("digest")
    return digest if isinstance(digest, str) else None


def head(folder: Path) -> str:
    """Return the commit that the folder has checked out; empty: it has none."""
    return (_git(folder / "any", "rev-parse", "HEAD") or "").strip()


@lru_cache(maxsize=256)
def _history(path: Path, written: int) -> list[tuple[str, dict[str, object]]]:
    """Return (commit, content) of the latest versions, newest first. `written`, the time of change, keeps the cache
    valid."""
    listed = _git(path, "log", f"-n{VERSIONS}", "--format=%H", "--", path.name)
    return [(sha, body) for sha in (listed or "").split() if (body := _body(path, sha)) is not None]


def _body(path: Path, commit: str) -> dict[str, object] | None:
    text = _git(path, "show", f"{commit}:./{path.name}")
    try:
        body = json.loads(text) if text else None
    except ValueError:
        return None
    return body if isinstance(body, dict) else None


def _git(path: Path, *words: str) -> str | None:
    """Return the output of a git command in the folder of a file; None if it fails, or git is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(path.parent), *words], capture_output=True, text=True, timeout=SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout

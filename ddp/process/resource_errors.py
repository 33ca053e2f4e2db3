"""Describes in one line which resource ran out, for what, how much is free, and what to change."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ddp.core.errors import OutOfResources

EACH, BESIDE = 2, 10
"""File descriptors that the parent needs for each rank, and in addition while it starts one."""


@contextmanager
def enough(what: str) -> Iterator[None]:
    """Raise OutOfResources with `what` failed, if an error inside the `with` block comes from a lack of resources."""
    try:
        yield
    except (OSError, EOFError) as error:  # EOFError: the fork server met the error first, and is gone
        raise OutOfResources(f"{what}: {shortage(error)}") from error


def shortage(error: OSError | EOFError) -> str:
    """Return what is missing, with the path if it is known, and the remedy."""
    if isinstance(error, EOFError):
        return "the fork server is gone; is there room for another process (ulimit -u) and its memory?"
    text = f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"
    match error.errno:
        case errno.EMFILE:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            more = f"ulimit -n {hard}" if hard > soft else "the system's administrator can raise that"
            return f"{text}: this process may open {soft} at a time; {more}, or fewer ranks"
        case errno.ENFILE:
            return f"{text}: the whole system may open no more; end other programs, or use fewer ranks"
        case errno.EAGAIN | errno.ENOMEM:
            return f"{text}: no more processes, or no more memory for them (ulimit -u); use fewer ranks"
        case errno.ENOSPC | errno.EDQUOT if error.filename:
            return f"{text}: {free(Path(error.filename))}"
    return text


def of_file(error: BaseException, path: Path) -> OSError:
    """Return the system's error behind a torch exception, with its file. Its `errno` is None if there is no system's
    error."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__context__
    if cause is None or cause.errno is None:
        return OSError(f"{str(error).splitlines()[0]}: {path}")
    return OSError(cause.errno, cause.strerror, str(path))


def free(path: Path) -> str:
    """Return how much space is free for that path, as text."""
    for place in (path, *path.parents):
        with suppress(OSError):
            return f"{shutil.disk_usage(place).free / 1e6:,.1f} MB are free there"
    return "nobody can tell how much is free there"


def descriptors(ranks: int) -> None:
    """Raise OSError if there are too few descriptors for `ranks`: checked before the fork server, which would not survive
    it."""
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(EACH * ranks + BESIDE):
            opened.append(os.dup(opened[0]))
    finally:
        for descriptor in opened:
            os.close(descriptor)

"""User errors, as exceptions for the one place that prints them."""

from __future__ import annotations

import os
import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

from bench.base.writing import is_listed

NO_ROOM = (ENOSPC, EDQUOT, EFBIG)
_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+")
_ORDERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def tame(text: str) -> str:
    """Return the text as one line, without control characters that a terminal or a log would obey, and without bytes of
    a file name that are no text."""
    return text if text.isprintable() else _ORDERS.sub("\N{REPLACEMENT CHARACTER}", _BREAKS.sub(" ", text))


class UsageError(Exception):
    """The request is not valid. One line with the remedy, passed through `tame`, as it may quote a file; exit code
    2."""

    def __init__(self, text: str) -> None:
        super().__init__(tame(text))


@contextmanager
def usage() -> Iterator[None]:
    """Raise UsageError for a ValueError (a user's mistake) or an OSError (a bad path) in the body. Neither a full disk nor
    a reader of our output that has gone is a mistake: these errors pass."""
    try:
        yield
    except BrokenPipeError:
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise UsageError(reason(error)) from error


@contextmanager
def writing(what: str) -> Iterator[None]:
    """Raise ValueError for an OSError in the body (a bad path), or an OSError of the same number if there is no room.
    The message says that `what` cannot be written."""
    try:
        yield
    except OSError as error:
        text = f"cannot write {what}: {reason(error)}"
        raise (OSError(error.errno, text) if error.errno in NO_ROOM else ValueError(text)) from error


def reason(error: Exception) -> str:
    """Return what went wrong and, of an OSError, with which file if known; when copying without room, the target."""
    if not isinstance(error, OSError):
        return str(error)
    what = str(error.strerror or error)
    copied = error.errno in NO_ROOM and error.filename2 is not None
    name = error.filename2 if copied else error.filename
    return what if name is None else f"{what}: {name}"


def path_of(text: str) -> Path:
    """Convert an argument to a path; argparse names the argument in the error. An empty text would be the working
    directory. Raise ArgumentTypeError for an empty one."""
    if not text:
        raise ArgumentTypeError("it is empty; give a path")
    return Path(text)


def there(text: str) -> Path:
    """Convert the path of a file or folder that must exist. Raise ArgumentTypeError if it does not.
    Defaults are paths already and are not checked."""
    if not path_of(text).exists():
        raise ArgumentTypeError(f"{text}: no such file or folder")
    return Path(text)


def file_of(text: str) -> Path:
    """Convert the path of a file to write. Raise ArgumentTypeError for a folder."""
    if path_of(text).is_dir():
        raise ArgumentTypeError(f"{text} is a folder; give a file")
    return Path(text)


def writable(text: str) -> Path:
    """Convert the path of a file to write at the end of a long command. Raise ArgumentTypeError for a folder, and for a
    file that cannot be written."""
    path = file_of(text)
    if not is_listed(path) and not path.parent.is_dir():
        raise ArgumentTypeError(f"{text}: there is no folder {path.parent}; make it first")
    if not os.access(path if is_listed(path) else path.parent, os.W_OK):
        raise ArgumentTypeError(f"{text}: cannot be written; give a file in a folder of your own")
    return path

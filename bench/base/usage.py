"""A user's mistake, on its way to the one place that prints it."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from pathlib import Path

NO_ROOM = (ENOSPC, EDQUOT, EFBIG)
_BREAKS = re.compile(r"[\t-\r\x1c-\x1e\x85\u2028\u2029]+")
_ORDERS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def tame(text: str) -> str:
    """Return the text on one line, with nothing in it that a terminal or a log would obey."""
    return text if text.isprintable() else _ORDERS.sub("\N{REPLACEMENT CHARACTER}", _BREAKS.sub(" ", text))


class UsageError(Exception):
    """What the user asked for cannot be. One line with the remedy, tame: it may tell what a file says; exit code 2."""

    def __init__(self, text: str) -> None:
        super().__init__(tame(text))


@contextmanager
def usage() -> Iterator[None]:
    """Raise UsageError for what is raised inside: ValueError, a user's mistake, and OSError, a path that cannot be."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output has left, which is nobody's mistake
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(reason(error)) from error


def reason(error: OSError) -> str:
    """Return what went wrong, and with which file, if that is known: of a copy, the one that there is no room for."""
    what = str(error.strerror or error)
    copied = error.errno in NO_ROOM and error.filename2 is not None
    name = error.filename2 if copied else error.filename
    return what if name is None else f"{what}: {name}"


def path_of(text: str) -> Path:
    """Read an argument that is a path: argparse names it in what this raises. An empty word would be the present folder."""
    if not text:
        raise ArgumentTypeError("it is empty; give a path")
    return Path(text)


def there(text: str) -> Path:
    """Read the path of a file or folder that must be there. Defaults, which are paths already, need not be."""
    if not path_of(text).exists():
        raise ArgumentTypeError(f"{text}: no such file or folder")
    return Path(text)


def file_of(text: str) -> Path:
    """Read the path of a file that is written."""
    if path_of(text).is_dir():
        raise ArgumentTypeError(f"{text} is a folder; give a file")
    return Path(text)

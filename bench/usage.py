"""A user's mistake, on its way to the one place that prints it."""

from __future__ import annotations

from argparse import ArgumentTypeError
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UsageError(Exception):
    """What the user asked for cannot be. One line with the remedy; exit code 2."""


@contextmanager
def usage() -> Iterator[None]:
    """What is done inside is documented to raise ValueError for a user's mistake, and OSError for a path that cannot be."""
    try:
        yield
    except BrokenPipeError:  # the reader of our output has left, which is nobody's mistake
        raise
    except ValueError as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        raise UsageError(reason(error)) from error


def reason(error: OSError) -> str:
    """What went wrong, and with which file, if that is known."""
    what = str(error.strerror or error)
    return what if error.filename is None else f"{what}: {error.filename}"


def path_of(text: str) -> Path:
    """An argument that is a path: argparse names it in what this raises. An empty word would be the present folder."""
    if not text:
        raise ArgumentTypeError("it is empty; give a path")
    return Path(text)


def there(text: str) -> Path:
    """The same of a file or folder that must be there. Defaults, which are paths already, need not be."""
    if not path_of(text).exists():
        raise ArgumentTypeError(f"{text}: no such file or folder")
    return Path(text)


def file_of(text: str) -> Path:
    """The same of a file that is written."""
    if path_of(text).is_dir():
        raise ArgumentTypeError(f"{text} is a folder; give a file")
    return Path(text)

"""A user's mistake, on its way to the one place that prints it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


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

"""Where a command prints, how much, and how wide a line is. Knows no run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console, RenderableType

from bench.base.usage import reason

VERBOSITY = "BENCH_VERBOSITY"
"""Environment variable, a whole number: -1 prints only errors and the result, 0 a line per run, 1 epochs and ranks, 2
and 3 more."""
WIDTH = 100
"""Most characters of a line that is printed at the end of a run."""


def verbosity() -> int:
    """Return how much to print, -1 to 3; 0 is the default."""
    with suppress(ValueError):
        return max(-1, min(3, int(os.environ.get(VERBOSITY, "0"))))
    return 0


def cut(text: str, width: int = WIDTH) -> str:
    """Return the text as one line of at most `width` characters, with an ellipsis for what is cut."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= width else f"{line[: width - 1]}…"


class PipeSafeConsole(Console):
    """A console that survives a closed pipe (`| head`) or a full disk: printing stops, the run goes on and writes its
    results."""

    above: Callable[[float | None], RenderableType] | None = None
    """Draws what is above the live line of a run: the progress of its sweep, given the remaining seconds of the run."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as a console does. After an error of writing, print nothing more."""
        try:
            super().print(*objects, **how)
        except OSError as error:
            with suppress(OSError):
                print(f"bench: nothing more can be shown ({reason(error)}); the run goes on", file=sys.stderr)
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Stop printing."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

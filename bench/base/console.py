"""Where a command prints, how much it prints, and how wide a line is. Knows no run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rich.console import Console, RenderableType

from bench.base.usage import reason

VERBOSITY = "BENCH_VERBOSITY"
"""Variable with a whole number: -1 prints errors and the result alone, 0 a line a run, 1 epochs and ranks, 2 and 3 more."""
WIDTH = 100
"""Signs of a line that is printed at the end of a run."""


def verbosity() -> int:
    """Return how much is to be printed, -1 to 3; 0 where nobody asked for more or less."""
    with suppress(ValueError):
        return max(-1, min(3, int(os.environ.get(VERBOSITY, "0"))))
    return 0


def cut(text: str, width: int = WIDTH) -> str:
    """Return the text on one line of at most `width` signs; an ellipsis stands for what is left out."""
    line = " ".join(text.split("\n"))
    return line if len(line) <= width else f"{line[: width - 1]}…"


class PipeSafeConsole(Console):
    """A console whose reader may leave (`| head`), or whose disk may be full: the run goes on unseen, and its results are
    written."""

    above: Callable[[float | None], RenderableType] | None = None
    """Draws what stands above the live line of a run: the progress of its sweep, given the seconds that the run has left."""

    def print(self, *objects: Any, **how: Any) -> None:
        """Print as a console does; what cannot be written is the last of it."""
        try:
            super().print(*objects, **how)
        except OSError as error:
            with suppress(OSError):
                print(f"bench: nothing more can be shown ({reason(error)}); the run goes on", file=sys.stderr)
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

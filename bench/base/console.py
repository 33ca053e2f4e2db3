"""Where a command prints. Knows no run."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from typing import Any

from rich.console import Console

from bench.base.usage import reason


class PipeSafeConsole(Console):
    """A console whose reader may leave (`| head`), or whose disk may be full: the run goes on unseen, and its results are
    written."""

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

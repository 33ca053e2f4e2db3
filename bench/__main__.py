"""Entry point: `python -m bench`, and the script `bench`. Owns what every command shares: signals, last words, exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.interrupts import interrupted, leave, listening

INTERRUPTED = "bench: interrupted\n"
LINKS = (
    "bench: bench/models, bench/conf and bench/baselines are links to folders, and have become files here: clone with "
    "git -c core.symlinks=true, or unpack with a tool that keeps links"
)


def main() -> int:
    """Run the command line; its exit code (`bench.base.exitcodes`)."""
    code = int(Exit.OK)
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in ranks: where cores are taken, two threads wait for each other
    _speak_plainly()
    with listening():
        try:
            if not all((Path(__file__).parent / name).is_dir() for name in ("models", "conf", "baselines")):
                print(LINKS, file=sys.stderr)
                return Exit.USAGE
            from bench.command.cli import JUDGING, dispatch  # Ctrl-C during the imports is Ctrl-C, too

            if sys.argv[1:2] and sys.argv[1] in JUDGING:
                gc.disable()  # for good: it would look at all that was read once more when the process ends
            code = dispatch(sys.argv[1:])
            sys.stdout.flush()  # here, where somebody minds what comes of it
            return code
        except KeyboardInterrupt:
            leave(Exit.KILLED, INTERRUPTED)
        except Exception:
            if interrupted():  # an import that is interrupted may fail in its own way
                leave(Exit.KILLED, INTERRUPTED)
            with suppress(OSError):
                traceback.print_exc()
                print("bench: this is a defect of the harness, please report it", file=sys.stderr)
            return Exit.INTERNAL


class _Stdout(io.TextIOWrapper):
    """An output that goes on where nobody reads any more: `| head` has seen enough, the exit code is still to come."""

    def write(self, text: str) -> int:
        """Write it, or let it be."""
        try:
            return super().write(text)
        except BrokenPipeError:
            return self._unread(len(text))

    def flush(self) -> None:
        """Flush what was written, or let it be."""
        try:
            super().flush()
        except BrokenPipeError:
            self._unread(0)

    def _unread(self, length: int) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return length


def _speak_plainly() -> None:
    """Signs that the encoding of the output does not have are shown as `?`: what was found out is said whatever reads it."""
    own = sys.stdout
    if own is None:  # it was closed: `>&-`
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    elif isinstance(own, io.TextIOWrapper):
        with suppress(OSError):  # it was opened on something else than is beneath it now
            sys.stdout = _Stdout(
                own.buffer,
                own.encoding,
                "replace",
                line_buffering=own.line_buffering,
                write_through=own.write_through,
            )


if __name__ == "__main__":
    sys.exit(main())

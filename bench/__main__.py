"""Entry point of `python -m bench` and of the script `bench`. Owns what every command shares: signals, the last error
message and the exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
import traceback
from contextlib import suppress
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.interrupts import interrupted, leave, listening, receive

INTERRUPTED = "bench: interrupted\n"
LINKS = (
    "bench: bench/models, bench/conf and bench/baselines are links to folders, and have become files here: clone with "
    "git -c core.symlinks=true, or unpack with a tool that keeps links"
)
GONE = "bench: the current folder was deleted; go to one that exists (cd)"


def main() -> int:
    """Run the command line; return its exit code (`bench.base.exitcodes`)."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as in ranks: on busy cores two threads wait for each other
    _speak_plainly()
    with listening():
        try:
            receive()
            if not all((Path(__file__).parent / name).is_dir() for name in ("models", "conf", "baselines")):
                print(LINKS, file=sys.stderr)
                return Exit.USAGE
            if _is_gone():
                print(GONE, file=sys.stderr)
                return Exit.USAGE
            from bench.command.cli import JUDGING, dispatch  # Ctrl-C during the imports is Ctrl-C, too

            if sys.argv[1:2] and sys.argv[1] in JUDGING:
                gc.disable()  # for good: a collection at exit would scan all records that were read
            return _flushed(dispatch(sys.argv[1:]))
        except KeyboardInterrupt:
            leave(Exit.KILLED, INTERRUPTED)
        except Exception:
            if interrupted():  # an interrupted import may raise another exception
                leave(Exit.KILLED, INTERRUPTED)
            with suppress(OSError):
                traceback.print_exc()
                print("bench: this is a defect of the harness, please report it", file=sys.stderr)
            return Exit.INTERNAL


def _flushed(code: int) -> int:
    """Write the rest of the output. Return `code`, or FAILED if there is no room for it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(OSError):
            print(f"bench: cannot write the output: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python tries again at its end
        return Exit.FAILED
    return code


def _is_gone() -> bool:
    """Return whether the current folder was deleted."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return True
    return False


class _Stdout(io.TextIOWrapper):
    """Standard output that drops text after its reader has left (`| head`), so that the command still ends with its
    exit code."""

    def write(self, text: str) -> int:
        """Write `text`, or drop it if the reader has left."""
        try:
            return super().write(text)
        except BrokenPipeError:
            return self._unread(len(text))

    def flush(self) -> None:
        """Flush the buffer, or drop it if the reader has left."""
        try:
            super().flush()
        except BrokenPipeError:
            self._unread(0)

    def _unread(self, length: int) -> int:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        return length


def _nowhere() -> io.TextIOWrapper:
    return os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def _speak_plainly() -> None:
    """Show characters that the encoding of standard output lacks as `?`, so that every terminal gets the message."""
    if sys.stderr is None:  # or `print` would write errors to standard output
        sys.stderr = _nowhere()
    own = sys.stdout
    if own is None:  # it was closed: `>&-`
        sys.stdout = _nowhere()
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

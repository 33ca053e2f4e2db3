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
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return code
        except Exception:
            if interrupted():  # an import that is interrupted may fail in its own way
                leave(Exit.KILLED, INTERRUPTED)
            traceback.print_exc()
            print("bench: this is a defect of the harness, please report it", file=sys.stderr)
            return Exit.INTERNAL


def _speak_plainly() -> None:
    """Signs that the encoding of the output does not have are shown as `?`: what was found out is said whatever reads it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        with suppress(OSError):  # it was opened on something else than is beneath it now
            sys.stdout.reconfigure(errors="replace")


if __name__ == "__main__":
    sys.exit(main())

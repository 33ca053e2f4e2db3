"""Entry point: `python -m bench`, and the script `bench`. Owns what every command shares: signals, last words, exit code."""

from __future__ import annotations

import os
import sys
import traceback

from bench.interrupts import interrupted, listening


def main() -> int:
    """Run the command line; its exit code (`bench.exitcodes`)."""
    with listening():
        try:
            from bench.cli import dispatch  # Ctrl-C during the imports is Ctrl-C, too

            return dispatch(sys.argv[1:])
        except KeyboardInterrupt:
            return 130
        except BrokenPipeError:  # `| head` has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except Exception:
            if interrupted():  # an import that is interrupted may fail in its own way
                return 130
            traceback.print_exc()
            print("bench: this is a defect of the harness, please report it", file=sys.stderr)
            return 6


if __name__ == "__main__":
    sys.exit(main())

"""`supervise=true`: a small process that starts the command, and restarts it after a signal has killed it.

The restarted command, which is the coordinator, resumes from its last checkpoint. Its ranks end with it; their work
since that checkpoint is repeated. If this process dies, the command goes on. Owns the restart; knows no engine.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from bench.base.interrupts import ENDING, SUPERVISED, end_of, held_back

if TYPE_CHECKING:
    from bench.runner.resume import ResumeSource

WORD = "supervise"
IN_A_ROW, LONG_S = 3, 60.0
"""A command is not restarted after `IN_A_ROW` kills in a row, each within `LONG_S` seconds of its start."""


def requested(words: Sequence[str]) -> tuple[bool, list[str]]:
    """Return whether a command line has `supervise=true`, and its other words. Raises ValueError."""
    own = [word for word in words if word == WORD or word.startswith(f"{WORD}=")]
    for word in own:
        if word not in (f"{WORD}=true", f"{WORD}=false"):
            raise ValueError(f"{word}: {WORD}=true is what there is")
    return own[-1:] == [f"{WORD}=true"], [word for word in words if word not in own]


def supervise(arguments: Sequence[str]) -> int:
    """Run `python -m bench` with `arguments`, and again after each kill, until it ends by itself; return its exit
    code."""
    since, because, short = time.time(), "", 0
    while True:
        began = time.monotonic()
        note = json.dumps({"since": since, "because": because})
        code = _run([sys.executable, "-m", "bench", *arguments], os.environ | {SUPERVISED: note})
        if code >= 0:
            return code
        because = f"the coordinator was killed by signal {-code}"
        short = short + 1 if time.monotonic() - began < LONG_S else 0
        tired = short == IN_A_ROW
        print(f"bench: {because}; {'given up' if tired else 'it is started again'}", file=sys.stderr, flush=True)
        if tired:
            return 128 - code


def _run(command: list[str], environ: dict[str, str]) -> int:
    """Return the exit code of a command, negative if an unexpected signal killed it. Passes on the signals that end
    this process; the command counts a signal sent to the whole group, such as Ctrl-C, only once."""
    signals, untold = list[int](), list[int]()
    child: subprocess.Popen[bytes] | None = None

    def tell(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if child is None:
            untold.append(number)
        else:
            child.send_signal(number)  # nothing, if it has ended

    heard = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]  # `nohup`
    before = {number: signal.signal(number, tell) for number in heard}
    try:
        with held_back():  # the command imports first, and an interrupt then would show a traceback
            child = subprocess.Popen(command, env=environ)
        for number in untold[:1]:  # another thread received it before there was a command to tell
            child.send_signal(number)
        code = end_of(child)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 and (signals or -code in ENDING) else code


def left_by_killed(place: Path) -> tuple[ResumeSource | Path | None, tuple[str, ...]]:
    """Return the run in `place` left by the command killed before this one (None: none), and warnings for readers of
    the results."""
    note = json.loads(os.environ.get(SUPERVISED, "{}"))
    because = str(note.get("because", ""))
    if not because:
        return None, ()
    from bench.runner.resume import NoRun, ResumeSource, TornCheckpoints, locate

    try:
        source = locate(place, float(note["since"]), killed=True)
    except NoRun:  # another cell was killed, or this one had failed by itself
        return None, ()
    except TornCheckpoints as error:
        return None, (f"{because}; it began anew: {error}",)
    except ValueError:  # before its first checkpoint
        return None, (f"{because}; without a checkpoint of this run it began anew",)
    return (replace(source, because=because) if isinstance(source, ResumeSource) else source), ()

"""Imported by the fork server alone: imports what ranks need and the modules given to `forkserver.warm`, and binds the
server to its parent. A module that cannot be imported is skipped.

An exception from a module, perhaps a user's, would end the server. The rank that needs the module reports it."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from contextlib import suppress
from types import TracebackType

from ddp import user_code
from ddp.process.forkserver import GIVEN, NAMES, PATHS, PRELOAD
from ddp.process.orphans import at_parents_end, bind_server


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print a traceback, unless the parent ended while it told a process what to do: who killed it knows."""
    if not issubclass(kind, EOFError):
        sys.__excepthook__(kind, error, trace)


sys.excepthook = _report
at_parents_end(signal.SIGKILL)  # no ranks yet; the imports take seconds in which the server reads nothing

given = json.loads(os.environ.pop(GIVEN, "{}"))
for name in PATHS:  # ranks and their children get the user's values
    os.environ.pop(name, None)
    os.environ.update({name: given[name]} if name in given else {})

for name in (*PRELOAD, *filter(None, os.environ.get(NAMES, "").split("\n"))):
    with suppress(Exception, SystemExit):
        user_code.load(name)

gc.collect()
gc.freeze()  # else garbage collection in each forked process would visit all modules: 0.2 s in the middle of its work

bind_server()

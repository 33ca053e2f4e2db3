"""Imported by the fork server, alone: it ends with its parent, and imports what ranks need and the modules that
`forkserver.warm` was given. One that cannot be imported is left out.

An exception of a module, a user's own perhaps, would end the server; whoever needs the module says what is wrong with it.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from ddp import user_code
from ddp.process.forkserver import NAMES, PRELOAD
from ddp.process.orphans import at_parents_end, bind_server

at_parents_end(signal.SIGKILL)  # there are no ranks yet, and imports take seconds in which nothing else is noticed

for name in (*PRELOAD, *filter(None, os.environ.get(NAMES, "").split("\n"))):
    with suppress(Exception, SystemExit):
        user_code.load(name)

bind_server()

"""Imported by the fork server, alone: it ends with its parent, and imports what ranks need and the modules that
`forkserver.warm` was given. One that cannot be imported is left out.

An exception of a module, a user's own perhaps, would end the server; whoever needs the module says what is wrong with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
from contextlib import suppress

from ddp import user_code
from ddp.process.forkserver import GIVEN, NAMES, PATHS, PRELOAD
from ddp.process.orphans import at_parents_end, bind_server

at_parents_end(signal.SIGKILL)  # there are no ranks yet, and imports take seconds in which nothing else is noticed

given = json.loads(os.environ.pop(GIVEN, "{}"))
for name in PATHS:  # ranks, and what they start, have what the user has
    os.environ.pop(name, None)
    os.environ.update({name: given[name]} if name in given else {})

for name in (*PRELOAD, *filter(None, os.environ.get(NAMES, "").split("\n"))):
    with suppress(Exception, SystemExit):
        user_code.load(name)

gc.collect()
gc.freeze()  # the collector of every process forked from here would look at all modules: 0.2 s, in the middle of its work

bind_server()

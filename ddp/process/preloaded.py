"""Imported by the fork server, first: it ends with its parent, and imports the modules that `forkserver.warm` was given. One
that cannot be imported is left out.

An exception of a module, a user's own perhaps, would end the server; whoever needs the module says what is wrong with it.
"""

from __future__ import annotations

import importlib
import os
from contextlib import suppress

from ddp.process.forkserver import NAMES
from ddp.process.orphans import bind_server

bind_server()

for name in os.environ.get(NAMES, "").split():
    with suppress(Exception, SystemExit):
        importlib.import_module(name)

"""Python runs this at the start of every process that has this folder on PYTHONPATH: the command's, the fork server's."""

import os
import sys

if os.environ.get("SEEDED_BUG") and "resource_tracker" not in " ".join(sys.orig_argv):  # which runs nothing of ours
    from benchmarks.bugs.hooks import install

    install(os.environ["SEEDED_BUG"], os.environ.get("SEEDED_BUG_SIGN", ""))

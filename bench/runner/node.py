"""The command in a process other than rank 0's: a node agent that runs ranks on its host until rank 0's command ends.

Owns the tasks that another host may order by name. Rank 0 sends what to train (`ddp.remote`).
"""

from __future__ import annotations

import sys

from bench import models
from bench.base.exitcodes import Exit
from bench.base.usage import reason, usage
from bench.models import MODELS
from bench.models.setup import Recipe
from ddp.core.errors import EngineError
from ddp.remote.job_message import Catalogue
from ddp.remote.launched_node import serve_rank0
from ddp.remote.launched_process import LaunchedProcess
from ddp.user_code import CodeDigest

OWN = (str, Recipe, str, tuple[CodeDigest, ...])
CATALOGUE: Catalogue = {
    "models.make_task": (models.make_task, (str, Recipe, str)),
    "models.make_own_task": (models.make_own_task, OWN),
}
"""Tasks that may be ordered from another host."""


def serve(place: LaunchedProcess) -> int:
    """Serve rank 0 until it reports its end; return its exit code."""
    try:
        with usage():
            key = place.key()
        return serve_rank0(place, key, CATALOGUE, tuple(MODELS.values()))
    except (EngineError, OSError) as error:
        print(f"bench: rank {place.rank} ends: {reason(error)}", file=sys.stderr)
        return Exit.FAILED

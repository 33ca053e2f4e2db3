"""A logger that fails, as BENCH_BAD_LOGGER says."""

from __future__ import annotations

import os
import time
from pathlib import Path

from bench.loggers.recorded import Begun, Recorded


def begin(run: Begun, output: Path) -> None:
    raise ValueError("never")


def write(run: Recorded, output: Path, live: None = None) -> None:
    match os.environ["BENCH_BAD_LOGGER"]:
        case "raise":
            print(1 / 0)
        case "die":
            os._exit(3)
        case "hang":
            time.sleep(60)

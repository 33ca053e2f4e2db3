"""The machine, the versions and the state of the source that a result was made with. Never fails; imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.base.places import ROOT

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core")
"""Recorded where they are installed. Nothing here needs torchvision; data sets of users do."""
BUSY = "other programs used"
"""How the warning begins that a run was not alone on its cores; whoever asks for it looks for these words."""
GIT_S = 5.0
"""How long git may take."""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """Machine and versions, for `metrics.json`."""
    return {
        "python": platform.python_version(),
        **{package: installed for package in PACKAGES if (installed := _version(package))},
        "platform": f"{sys.platform} {platform.machine()} {platform.release()}",
        "cpu": _cpu(),
        "cores": cores(),
        "load_1min": round(_load(), 2),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
    }


def source() -> dict[str, Any]:
    """Commit of the source tree and whether it was changed; nulls where there is no git."""
    sha = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    return {"sha": sha, "dirty": None if changed is None else bool(changed)}


class Usage(NamedTuple):
    """CPU seconds until some instant."""

    at: float
    machine: float
    """Of all programs."""
    ours: float
    """Of this process, its children and theirs."""


def usage() -> Usage:
    """CPU seconds until now."""
    everything = psutil.cpu_times()
    idle = everything.idle + getattr(everything, "iowait", 0.0)
    here = psutil.Process()
    ours = sum(sum(process.cpu_times()[:4]) for process in (here, *here.children()))
    return Usage(time.monotonic(), sum(everything) - idle, ours)


def disturbed(before: Usage, after: Usage, ranks: int) -> str | None:
    """A warning where other programs needed cores that `ranks` processes could have used in between, else None."""
    others = ((after.machine - before.machine) - (after.ours - before.ours)) / max(after.at - before.at, 1e-3)
    total = psutil.cpu_count() or 1
    if others + min(ranks, cores()) < total + 0.3:
        return None
    return f"{BUSY} {others:.1f} of {total} cores during the run: its speeds are too low"


def inherited() -> dict[str, str]:
    """Variables for a process of ours beside a run: the package is found where we found it, nothing is said of torchrun."""
    path = os.environ.get("PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs that the driver shows."""
    found: list[str] = []
    for card in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        found += [line.partition(":")[2].strip() for line in _lines(card) if line.startswith("Model")]
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    models = [line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")]
    return models[0] if models else platform.processor()


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=GIT_S,
            check=True,
            start_new_session=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()

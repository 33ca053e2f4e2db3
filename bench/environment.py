"""The machine, the versions and the state of the source that a result was made with. Never fails; imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
"""The source tree."""
PACKAGES = ("torch", "torchvision", "numpy", "hydra-core")
GIT_S = 5.0
"""How long git may take."""


def cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def describe() -> dict[str, Any]:
    """Machine and versions, for `metrics.json`."""
    return {
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
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


def busy() -> str | None:
    """A warning where other programs were busy on this machine in the last minute, else None."""
    load, count = _load(), cores()
    if load <= count / 2:
        return None
    return f"the machine was busy before the run (load {load:.1f} on {count} cores): speeds may be too low"


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

"""The machine, the versions and the state of the source with which a result was made. Never fails; imports no torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.base.paths import ROOT
from ddp.launcher.environment import read
from ddp.process.cores import cores

PACKAGES = ("torch", "torchvision", "numpy", "hydra-core")
"""Packages whose versions are recorded if installed. The harness does not need torchvision, but users' data sets
may."""
SIMD = ("avx512f", "avx2", "avx")
"""Flags of x86 processors, the widest first."""
DISTRIBUTION = "elche-bench"
"""Name of this distribution when installed."""
BUSY = "other programs used"
"""Beginning of the warning that a run shared its cores; other code searches for these words."""
SHARED_GPU = "GPU(s), so speeds say nothing about scaling"
"""End of the warning that ranks share a GPU; other code searches for these words."""
GIT_S = 5.0
"""Timeout of git, seconds."""


def describe() -> dict[str, Any]:
    """Return the machine and the versions, for `metrics.json`."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    processors = _values(Path("/proc/cpuinfo"), "model name")
    return {
        "python": platform.python_version(),
        **versions,
        "platform": f"{sys.platform} {platform.machine()} {platform.release()}",
        "cpu": processors[0] if processors else platform.processor(),
        "simd": simd(),
        "cores": cores(),
        "load_1min": round(_load(), 2),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus(),
    }


def simd() -> str | None:
    """Return the widest vector instructions of this processor that torch's kernels may use; None: not known. They
    decide how sums are rounded, and processors of one name may differ in them."""
    flags = {flag for line in _values(Path("/proc/cpuinfo"), "flags")[:1] for flag in line.split()}
    return next((name for name in SIMD if name in flags), None)


def launched_by(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return who launched this process, to add to `describe`; {} without a complete launcher. If the launcher names no
    hosts, this host has its own name."""
    with suppress(ValueError):
        if placement := read(environ):
            hosts = list(placement.hosts) or [platform.node()]
            ranks = placement.world_size
            return {"launcher": {"name": placement.launcher, "job": placement.job, "hosts": hosts, "ranks": ranks}}
    return {}


def shared_cores(environ: Mapping[str, str], total: int) -> str | None:
    """Return a warning if SLURM gave only some of this host's cores, as others may use the rest; else None."""
    given = environ.get("SLURM_CPUS_ON_NODE", "")
    if "SLURM_JOB_ID" not in environ or not given.isdecimal() or int(given) >= total:
        return None
    return f"SLURM gave {given} of {total} cores: others may use the rest, and its speeds be too low (--exclusive)"


def source() -> dict[str, Any]:
    """Return the commit of the source tree and whether it has changes; nulls without git, with the `version` of an
    installed package."""
    sha = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=no")
    state = {"sha": sha, "dirty": None if changed is None else bool(changed)}
    if sha is None and not (ROOT / "pyproject.toml").exists():
        with suppress(PackageNotFoundError):
            state["version"] = version(DISTRIBUTION)
    return state


def commit(name: str) -> str | None:
    """Return the commit that a branch, tag or the like names; None if it names none, or there is no git."""
    return _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}") or None


class Usage(NamedTuple):
    """CPU seconds up to some time."""

    at: float
    machine: float
    """Of all programs."""
    ours: float
    """Of this process, its children and theirs."""


def usage() -> Usage:
    """Measure the CPU seconds until now."""
    everything = psutil.cpu_times()
    idle = everything.idle + getattr(everything, "iowait", 0.0)
    here = psutil.Process()
    ours = sum(sum(process.cpu_times()[:4]) for process in (here, *here.children()))
    return Usage(time.monotonic(), sum(everything) - idle, ours)


def disturbed(before: Usage, after: Usage, ranks: int) -> str | None:
    """Return a warning if other programs used cores that `ranks` processes could have used in between; else None."""
    others = ((after.machine - before.machine) - (after.ours - before.ours)) / max(after.at - before.at, 1e-3)
    total = psutil.cpu_count() or 1
    if others + min(ranks, cores()) < total + 0.3:
        return None
    return f"{BUSY} {others:.1f} of {total} cores during the run: its speeds are too low"


def inherited() -> dict[str, str]:
    """Return the environment of an auxiliary process: it finds the package where this process did, and ignores
    torchrun.

    With `-P`, a folder in the working directory with the same name does not shadow the package.
    """
    path = os.environ.get("PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TORCHELASTIC")}
    return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}


def gpus() -> list[str]:
    """Return the names of the NVIDIA GPUs that the driver lists."""
    cards = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    return [name for card in cards for name in _values(card, "Model")]


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _values(path: Path, key: str) -> list[str]:
    """Return the values after the colon of the lines that begin with `key`; [] if the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(key)]


def _git(*arguments: str) -> str | None:
    command = ["git", *arguments]
    if not (ROOT / "pyproject.toml").is_file():  # an installed package may lie inside another project's tree
        return None
    try:
        output = subprocess.check_output(
            command, cwd=ROOT, stderr=subprocess.DEVNULL, text=True, timeout=GIT_S, start_new_session=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.strip()

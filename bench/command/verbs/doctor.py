"""The verb `doctor`: lists what this machine can run, and why the rest cannot run. Changes nothing."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import psutil
from tabulate import tabulate

from bench.base import environment
from bench.base.number_format import plural
from ddp.backends import BACKENDS
from ddp.engine.modes import engine_of, modes
from ddp.process.cores import cores
from ddp.registries import Unusable, imported

WORLD_SIZES = (1, 2, 4)
SHARED = Path("/dev/shm")
Check = tuple[str, str | None, str]
"""Name of the check; why it failed (None: it passed); a description of the result."""


def examine() -> None:
    """Print the findings."""
    gloo, memory = _gloo(), _memory()
    checks = (*_basics(), *_steps(), gloo, memory, *_data())
    findings = [(name, "no" if problem else "yes", problem or detail) for name, problem, detail in checks]
    print(tabulate(findings, tablefmt="plain"))
    print("\nmodes by world size:")
    rows = _modes({"cpu": memory[1], "nccl": gloo[1]} | _step_backends(gloo[1]))
    print(tabulate(rows, headers=("", *map(str, WORLD_SIZES)), tablefmt="plain", disable_numparse=True))


def _basics() -> list[Check]:
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    machine = environment.describe()
    memory = f"{psutil.virtual_memory().available / 2**30:.1f} of {machine['memory_bytes'] / 2**30:.1f} GiB free"
    return [
        ("python", None if fits else "3.11 to 3.13 is needed", platform.python_version()),
        ("torch", None, version("torch")),
        ("cores", None, f"{machine['cores']} of {machine['cpu']}, load {machine['load_1min']:.1f} in the last minute"),
        ("memory", None, memory),
        _gpus(),
    ]


def _gpus() -> Check:
    import torch

    count = torch.cuda.device_count()
    if not count:
        seen = ", ".join(environment.gpus())
        unusable = f"the driver shows {seen}, but this torch cannot use them"
        return ("gpus, nccl", unusable if seen else "none; ranks train on the CPU", "")
    names = ", ".join(torch.cuda.get_device_name(index) for index in range(count))
    return ("gpus, nccl", None if torch.distributed.is_nccl_available() else "torch without NCCL", names)


def _steps() -> list[Check]:
    """Return the checks of the settings of a training step on this machine: `train.precision`, `train.compile`."""
    import torch

    from ddp.replica.abilities import HALF, lacks_compiler, lacks_half

    device = torch.device("cuda" if torch.cuda.device_count() else "cpu")
    detail = f"works on {device}"
    half = [(f"precision {kind}", lacks_half(kind, device), detail) for kind in HALF]
    return [*half, ("compiler", lacks_compiler(device), f"there for {device}")]


def _gloo() -> Check:
    import torch.distributed as dist

    name = "gloo"
    if not (dist.is_available() and dist.is_gloo_available()):
        return (name, "this torch is built without it", "")
    try:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
        dist.destroy_process_group()
    except RuntimeError as error:
        return (name, f"no loopback interface that it can use: {str(error).splitlines()[0]}", "")
    return (name, None, "works on this host")


def _memory() -> Check:
    try:
        block = SharedMemory(create=True, size=1 << 20)
    except OSError as error:
        return ("shared memory", f"cannot be had: {error}", "")
    block.close()
    block.unlink()
    if not SHARED.is_dir():  # not on Linux
        return ("shared memory", None, "can be had")
    return ("shared memory", None, f"{psutil.disk_usage(str(SHARED)).free / 2**30:.1f} GiB free")


def _data() -> list[Check]:
    from bench.models.data import DATA, data_set

    checks: list[Check] = []
    ours = (name for name, entry in DATA.items() if DATA.is_ours(name) and "path" not in entry.options)
    for name in ours:  # of users' own, nothing is loaded
        try:
            train, test = data_set(name).load()
            checks.append((f"data {name}", None, f"{len(train)} samples to train on, {len(test)} to test on"))
        except Unusable as error:
            checks.append((f"data {name}", str(error), ""))
        except ValueError as error:
            checks.append((f"data {name}", f"not there yet ({error}); a run that needs it downloads it", ""))
    return checks


def _step_backends(gloo: str | None) -> dict[str, str | None]:
    """Return, for each backend that only synchronizes inside steps, why it does not work here (None: it works).
    PyTorch's own need gloo; a user's backend must import."""
    problems: dict[str, str | None] = {}
    for name, spec in BACKENDS.items():
        if spec.averages:
            continue
        problems[name] = gloo if spec.torch_native else None
        if not BACKENDS.is_ours(name):
            try:
                imported("backend", name, spec.module)
            except Unusable as error:
                problems[name] = str(error)
    return problems


def _modes(problems: dict[str, str | None]) -> list[list[str]]:
    """Return the table of modes by world size. `problems`: backend -> why it does not work here."""
    here = cores()
    rows = []
    for name, mode in modes().items():
        row = [f"  {name}"]
        for size in WORLD_SIZES:
            if not engine_of(mode.engine).fits(size):
                row.append("no: has one rank")
            elif problem := problems.get(mode.backend or ""):
                row.append(f"no: {problem}")
            else:
                row.append("yes" if size <= here else f"oversubscribed: {plural(here, 'core')}")
        rows.append(row)
    return rows

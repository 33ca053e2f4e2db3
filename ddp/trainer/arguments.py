"""Checks and completes the arguments of `Trainer`, one function for each group. Each mistake is a ValueError that
says what to write instead."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch

from ddp import settings as checks
from ddp.backends import check_link_faults, check_sharing, paired_backends
from ddp.checkpoint import checkpoint
from ddp.checkpoint.identity import other_epochs
from ddp.checkpoint.parts import load as load_part
from ddp.checkpoint.same_data import SameData
from ddp.core.policies import DEFAULT, POLICIES
from ddp.core.settings.checkpoints import MOST, UNITS, Checkpointing
from ddp.core.settings.loader import Loading
from ddp.data.batch_loader import refuse_samplewise
from ddp.data.dataset import collated
from ddp.data.epoch_order import EpochOrder
from ddp.engine.modes import PAIRING, Mode, backend_of, engine_of, mode_of, modes
from ddp.engine.step_checks import check_step
from ddp.launcher.environment import Placement
from ddp.replica.task import Job, epoch_samples, whole_batches
from ddp.trainer.mistakes import CALLS, check_function, refuse_keywords
from ddp.trainer.state import CheckpointInfo
from ddp.trainer.task import Parts, make_task

BACKEND = "nccl"


def gpus_for(device: str) -> int:
    """Return how many CUDA devices there are for ranks on `device`."""
    return torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0


def mode_for(mode: str | None, policy: str | None, backend: str | None) -> Mode:
    """Return the mode with the name `mode`, or the mode that combines `policy` and `backend`. Raise ValueError for
    an unknown name, or for `mode` together with one of its parts."""
    if mode is None:
        chosen = checks.known("backend", BACKEND if backend is None else backend, paired_backends())
        return mode_of(PAIRING, checks.known("policy", DEFAULT if policy is None else policy, POLICIES), chosen)
    ways = modes()
    for name, value in (("policy", policy), ("backend", backend)):
        if value is not None:
            raise ValueError(f"{name}={value!r} with mode={mode!r}, which names it already: leave one of them out")
    return ways[checks.known("mode", mode, ways)]


def check_mode(way: Mode, job: Job) -> None:
    """Raise ValueError if the job asks for something that the mode does not support."""
    check_step(job.step, way, job.world_size)
    able, backend = engine_of(way.engine), backend_of(way)
    if job.faults and able.in_place:
        raise ValueError(f"faults with mode={way.name!r}, whose ranks are in this very process: use mode='nccl_sync'")
    if backend is None:
        return
    if not able.virtual:
        check_link_faults(job.faults, job.backend, job.links)
    if (able.virtual or not backend.checkpoints) and (job.checkpoints is not None or job.resume is not None):
        raise ValueError(
            f"mode={way.name!r} makes no checkpoints and cannot go on from one: leave out checkpoint_folder and resume, or "
            "choose another mode"
        )
    if backend.torch_native and job.transport == "memory":
        raise ValueError(f"transport='memory' with mode={way.name!r}, which has PyTorch's own; leave it out")


def world_size_of(size: int | None, gpus: int, device: str, way: Mode, started: Placement | None = None) -> int:
    """Return the number of ranks. If `size` is None: the number of processes that a launcher has `started`, or one rank
    for each CUDA device if the mode can use several. Raise ValueError for a number that the mode, the launcher or the
    devices do not allow."""
    if started is not None:
        if engine_of(way.engine).in_place:
            raise ValueError(f"mode={way.name!r} trains in one process: start the script without {started.launcher}")
        if size not in (None, started.world_size):
            processes = f"{started.launcher} has started {started.world_size} processes"
            raise ValueError(f"world_size={size}, but {processes}: leave it out")
        size = started.world_size
    if device == "cuda" and not gpus:
        raise ValueError("device='cuda', but torch sees no CUDA device; use device='auto' or 'cpu'")
    if size is None:
        return 1 if engine_of(way.engine).one_rank else min(max(gpus, 1), checks.MAX_WORLD)
    most = checks.MAX_VIRTUAL if engine_of(way.engine).virtual else checks.MAX_WORLD
    if not engine_of(way.engine).fits(checks.whole("world_size", size, 1, most)):
        raise ValueError(f"world_size={size} with mode={way.name!r}, which has one rank: leave it out")
    if started is None:
        check_sharing(way.backend, device, gpus, size)
    return size


def epochs_of(epochs: int | None, steps: int | None) -> int:
    """Return the number of epochs: 1 if `steps` alone says how long a run is. Raise ValueError if neither does."""
    if epochs is None and steps is None:
        raise ValueError("how long is the run? Give epochs, passes over the data, or steps")
    return checks.whole("epochs", 1 if epochs is None else epochs, 1, checks.MOST_EPOCHS)


def check_functions(parts: Parts) -> None:
    """Raise ValueError for a function that does not accept the arguments that it will be called with."""
    for name in CALLS:
        given = getattr(parts, name)
        if given is not None or name in ("model_factory", "optimizer_factory", "train_step"):
            check_function(name, given)
    for source in (parts.dataset, parts.eval_dataset):
        collated(source, parts.collate_fn)


def check_settings(way: Mode, settings: dict[str, Any], own: Collection[str]) -> None:
    """Raise ValueError for keywords that are neither settings of the mode's policy nor `own`, the arguments of `Trainer`."""
    policy = way.policy or DEFAULT
    names = inspect.signature(POLICIES[policy]).parameters
    refuse_keywords(settings, own, names, policy)
    if way.policy is None and settings:
        raise ValueError(f"{next(iter(settings))} with mode={way.name!r}, which has no policy: leave it out")


def checkpointing(
    folder: str | Path | None, every: int | None, unit: str | None, callback: Callable[[CheckpointInfo], None] | None
) -> Checkpointing | None:
    """Return when checkpoints are saved; None: never. Raise ValueError for settings without a folder."""
    arguments = {"checkpoint_every": every, "checkpoint_unit": unit, "checkpoint_callback": callback}
    for name, value in arguments.items():
        if folder is None and value is not None:
            raise ValueError(f"{name} without checkpoint_folder: say where checkpoints are to be laid down")
    often = 1 if every is None else checks.whole("checkpoint_every", every, 1, MOST)
    counted = checks.known("checkpoint_unit", UNITS[0] if unit is None else unit, UNITS)
    settings = Checkpointing(often, counted, spacing_s=0.0)
    if callback is not None:
        checks.function("checkpoint_callback", callback)
    return None if folder is None else settings


def check_data(job: Job, parts: Parts) -> None:
    """Raise ValueError if the checkpoint to resume from belongs to another run, or was made with other tensors.

    Data that is not in tensors is compared in the ranks: reading it here could open files or connections, and these
    cannot be pickled and sent to the ranks."""
    last = checkpoint.resume(job)
    task = make_task(parts)
    source, evaluated = task.train_data(), task.eval_data()
    cut = whole_batches(task.drop_last, job)
    visits = EpochOrder(job.seed, len(source), task.sampler, cut, length=epoch_samples(job))
    data = SameData((source, visits, task.augment), (evaluated, EpochOrder(0, len(evaluated), shuffle=False), None))
    if last is None:
        return
    before, identity = last.coordinator.epoch_samples, last.manifest.identity
    if difference := other_epochs(before, len(visits), identity, job, task.drop_last):
        raise ValueError(f"{job.resume}: {difference}")
    if data.lasting:
        data.check(load_part(last.path / checkpoint.MODEL, last.origin(None)).get("data"))


def check_loading(loading: Loading, *sources: Any) -> Loading:
    """Return the settings of the loader. Raise ValueError for settings that contradict each other or that the data
    sets do not support."""
    for source in sources:
        refuse_samplewise(loading, source)
    if loading.kind == "resident" and loading.prefetch is not None:
        raise ValueError(
            f"prefetch={loading.prefetch} with loader='resident', which reads nothing ahead; leave one of them out"
        )
    return loading


def folder_of(name: str, value: str | Path | None) -> Path | None:
    """Return the folder given for the argument `name` as an absolute path; None if no folder was given. Raise
    ValueError for a file."""
    if value is None:
        return None
    folder = Path(checks.path(name, value)).absolute()  # Path("") would be the current folder
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{name}={folder} is a file; give a folder")
    return folder


def latest_checkpoint(folder: Path) -> Path:
    """Return `folder` if it is a checkpoint, otherwise the latest valid checkpoint in it; warn of damaged ones that are
    skipped. Raise ValueError if there is none."""
    if (folder / checkpoint.MANIFEST).exists():
        return folder
    latest, problems = checkpoint.find(folder)
    if latest is None:
        raise ValueError(f"resume={folder}: {problems[0] if problems else 'there is no checkpoint in it'}; begin anew")
    for problem in problems:
        warnings.warn(f"skipped: {problem}; going on from {latest.path}", RuntimeWarning, stacklevel=3)
    return latest.path

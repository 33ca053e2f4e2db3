"""`launch=slurm`, `status` and `cancel`: a sweep as an array job.

What is left to do comes from the run folders, what came of it from files in the sweep's folder, never from the scheduler's
accounting. Knows nothing of what a cell does (`bench.runner.slurm_batch`).
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from bench.base.exitcodes import Exit, gravest
from bench.base.usage import UsageError
from bench.command.planning import PlannedRuns
from bench.config.compose import compose
from bench.config.slurm_settings import SlurmSettings, batches
from bench.runner.slurm_batch import CellBatch, result_file
from ddp.regular_files import content

SWEEP = "sweep.json"
FOLDERS = ".slurm-*"
LOOK_S = 1.0
CANCEL_S = 90.0
"""How long a cancelled job may take to leave the queue: SLURM kills what does not end in 30 s."""
VANISHED_S = 20.0
"""A job that is in no queue for so long is over."""
QUEUE = ["squeue", "--noheader", "--array", "--format=%i %T %r", "--jobs"]


@dataclass
class _Points(PlannedRuns):
    """The runs of a command line, with the overrides of each."""

    points: list[list[str]] = field(default_factory=list)

    def job(self, composed: DictConfig) -> None:
        before = len(self.specs)
        super().job(composed)
        if len(self.specs) > before:
            self.points.append([str(word) for word in HydraConfig.get().overrides.task])


def submit(arguments: list[str], verbs: tuple[str, ...], settings: SlurmSettings) -> Exit:
    """Submit what is left of a sweep; wait for it if asked to. Return the gravest code of its cells. Raise UsageError."""
    if importlib.util.find_spec("submitit") is None:
        raise UsageError("launch=slurm needs submitit: pip install 'elche-bench[slurm]'")
    if shutil.which("sbatch") is None:
        raise UsageError("launch=slurm needs sbatch, which is not on the PATH: start the command where SLURM is")
    planned = _Points()
    compose(arguments, verbs, planned.job, planned.left_out.append, planning=True)
    if planned.impossible:
        raise UsageError(planned.impossible[0])
    left = [point for point, done in zip(planned.points, planned.done, strict=True) if not done]
    print(f"{len(planned.points)} cells, {len(left)} left to do")
    if not left:
        return Exit.OK
    folder = _submitted(Path(planned.specs[0].output), left, settings)
    return _awaited(folder) if settings.wait else Exit.OK


def _submitted(output: Path, left: list[list[str]], settings: SlurmSettings) -> Path:
    """Submit the array; return the sweep's folder."""
    from submitit import SlurmExecutor

    folder = (output / f".slurm-{time.strftime('%Y%m%d-%H%M%S')}-{time.monotonic_ns() % 1000:03}").absolute()
    folder.mkdir(parents=True)
    executor = SlurmExecutor(folder / "submitit", max_num_timeout=1000)
    more = {"partition": settings.partition} if settings.partition else {}
    executor.update_parameters(
        job_name="bench",
        time=settings.minutes,
        nodes=settings.nodes,
        ntasks_per_node=settings.ranks,
        cpus_per_task=settings.cpus,
        exclusive=settings.exclusive or None,
        array_parallelism=settings.at_once,
        signal_delay_s=settings.signal_s,
        additional_parameters={"requeue": True},
        **more,
    )
    tasks = [CellBatch(str(folder), str(Path.cwd()), each) for each in batches(list(enumerate(left)), settings.cells)]
    with executor.batch():
        jobs = [executor.submit(task) for task in tasks]
    number = jobs[0].job_id.partition("_")[0]
    about = {"job": number, "cells": left, "tasks": len(tasks)}
    (folder / SWEEP).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(f"job {number}: {len(left)} cells in {len(tasks)} tasks; see {folder}")
    return folder


def _awaited(folder: Path) -> Exit:
    """Wait until all cells have their results, or the job has left the queue."""
    seen = time.monotonic()
    while True:
        codes, total, states = _standing(folder)
        if len(codes) == total:
            return _told(folder)
        if states:
            seen = time.monotonic()
        elif time.monotonic() - seen > VANISHED_S:
            print(
                f"job {_about(folder)['job']} is over, {total - len(codes)} cells have no result: see {folder}/submitit"
            )
            return Exit.FAILED
        time.sleep(LOOK_S)


def _about(folder: Path) -> dict[str, object]:
    about: dict[str, object] = json.loads(content(folder / SWEEP))
    return about


def _standing(folder: Path) -> tuple[list[int], int, Counter[str]]:
    """Return the exit codes of cells that are done, how many cells there are, and tasks of the array by state."""
    about = _about(folder)
    cells = about["cells"]
    assert isinstance(cells, list)
    files = [result_file(folder, number) for number in range(len(cells))]
    codes = [int(json.loads(content(file))["code"]) for file in files if file.exists()]
    return codes, len(cells), queued(str(about["job"]))


def queued(job: str) -> Counter[str]:
    """Return the tasks of a job that are in the queue, by state; none where it is over, or nobody can be asked."""
    try:
        answer = subprocess.run([*QUEUE, job], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Counter()
    return Counter(line.split()[1] for line in answer.stdout.splitlines() if len(line.split()) > 1)


def _told(folder: Path) -> Exit:
    codes, total, states = _standing(folder)
    failed = sum(code != 0 for code in codes)
    queue = ", ".join(f"{count} {state.lower()}" for state, count in states.items()) or "none in the queue"
    print(f"job {_about(folder)['job']}: {len(codes)} of {total} cells done, {failed} of them failed; tasks: {queue}")
    return gravest(Exit(code) for code in codes)


def latest(path: Path) -> Path:
    """Return the folder of the latest sweep in a tree of runs, or the folder itself. Raise UsageError."""
    if (path / SWEEP).is_file():
        return path
    folders = sorted(folder for folder in path.glob(FOLDERS) if (folder / SWEEP).is_file())
    if not folders:
        raise UsageError(f"{path}: no sweep was submitted from there: launch=slurm does")
    return folders[-1]


def command(verb: str, path: Path) -> Exit:
    """Run `status` or `cancel`."""
    return status(path) if verb == "status" else cancel(path)


def status(path: Path) -> Exit:
    """Print how the latest sweep of a tree stands."""
    return _told(latest(path))


def cancel(path: Path) -> Exit:
    """Cancel the latest sweep of a tree, and see it gone from the queue."""
    folder = latest(path)
    job = str(_about(folder)["job"])
    subprocess.run(["scancel", "--full", job], check=False, capture_output=True, timeout=30)
    until = time.monotonic() + CANCEL_S
    while queued(job):
        if time.monotonic() > until:
            print(f"job {job} is still in the queue after {CANCEL_S:g} s: scancel {job}")
            return Exit.FAILED
        time.sleep(LOOK_S)
    _told(folder)
    return Exit.OK

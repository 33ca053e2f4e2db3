"""A sweep as an array job of SLURM's: `launch=slurm`.

Its records are never asked, as there may be no accounting. Knows nothing of what a cell does (`bench.runner.slurm_batch`).
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import time
from collections import Counter
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command.submitted import about, codes_of, new_folder, note, show
from bench.config.launch_settings import SlurmSettings, batches
from bench.runner.slurm_batch import CellBatch

LOOK_S = 1.0
CANCEL_S = 90.0
"""How long a cancelled job may take to leave the queue: SLURM kills what does not end in 30 s."""
VANISHED_S = 20.0
"""A job that is in no queue for so long is over."""
QUEUE = ["squeue", "--noheader", "--array", "--format=%i %T %r", "--jobs"]


def demand() -> None:
    """Raise UsageError where SLURM cannot be reached from here."""
    if importlib.util.find_spec("submitit") is None:
        raise UsageError("launch=slurm needs submitit: pip install submitit")
    if shutil.which("sbatch") is None:
        raise UsageError("launch=slurm needs sbatch, which is not on the PATH: start the command where SLURM is")


def submit(output: Path, left: list[list[str]], settings: SlurmSettings) -> Exit:
    """Submit the cells as an array; wait for them if asked to. Return the gravest code."""
    folder = _submitted(output, left, settings)
    return _awaited(folder) if settings.wait else Exit.OK


def _submitted(output: Path, left: list[list[str]], settings: SlurmSettings) -> Path:
    """Submit the array; return the sweep's folder."""
    from submitit import SlurmExecutor

    folder = new_folder(output, "slurm")
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
    note(folder, number, left, len(tasks))
    print(f"job {number}: {len(left)} cells in {len(tasks)} tasks; see {folder}")
    return folder


def _awaited(folder: Path) -> Exit:
    """Wait until all cells have their results, or the job has left the queue."""
    seen, noted = time.monotonic(), about(folder)
    while True:
        left = len(noted["cells"]) - len(codes_of(folder))
        if not left:
            return show(folder)
        if queued(noted["job"]):
            seen = time.monotonic()
        elif time.monotonic() - seen > VANISHED_S:
            print(f"job {noted['job']} is over, {left} cells have no result: see {folder}/submitit")
            return Exit.FAILED
        time.sleep(LOOK_S)


def queued(job: str) -> Counter[str]:
    """Return the tasks of a job that are in the queue, by state; none where it is over, or nobody can be asked."""
    try:
        answer = subprocess.run([*QUEUE, job], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return Counter()
    return Counter(line.split()[1] for line in answer.stdout.splitlines() if len(line.split()) > 1)


def standing(folder: Path) -> str:
    """Return how the tasks of a sweep stand in the queue, in words."""
    states = queued(about(folder)["job"])
    return f"tasks: {', '.join(f'{count} {state.lower()}' for state, count in states.items()) or 'none in the queue'}"


def cancel(folder: Path) -> str:
    """Cancel a sweep and see it gone from the queue; return why that did not come about, or nothing."""
    job = about(folder)["job"]
    subprocess.run(["scancel", "--full", job], check=False, capture_output=True, timeout=30)
    until = time.monotonic() + CANCEL_S
    while queued(job):
        if time.monotonic() > until:
            return f"job {job} is still in the queue after {CANCEL_S:g} s: scancel {job}"
        time.sleep(LOOK_S)
    return ""

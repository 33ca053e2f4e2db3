"""A sweep as a SLURM array job: `launch=slurm`.

Never queries SLURM's accounting, which a cluster may lack. Does not know what a cell does
(`bench.runner.slurm_batch`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.base.exitcodes import Exit, gravest
from bench.base.interrupts import shielded
from bench.base.usage import UsageError, reason
from bench.command.sweeps.submitted import about, codes_of, new_folder, note, summary
from bench.config.launch_settings import SlurmSettings, batches
from bench.runner.ray_rank import new_key
from bench.runner.slurm_batch import CellBatch
from bench.runner.submitted_cell import KEY, remove_key

LOOK_S = 1.0
CANCEL_S = 90.0
"""Seconds that a cancelled job may take to leave the queue: SLURM kills tasks that do not end within 30 s."""
VANISHED_S = 90.0
"""Seconds out of the queue after which a job counts as over: results may become visible 60 s late."""
AWAY_S = 600.0
"""Seconds that the sweep's folder may be away after its job has left the queue."""
SUBMIT_S = 150.0
"""Seconds after which sbatch is killed: where SLURM takes no more jobs, it tries for two minutes itself."""
PENDS_S = 30.0
"""Seconds that all tasks pend before the command prints why."""
ASK_S = 30.0
OVER = "Invalid job id"
"""squeue's error for a job that ended long ago."""
QUEUE = ["squeue", "--noheader", "--array", "--format=%i %T %r", "--jobs"]


def demand() -> None:
    """Raise UsageError where SLURM cannot be reached from here."""
    if importlib.util.find_spec("submitit") is None:
        raise UsageError("launch=slurm needs submitit: pip install submitit")
    if shutil.which("sbatch") is None:
        raise UsageError("launch=slurm needs sbatch, which is not on the PATH: start the command where SLURM is")


def submit(output: Path, left: dict[str, list[str]], settings: SlurmSettings) -> Exit:
    """Submit the cells as an array; wait for them if the settings ask for it. Return their gravest exit code."""
    folder = _submitted(output, left, settings)
    return _awaited(folder) if settings.wait else Exit.OK


def _submitted(output: Path, left: dict[str, list[str]], settings: SlurmSettings) -> Path:
    """Submit the array; return the sweep's folder."""
    folder = new_folder(output, "slurm")
    if settings.nodes > 1:
        with open(os.open(folder / KEY, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="ascii") as key:
            key.write(new_key())
    places = list(left)
    tasks = [
        CellBatch(str(folder), str(Path.cwd()), each, {number: places[number] for number, _ in each})
        for each in batches(list(enumerate(left.values())), settings.cells)
    ]
    try:
        executor = _executor(folder, settings)
        with shielded(SUBMIT_S):  # what is submitted is noted, or nobody could see or cancel it
            number = _sbatch(executor, tasks)
            note(folder, number, left, len(tasks))
    except RuntimeError as error:  # submitit's
        shutil.rmtree(folder, ignore_errors=True)  # no task is to read it, and it may hold a key
        if isinstance(error.__cause__, TimeoutError):
            late = f"sbatch did not end within {SUBMIT_S:g} s and was killed"
            raise UsageError(f"{late}: if squeue shows a new job `bench`, cancel it with scancel") from error
        why = str(error).strip().splitlines()[-1:]
        fewer = f"; launch.cells={2 * settings.cells} would make fewer tasks" if len(tasks) > 1 else ""
        raise UsageError(f"SLURM takes no array of {len(tasks)} tasks: {''.join(why)}{fewer}") from error
    print(f"job {number}: {len(left)} cells in {len(tasks)} tasks; see {folder}")
    return folder


def _executor(folder: Path, settings: SlurmSettings) -> Any:
    """Return submitit's executor with the settings of the tasks. Raise RuntimeError."""
    from submitit import SlurmExecutor

    executor = SlurmExecutor(folder / "submitit", max_num_timeout=1000)
    parameters: dict[str, Any] = {
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "mem": settings.memory,
        "gpus_per_node": settings.gpus * settings.ranks,
    }
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
        **{name: value for name, value in parameters.items() if value},
    )
    return executor


def _sbatch(executor: Any, tasks: list[CellBatch]) -> str:
    """Submit the tasks as an array; return the number of its job. Raise RuntimeError."""
    with executor.batch():
        jobs = [executor.submit(task) for task in tasks]
    return str(jobs[0].job_id.partition("_")[0])


def _awaited(folder: Path) -> Exit:
    """Wait until all cells have results, or the job has left the queue. Raise OSError if the sweep's folder is away for
    `AWAY_S` after that."""
    noted, words = about(folder), ""
    seen = moved = read = time.monotonic()
    while True:
        states, now = queued(noted["job"]), time.monotonic()
        if states is None or states:
            seen = read = now
        try:
            over = len(codes_of(folder)) == len(noted["cells"]) or now - seen > VANISHED_S
            lines, codes = summary(folder) if over else ([], [])
            read = now
        except OSError:  # the shared file system is away for a moment; then it may show results late again
            if now - read > AWAY_S:
                raise
            seen, over = now, False
        if over:
            print(*lines, sep="\n")
            return _ended(folder, noted, codes)
        if states is None:  # no news
            pass
        elif not states or not all(state.startswith("PENDING") for state in states):
            moved = now
        elif now - moved > PENDS_S and words != _in_words(states):
            words = _in_words(states)
            print(f"job {noted['job']}: {words}", flush=True)
        time.sleep(LOOK_S)


def _ended(folder: Path, noted: dict[str, Any], codes: list[Exit]) -> Exit:
    """Print how many cells of an ended job have no result; return the gravest exit code."""
    remove_key(folder)
    if left := len(noted["cells"]) - len(codes):
        print(f"job {noted['job']} is over, {left} cells have no result: see {folder}/submitit")
        return gravest([Exit.FAILED, *codes])
    return gravest(codes)


def queued(job: str) -> Counter[str] | None:
    """Return the number of a job's queued tasks by state, pending ones with their reason; None if SLURM does not
    answer."""
    try:
        answer = subprocess.run([*QUEUE, job], capture_output=True, text=True, timeout=ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode and OVER not in answer.stderr:
        return None
    tasks = [line.split(maxsplit=2)[1:] for line in answer.stdout.splitlines()]
    return Counter(
        " ".join(task if task[0] == "PENDING" and task[1:] != ["None"] else task[:1]) for task in tasks if task
    )


def live(folder: Path) -> bool:
    """Return whether a sweep may still run."""
    states = queued(about(folder)["job"])
    return states is None or bool(states)


def standing(folder: Path) -> str:
    """Return the states of a sweep's tasks in the queue, as text."""
    states = queued(about(folder)["job"])
    if states is None:
        return "tasks: squeue does not answer"
    return _in_words(states)


def _in_words(states: Counter[str]) -> str:
    tasks = []
    for each, count in states.items():
        state, _, why = each.partition(" ")
        tasks.append(f"{count} {state.lower()}{why and f' ({why})'}")
    return f"tasks: {', '.join(tasks) or 'none in the queue'}"


def cancel(folder: Path) -> str:
    """Cancel a sweep and wait until it has left the queue; return why it did not, or an empty text."""
    job = about(folder)["job"]
    try:
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(["scancel", "--full", job], check=False, capture_output=True, timeout=ASK_S)
    except OSError as error:
        return f"job {job} is not cancelled: {reason(error)}"
    until = time.monotonic() + CANCEL_S
    while (states := queued(job)) is None or states:
        if time.monotonic() > until:
            where = "may still be" if states is None else "is still"
            return f"job {job} {where} in the queue after {CANCEL_S:g} s: scancel {job}"
        time.sleep(LOOK_S)
    return ""

"""Plays cells of the matrix with real processes on this host, and proves from records and notes that the fault
happened."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil

from bench.faults import exercise
from bench.faults.meaning import PROCESSES, WHOLE, FaultCell, FaultOutcome, chosen, documented, injected
from bench.faults.modes import MODES
from bench.faults.outcome import (
    FaultResult,
    Timed,
    full_strength,
    merged,
    merged_before,
    missing,
    noticed,
    outcome,
    went_on,
)
from bench.faults.process_proofs import PAUSE_S, SLOW, note_of, proof
from ddp import regular_files
from ddp.backends import preload_of
from ddp.checkpoint import checkpoint
from ddp.core.errors import EngineError
from ddp.core.messages.events import Progress
from ddp.core.settings.averaging import Averaging
from ddp.core.settings.checkpoints import Checkpointing
from ddp.core.settings.faults import PhaseFault
from ddp.engine import ENGINES
from ddp.process import forkserver
from ddp.registries import imported
from ddp.replica.task import Job

BATCH, DEADLINE_S = 8, 4.0
EPOCHS, SHORT = 16, 6
"""Epochs of a run in which a rank should return, and of any other run."""
LIMIT_S, LOOK_S = 300, 0.02
LATER, LAST = 60, 90
"""Steps of a rank after which a checkpoint exists to resume from, and another before it, also if one rank was lost."""
FAULTS = injected(PAUSE_S, SLOW) | {
    "corrupt checkpoint": ("raise", 0.0),
    "coordinator killed": ("coordinator", 0.0),
}
"""Kind -> (fault, its value) that is injected into a rank. If a checkpoint is to be corrupted, the run first ends by an
error."""
KILLED = "ended by signal 9"
PLAIN = Averaging()
Ended = tuple[Timed, str, str]
"""(records, status, why the run ended)."""


def play(cell: FaultCell, size: int, averaging: Averaging = PLAIN) -> FaultResult:
    """Play one cell that has a meaning on `size` ranks; each lost rank is restarted."""
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        job = replace(job_of(cell, size, folder), averaging=averaging)
        if _kills_all(cell):
            return _killed(cell, size, folder, job)
        if cell.kind == "corrupt checkpoint":
            return _corrupted(cell, size, folder, job)
        return _played(cell, size, job)


def hit_by(cell: FaultCell, size: int) -> tuple[int, ...]:
    """Return the ranks that are hit. If the fault hits a process with all its ranks, rank 0 stands for them."""
    if MODES[cell.mode].one_rank or cell.kind in (WHOLE if MODES[cell.mode].one_process else ("coordinator killed",)):
        return (0,)
    return tuple(range(size)) if cell.kind == "corrupt checkpoint" else chosen(cell.ranks, size)


def job_of(cell: FaultCell, size: int, folder: Path) -> Job:
    """Return the job of a cell, and make its scratch folder."""
    mode, (kind, value) = MODES[cell.mode], FAULTS[cell.kind]
    phase, after = cell.phase, 0
    later = (LAST if cell.kind == "corrupt checkpoint" else LATER) * (size if mode.one_rank else 1)
    if _kills_all(cell):
        after = 0 if phase in ("start", "first window", "end") else later
    if cell.kind == "corrupt checkpoint":
        phase, after = "step", later
    (folder / "scratch").mkdir()
    return Job(
        exercise.task,
        epochs_of(cell),
        BATCH,
        0,
        1 if mode.one_rank else size,
        mode.windows(),
        mode.backend,
        folder / "scratch",
        device="cpu",
        deadline_s=DEADLINE_S,
        restarts=0 if mode.sharded else None,
        phase_faults=tuple(PhaseFault(rank, phase, kind, value, after) for rank in hit_by(cell, size)),
        checkpoints=Checkpointing(1, "epochs", 0.0) if mode.checkpoints else None,
        checkpoint_folder=folder / "checkpoints",
        preload=(exercise.__name__, *preload_of(mode.backend)),
    )


def epochs_of(cell: FaultCell) -> int:
    """Return the number of epochs of a cell's run."""
    returns = cell.kind in ("crash", "stop", "raise", "lost message") and not _kills_all(cell)
    return EPOCHS if returns and FaultOutcome.LOST in documented(cell) else SHORT


def _kills_all(cell: FaultCell) -> bool:
    return cell.kind == "coordinator killed" or (cell.kind == "crash" and MODES[cell.mode].one_process)


def run(job: Job, engine: str) -> Ended:
    """Run a job; return its records, its status, and why it ended."""
    records: list[tuple[float, Any]] = []
    train = imported("engine", engine, ENGINES[engine].module).run
    try:
        train(job, lambda record, at: records.append((at, record)))
    except (EngineError, checkpoint.InvalidCheckpoint) as error:
        return records, "failed", str(error).splitlines()[0][:200]
    return records, "ok", ""


def aside(job: Job, engine: str, folder: Path, below: set[psutil.Process] | None = None) -> tuple[Ended | None, str]:
    """Run a job in a process of its own, which may be killed or stopped. Return the result of `run`, or None and how
    the process ended. It is forked from the same fork server as ranks, so it imports nothing. To `below` are added the
    processes that it starts."""
    (folder / "job").write_bytes(pickle.dumps((job, engine)))
    child = forkserver.warm(job.preload).Process(target=run_stored, args=(str(folder),))
    with forkserver.script_left_alone():
        child.start()
    if below is None:
        child.join(LIMIT_S)
    else:
        _followed(child, below)
    if child.exitcode is None:
        child.kill()
        child.join()
        return None, f"it was not over after {LIMIT_S} s"
    if child.exitcode == 0:
        return pickle.loads(regular_files.content(folder / "ended")), ""
    if child.exitcode == -signal.SIGKILL:
        return None, KILLED
    left = folder / "error"
    return None, f"exit code {child.exitcode}: {left.read_text()[-200:] if left.exists() else 'without a word'}"


def _followed(child: BaseProcess, below: set[psutil.Process]) -> None:
    """Wait for the end of `child`, at most LIMIT_S, and add to `below` the processes that it has meanwhile: they have
    other parents once it is killed."""
    until = time.monotonic() + LIMIT_S
    while child.exitcode is None and time.monotonic() < until:
        with suppress(psutil.NoSuchProcess):
            below |= set(psutil.Process(child.pid).children(recursive=True))
        child.join(LOOK_S)


def run_stored(folder: str) -> None:
    """Run the job stored in `folder`. A fault for the coordinator hits this process."""
    job, engine = pickle.loads(regular_files.content(Path(folder, "job")))
    pid = float(os.getpid())
    faults = (replace(fault, value=pid) if fault.kind == "coordinator" else fault for fault in job.phase_faults)
    try:
        ended = run(replace(job, phase_faults=tuple(faults)), engine)
    except Exception as error:
        Path(folder, "error").write_text(f"{type(error).__name__}: {error}", encoding="utf-8")
        raise
    Path(folder, "ended").write_bytes(pickle.dumps(ended))


def _played(cell: FaultCell, size: int, job: Job) -> FaultResult:
    mode = MODES[cell.mode]
    ended_as, words = aside(job, mode.engine, job.scratch.parent) if mode.one_process else (run(job, mode.engine), "")
    if ended_as is None:
        return FaultResult(cell, PROCESSES, size, "", None, error=words)
    records, status, error = ended_as
    hit, what = hit_by(cell, size), outcome(records, status)
    happened = proof(cell, records, job.scratch, hit, status, error)
    notes = [note for rank in hit if (note := note_of(job.scratch, rank)) is not None]
    since = min((note.at for note in notes), default=0.0)
    ended, absent = what is FaultOutcome.ENDED, missing(merged(records), exercise.SAMPLES, job.epochs)
    planned = exercise.SAMPLES * job.epochs
    if mode.one_rank:  # without a ledger, the reported samples count as trained
        absent = planned - _reported(records)
    return FaultResult(
        cell,
        PROCESSES,
        size,
        happened,
        what,
        noticed(records, hit, since) if cell.kind != "slow" else None,
        None if ended else went_on(records, hit, size, since),
        None if ended else full_strength(records, hit, since),
        0 if ended else max(_reported(records) - (planned - absent), 0),
        absent,
        error,
    )


def _reported(records: Timed) -> int:
    return sum(record.samples for _, record in records if isinstance(record, Progress))


def _killed(cell: FaultCell, size: int, folder: Path, job: Job) -> FaultResult:
    """Run the coordinator, or all ranks, in a process of its own, which a rank kills."""
    mode = MODES[cell.mode]
    below: set[psutil.Process] = set()
    _, words = aside(job, mode.engine, folder, None if mode.one_process else below)
    note = note_of(job.scratch, 0)
    if words != KILLED or note is None:
        return FaultResult(cell, PROCESSES, size, "", None, error=words or "it was not killed")
    if mode.one_process:
        return _resumed(cell, size, folder, job, f"the process of all ranks {KILLED}")
    with suppress(psutil.NoSuchProcess):
        below.add(psutil.Process(note.pid))
    outlived_s, left = _outlived_s(below)
    if left:
        error = f"these processes outlive the coordinator: {', '.join(map(str, left))}"
        return FaultResult(cell, PROCESSES, size, "", None, error=error)
    happened = f"the coordinator {KILLED}; its {len(below)} processes were gone {outlived_s:.2f} s later"
    return _resumed(cell, size, folder, job, happened)


def _outlived_s(below: Iterable[psutil.Process]) -> tuple[float, list[int]]:
    """Return the seconds until all these processes were gone, and the PIDs of those that live after the deadline."""
    began, left = time.monotonic(), [process for process in below if _lives(process)]
    while left and time.monotonic() - began < DEADLINE_S:
        time.sleep(0.01)
        left = [process for process in left if _lives(process)]
    return time.monotonic() - began, sorted(process.pid for process in left)


def _lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _corrupted(cell: FaultCell, size: int, folder: Path, job: Job) -> FaultResult:
    """Let a run end by an error, change a byte in parts of its last checkpoint, and resume."""
    records, status, _ = run(replace(job, restarts=0), MODES[cell.mode].engine)
    latest, _ = checkpoint.find(folder / "checkpoints")
    if latest is None or status == "ok":
        error = "the run left no checkpoint" if latest is None else "the run trained everything"
        return FaultResult(cell, PROCESSES, size, "", None, error=error)
    ranks = (0,) if MODES[cell.mode].one_rank else chosen(cell.ranks, size)
    for part in {latest.part(rank) for rank in ranks}:  # a rank whose error came first has no part of its own
        content = bytearray(regular_files.content(part))
        content[len(content) // 2] ^= 1
        part.write_bytes(bytes(content))
    _, problems = checkpoint.find(folder / "checkpoints")
    happened = problems[0].replace(f"{folder}/", "") if problems else ""
    return _resumed(cell, size, folder, job, happened, _reported(records))


def _resumed(
    cell: FaultCell, size: int, folder: Path, job: Job, happened: str, before: int | None = None
) -> FaultResult:
    """Resume from the latest complete checkpoint, if there is one. `before`: samples that the first run reported; None:
    its records are lost."""
    source, _ = checkpoint.find(folder / "checkpoints")
    if source is None:
        return FaultResult(
            cell, PROCESSES, size, happened, FaultOutcome.ENDED, error="there is no checkpoint to go on from"
        )
    scratch = folder / "again"
    scratch.mkdir()
    began = time.monotonic()
    again = replace(job, scratch=scratch, phase_faults=(), run="", resume=source.path)
    records, status, error = run(again, MODES[cell.mode].engine)
    if status != "ok":
        return FaultResult(cell, PROCESSES, size, happened, FaultOutcome.ENDED, error=error)
    saved, planned, reported = source.coordinator, exercise.SAMPLES * job.epochs, _reported(records)
    if MODES[cell.mode].one_rank:  # without a ledger
        absent = planned - saved.samples - reported
    else:
        absent = missing(chain(merged_before(saved), merged(records)), exercise.SAMPLES, job.epochs)
    full = full_strength(records, range(job.world_size), began)
    repeated = None if before is None else before + reported - planned
    return FaultResult(cell, PROCESSES, size, happened, FaultOutcome.RESUMED, None, full, full, repeated, absent)

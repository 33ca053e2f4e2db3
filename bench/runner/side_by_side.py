"""Runs the cells of a sweep side by side in a few processes, each of which runs many cells (`timing=off`).

Owns these processes: none outlives the sweep. They are forked from a process that has imported torch; each has its own
fork server for the ranks of its cells. Does not know what a cell does; `bench.config.sharing` decides how many
processes there are.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, run_job, setup_globals
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from bench.base.console import VERBOSITY
from bench.base.environment import gpus
from bench.config.point_task import LostPoint
from bench.config.sharing import VISIBLE, Resources, SharingPlan, visible_gpus
from bench.config.sweep_points import left_out_reason
from bench.results import sweep_file
from ddp.launcher.environment import read
from ddp.process.cores import cores
from ddp.process.forkserver import script_left_alone, warm

PRELOAD = ("bench.command.run", "bench.runner.launch", "bench.timeline.figure")
PATIENCE_S = 20.0
"""Seconds that cells may take to end after an interrupt, before they are killed."""


def resources() -> Resources:
    """Return the machine's resources for cells side by side; one core if a launcher has started this command for one
    cell."""
    with suppress(ValueError):
        if (placement := read(os.environ)) is not None and placement.world_size > 1:
            return Resources(1)
    visible = os.environ.get(VISIBLE)
    named = tuple(map(str, range(len(gpus())))) if visible is None else visible_gpus(visible)
    return Resources(cores(), named, psutil.virtual_memory().available)


class CellProcess:
    """A process that runs one cell after the other."""

    def __init__(self, shared: bytes, variables: Mapping[str, str]) -> None:
        self.connection, theirs = multiprocessing.Pipe()
        context = warm(PRELOAD)
        self._process = context.Process(target=main, args=(theirs, shared, dict(variables)), name="cells")
        with script_left_alone():
            self._process.start()
        theirs.close()

    def ended(self) -> str:
        """Wait for the end of the process; return how it ended, in words."""
        self._process.join()
        self.connection.close()
        return f"its process ended with exit code {self._process.exitcode}"

    def interrupt(self) -> None:
        """End the process's cell as Ctrl-C does; the process takes no further cell."""
        self._process.terminate()

    def close(self, patience_s: float) -> None:
        """Ask the process to end; kill it after `patience_s`."""
        self.connection.close()
        self._process.join(patience_s)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def launch(
    cells: Sequence[DictConfig], plan: SharingPlan, context: HydraContext, task: Any
) -> list[JobReturn]:  # the task is sent to the processes
    """Run all cells; return the result of each. After an interrupt, end the running cells and raise
    KeyboardInterrupt."""
    shared = cloudpickle.dumps((Singleton.get_state(), context, task))
    processes = [CellProcess(shared, each) for each in plan.variables]
    running: dict[int, int] = {}
    """Index of a process -> its cell."""
    waiting, returns, patience_s = list(range(len(cells))), dict[int, JobReturn](), 0.0
    output = Path(str(OmegaConf.select(cells[0], "output")))
    tell = partial(_tell, output, _trained(cells, task), returns, time.monotonic())
    try:
        tell()
        while waiting or running:
            for number in (number for number in range(len(processes)) if number not in running):
                cell = plan.next(waiting, list(running.values()))
                if cell is not None:
                    waiting.remove(cell)
                    running[number] = cell
                    with suppress(OSError):  # it has ended: seen below
                        processes[number].connection.send_bytes(cloudpickle.dumps(cells[cell]))
            by_connection = {processes[number].connection: number for number in running}
            for ready in wait(list(by_connection)):
                number = by_connection[ready]  # type: ignore[index]
                cell = running.pop(number)
                try:
                    returns[cell] = pickle.loads(processes[number].connection.recv_bytes())
                except (EOFError, OSError):
                    returns[cell] = _lost(task, cells[cell], processes[number].ended())
                    processes[number] = CellProcess(shared, plan.variables[number])
                tell()
    except BaseException:
        patience_s = PATIENCE_S
        for process in processes:
            process.interrupt()
        raise
    finally:
        sweep_file.remove(output)
        for process in processes:
            process.close(patience_s or PATIENCE_S)
    return [returns[cell] for cell in range(len(cells))]


def _trained(cells: Sequence[DictConfig], task: Any) -> set[int]:
    """Return the cells that the task will not leave out."""
    params = OmegaConf.select(cells[0], "hydra.sweeper.params") or {}
    return {number for number, cell in enumerate(cells) if left_out_reason(cell, task.overrides, params) is None}


def _tell(output: Path, trained: set[int], returns: Mapping[int, JobReturn], since: float) -> None:
    """Write the progress of the sweep for the dashboard; the seconds of a run are those from one end to the next."""
    over = len(trained & returns.keys())
    if trained:
        sweep_file.write(output, len(trained), over, (time.monotonic() - since) / over if over else None)


def _lost(task: Any, cell: DictConfig, why: str) -> JobReturn:
    """Note a cell whose process ended without a result."""
    task.note(LostPoint(" ".join(cell.hydra.overrides.task), why))
    return JobReturn(_return_value=None, status=JobStatus.COMPLETED)


def main(connection: Connection, shared: bytes, variables: Mapping[str, str]) -> None:
    """Run the cells that the command sends to this process, until the connection closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the command ends its cells
    os.environ.update(variables)
    os.environ.setdefault(VERBOSITY, "-1")  # a line a cell: those of several would mix
    setup_globals()
    state, context, task = pickle.loads(shared)
    Singleton.set_state(state)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            cell = pickle.loads(connection.recv_bytes())
            done = run_job(task, cell, "hydra.sweep.dir", "hydra.sweep.subdir", context)
            connection.send_bytes(cloudpickle.dumps(done))

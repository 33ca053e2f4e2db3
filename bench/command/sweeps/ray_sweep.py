"""A sweep on a Ray cluster: `launch=ray`. A cell is a group of actors; as many cells run at a time as the cluster has
room for.

The command runs until the sweep ends, as Ray kills the actors of a driver that has exited. `bench cancel` signals it
through a file in the sweep's folder, from any host.
"""

from __future__ import annotations

import importlib.util
import math
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.base.number_format import plural
from bench.base.usage import UsageError, tame
from bench.command.sweeps.submitted import about, new_folder, note, show
from bench.config.launch_settings import RaySettings
from bench.results.lease import HOST, Lease, alive, leased
from bench.runner.ray_cell import END_ALL_S, RayCell, RaySweep, bundle, fitting
from bench.runner.ray_rank import new_key
from bench.runner.submitted_cell import STOP, write_result

OVER = "over"
"""File in a sweep's folder which shows that the sweep's command has ended."""
LOOK_S = 0.5
ROOM_S = 30.0
"""Seconds without room for a cell after which the command prints why."""
CANCEL_S = END_ALL_S + 30.0
LONGEST = 300
"""Characters of a reason why a cell failed."""
OF_ACTORS = ("RayTaskError", "RayActorError", "ActorUnschedulableError", "OutOfMemoryError", "RuntimeEnvSetupError")
"""Names of Ray's errors of a single actor or of what it runs."""


def demand() -> None:
    """Raise UsageError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UsageError("launch=ray needs Ray: pip install ray")


def submit(output: Path, left: dict[str, list[str]], settings: RaySettings) -> Exit:
    """Train the cells; return their gravest exit code. Raise UsageError, KeyboardInterrupt."""
    with _connected(settings.address):
        folder = new_folder(output, "ray")
        job = folder.name.lstrip(".")
        note(folder, job, left, len(left))
        print(f"job {job}: {len(left)} cells; see {folder}", flush=True)
        lease, sweep = Lease(folder), RaySweep(settings, folder, str(Path.cwd()), job, new_key(), threading.Event())
        try:
            _train(sweep, left)
        finally:
            (folder / OVER).touch()
            lease.release()
    code = show(folder)
    return Exit.KILLED if sweep.stop.is_set() else code


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connect to a cluster. Raise UsageError."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of one's own tells nobody
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    board = False if address == "local" else None
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", include_dashboard=board)
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = str(error).strip().splitlines()[0]
        remedy = "start a cluster (ray start --head), or give its address"
        raise UsageError(f"launch.address={address}: {why}: {remedy}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _train(sweep: RaySweep, left: dict[str, list[str]]) -> None:
    """Train all cells, with one waiting thread for each. An interrupt stops the cells before it goes on."""
    until = time.monotonic() + ROOM_S
    with ThreadPoolExecutor(sweep.settings.at_once, thread_name_prefix="cell") as pool:
        waiting: set[Future[None]] = {
            pool.submit(_one, sweep, number, words) for number, words in enumerate(left.values())
        }
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=LOOK_S)
                for each in done:
                    each.result()
                if (sweep.folder / STOP).exists():
                    sweep.stop.set()
                if waiting and time.monotonic() > until and not sweep.begun.is_set():
                    print(_lack(sweep.settings), flush=True)
                    until = math.inf
        except BaseException:
            sweep.stop.set()
            raise


def _lack(own: RaySettings) -> str:
    """Return why no cell can start."""
    import ray

    need = ", ".join(f"{name} {count:g}" for name, count in bundle(own).items())
    if (there := fitting(own, ray.nodes())) < own.nodes:
        return f"a cell needs {plural(own.nodes, 'host')} with {need}, and Ray has {there}: it waits for more to join"
    return f"a cell waits for room: {plural(own.nodes, 'host')} with {need}"


def _one(sweep: RaySweep, number: int, words: list[str]) -> None:
    """Train a cell and write its result; a stopped cell writes none. What fails in a cell's actors, such as a folder that
    one does not see, costs this cell alone. Raise other errors of Ray: its cluster may be gone."""
    from ray import exceptions

    if sweep.stop.is_set():
        return
    cell, why = RayCell(sweep, number, words), ""
    try:
        code = cell.train()
    except exceptions.RayError as error:
        if sweep.stop.is_set():
            return
        if not isinstance(error, tuple(getattr(exceptions, name) for name in OF_ACTORS)):
            raise
        why = tame((str(error).strip().splitlines() or [type(error).__name__])[-1])[:LONGEST]
        code = Exit.FAILED
    if code is not None:
        write_result(sweep.folder, number, code, cell.host, why)


def live(folder: Path) -> bool:
    """Return whether the command of a sweep still runs, as far as the sweep's folder and this host show."""
    noted = about(folder)
    gone = noted.get("host") == HOST and not alive(noted["pid"])
    return not gone and leased(folder) and not (folder / OVER).exists()


def standing(folder: Path) -> str:
    """Return in words whether the command of a sweep still runs."""
    return "under way" if live(folder) else "over"


def cancel(folder: Path) -> str:
    """Wait until the command of a cancelled sweep has ended; return why it did not end, or an empty text."""
    until = time.monotonic() + CANCEL_S
    while not (folder / OVER).exists():
        if not (live(folder) or (folder / OVER).exists()):
            return f"{folder}: its command is gone, it was killed: Ray has ended its actors"
        if time.monotonic() > until:
            return f"{folder}: its command did not end within {CANCEL_S:g} s"
        time.sleep(LOOK_S)
    return ""

"""Plays the cells that a store lacks, one after the other or several at a time. Knows not how a cell is played."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from multiprocessing import active_children, get_context
from typing import Any

from bench.faults.meaning import FaultCell, meaningless
from bench.faults.outcome import FaultResult
from bench.faults.store import ResultStore
from ddp.core.errors import OutOfResources

Place = tuple[FaultCell, int]
"""(cell, number of ranks)."""
Player = Callable[[FaultCell, int], FaultResult]
SHOWN = 100
"""Progress is reported after so many results, and for each that is not as documented."""


def play_missing(places: Iterable[Place], world: str, store: ResultStore, play: Player, jobs: int = 1) -> None:
    """Play the cells that have a meaning in `world` and no stored result, and store the results; report progress on
    stderr. `jobs`: number of cells at a time. Raises OutOfResources."""
    todo = [(cell, size) for cell, size in places if not meaningless(cell, world)]
    todo = [(cell, size) for cell, size in todo if (str(cell), world, size) not in store.found]
    with closing(results(play, todo, jobs)) as played:
        for done, result in enumerate(played, 1):
            store.add(result)
            if not result.good or done % SHOWN == 0:
                line = f"{result.cell}, {result.size} ranks: {result.verdict}"
                print(f"{done:,} of {len(todo):,}: {line}", file=sys.stderr, flush=True)


def results(play: Player, todo: Sequence[Place], jobs: int) -> Generator[FaultResult, None, None]:
    """Yield the results of cells, as soon as each is there. Raises OutOfResources if a process that plays is killed."""
    if jobs == 1:
        yield from (_named(play, *place) for place in todo)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(_named, play, *place) for place in todo]):
                yield future.result()
        except BrokenProcessPool:
            why = "a process that played combinations was killed; run this again, perhaps with fewer --jobs"
            raise OutOfResources(f"{why}: what was played is kept") from None
        except BaseException:  # nobody waits for what is being played
            for worker in active_children():
                worker.kill()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def _named(play: Player, *place: Any) -> FaultResult:
    """Play one cell; note on any error which one it was."""
    try:
        return play(*place)
    except Exception as error:
        error.add_note(f"while {place[0]} was played on {place[1]} ranks")
        raise

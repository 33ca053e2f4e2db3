"""One cell as a group of Ray actors, one for each rank: placed and started together, and restarted together if one is
lost.

Ray restarts a lost actor on another host with room. All ranks of the cell then start anew, and the command resumes
from the last checkpoint. Owns the group of one cell; `bench.command.sweeps.ray_sweep` owns the sweep.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

from bench.base.exitcodes import Exit
from bench.config.launch_settings import RaySettings
from bench.runner.ray_rank import ActorPlace, RayRank, variables
from bench.runner.submitted_cell import END_S, QUIET, log_file

LOOK_S = 1.0
END_ALL_S = END_S + 10.0
"""Seconds that the actors of a cell may take to end the cell."""


@dataclass(frozen=True)
class RaySweep:
    """State shared by the cells of a sweep."""

    settings: RaySettings
    folder: Path
    cwd: str
    job: str
    key: str
    stop: Event
    """Set when all cells must end and no further cell may start."""
    begun: Event = field(default_factory=Event)
    """Set once a cell has found room."""


def bundle(own: RaySettings) -> dict[str, float]:
    """Return the resources that a cell needs on one host, by Ray's names."""
    return {"CPU": float(own.cpus * own.ranks), **({"GPU": float(own.gpus * own.ranks)} if own.gpus else {})}


def fitting(own: RaySettings, hosts: Iterable[dict[str, Any]]) -> int:
    """Return the number of Ray's hosts with the resources that a cell needs, assuming nothing else runs there."""
    have = [host["Resources"] for host in hosts if host["Alive"]]
    return sum(all(each.get(name, 0.0) >= need for name, need in bundle(own).items()) for each in have)


class RayCell:
    """A cell of a sweep."""

    def __init__(self, sweep: RaySweep, number: int, overrides: list[str]) -> None:
        self._sweep, self._number = sweep, number
        self._words = ["-m", *overrides, *QUIET]
        self._actors: list[Any] = []
        self.host = ""
        """Host of rank 0."""

    def train(self) -> int | None:
        """Train the cell; return its exit code, or None if it was stopped."""
        import ray
        from ray.util.placement_group import placement_group, remove_placement_group

        own = self._sweep.settings
        group = placement_group([bundle(own)] * own.nodes, strategy="STRICT_SPREAD" if own.nodes > 1 else "PACK")
        try:
            while not group.wait(LOOK_S):
                if self._sweep.stop.is_set():
                    return None
            self._sweep.begun.set()
            self._actors = [self._actor(group, rank) for rank in range(own.nodes * own.ranks)]
            for attempt in range(own.restarts + 1):
                code = self._attempt(attempt)
                if code is not None or self._sweep.stop.is_set():
                    return code
            return Exit.FAILED
        finally:
            for actor in self._actors:
                ray.kill(actor)
            remove_placement_group(group)

    def _actor(self, group: Any, rank: int) -> Any:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        own = self._sweep.settings
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank // own.ranks)
        kind = ray.remote(RayRank).options(
            num_cpus=own.cpus, num_gpus=own.gpus, max_restarts=-1, max_concurrency=2, scheduling_strategy=where
        )
        return kind.remote()

    def _attempt(self, attempt: int) -> int | None:
        """Start all ranks; return the exit code of rank 0, or None if a rank was lost or killed by a signal, or the
        sweep was stopped."""
        from ray.exceptions import RayActorError

        sweep = self._sweep
        places = self._placed()
        if places is None:
            return None
        self.host = places[0].host
        own = variables(places, f"{sweep.job}.{self._number}", sweep.key, attempt)
        calls = [
            actor.train.remote(self._words, sweep.cwd, each, str(log_file(sweep.folder, self._number, rank)), attempt)
            for rank, (actor, each) in enumerate(zip(self._actors, own, strict=True))
        ]
        try:
            codes = self._got(calls)
        except RayActorError:
            codes = None
        if codes is not None and codes[0] >= 0 and not sweep.stop.is_set():
            return int(codes[0])
        self._end(attempt)
        return None

    def _placed(self) -> list[ActorPlace] | None:
        """Wait until all actors run, restarted ones included; return None if the sweep was stopped."""
        from ray.exceptions import ActorUnavailableError

        while not self._sweep.stop.is_set():
            try:
                places = self._got([actor.place.remote() for actor in self._actors])
            except ActorUnavailableError:
                places = None
            if places is not None and not any(place.doomed for place in places):
                return places
            time.sleep(LOOK_S)
        return None

    def _got(self, calls: list[Any]) -> list[Any] | None:
        """Wait for all results; raise the first error. Return None if the sweep is stopped."""
        import ray

        waiting = calls
        while waiting and not self._sweep.stop.is_set():
            done, waiting = ray.wait(waiting, timeout=LOOK_S)
            ray.get(done)
        return None if waiting else list(ray.get(calls))

    def _end(self, attempt: int) -> None:
        """End the remaining ranks of an attempt, as Ctrl-C does, and wait for their end."""
        import ray
        from ray.exceptions import RayError

        until = time.monotonic() + END_ALL_S
        for call in [actor.end.remote(attempt) for actor in self._actors]:
            try:
                ray.get(call, timeout=max(until - time.monotonic(), LOOK_S))
            except RayError:  # it is lost, or takes too long
                continue

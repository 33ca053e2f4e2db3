"""Collectives in virtual time: ranks enter, all leave together, and a group breaks when one of its ranks is lost.

Knows neither what is exchanged nor why; the rank that enters gives callbacks for success and failure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from ddp.sim.timeline import EventQueue

Key = tuple[int, int]
"""(generation of the group, number of collectives that each of its ranks has entered)."""
Then = Callable[[], None]


@dataclass
class _Meeting:
    """A collective that ranks have entered: rank -> (callback on success, callback on failure)."""

    here: dict[int, tuple[Then, Then]] = field(default_factory=dict)
    flying: bool = False
    """Whether all ranks have entered, and the transfer is running."""
    missed: set[int] = field(default_factory=set)
    """Ranks on which the transfer broke, while it may succeed on others."""


class SimulatedCollectives:
    """The collectives of all groups in a simulation."""

    def __init__(
        self,
        timeline: EventQueue,
        wire_s: Callable[[tuple[int, ...], int], float],
        beat_s: float,
        beat: Callable[[int], None],
        torn: Callable[[int], bool],
    ) -> None:
        self._timeline, self._wire_s, self._torn = timeline, wire_s, torn
        self._beat_s, self._beat = beat_s, beat
        self._members: dict[int, tuple[int, ...]] = {}
        self._broken: set[int] = set()
        self._torn_s: dict[Key, float] = {}
        """Seconds after which ranks leave a collective that broke."""
        self._meetings: dict[Key, _Meeting] = {}

    def enter(
        self,
        key: Key,
        members: tuple[int, ...],
        rank: int,
        everyone: Callable[[list[int]], None],
        then: Then,
        broke: Then,
    ) -> bool:
        """Have `rank` enter. Once all `members` have, call `everyone`, and after the transfer each rank's `then`. Return
        whether it was the last of them."""
        self._members.setdefault(key[0], members)
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = self._meetings[key] = _Meeting()
        meeting.here[rank] = (then, broke)
        if key[0] in self._broken:
            self.tear(key[0])
        elif len(meeting.here) == len(members):
            meeting.flying = True
            everyone(sorted(meeting.here))
            self._timeline.after(self._wire_s(members, key[1]), self._land, key)
        elif self._beat_s < math.inf:  # without a deadline there are no signs of life
            self._timeline.gather(self._timeline.now + self._beat_s, self._wait, (key, rank, meeting))
        return meeting.flying

    def die(self, rank: int) -> None:
        """Break the groups of `rank`, whose process has ended."""
        for generation in [g for g, members in self._members.items() if rank in members]:
            self.tear(generation)

    def _land(self, key: Key) -> None:
        meeting = self._meetings.pop(key)
        for rank, (then, broke) in meeting.here.items():
            if rank in meeting.missed:
                broke()
            else:
                then()

    def _wait(self, ranks: list[tuple[Key, int, _Meeting]]) -> None:
        """Have ranks that entered together give a sign of life, if they still wait."""
        for key, rank, meeting in ranks:
            if self._meetings.get(key) is meeting and not meeting.flying:
                self._beat(rank)
                self._timeline.gather(self._timeline.now + self._beat_s, self._wait, (key, rank, meeting))

    def tear(self, generation: int) -> None:
        """Break a group: for ranks that wait in it, and perhaps (`torn`) for ranks in a running transfer."""
        self._broken.add(generation)
        for key in [key for key in self._meetings if key[0] == generation]:
            meeting = self._meetings[key]
            if meeting.flying:
                meeting.missed |= {rank for rank in meeting.here if self._torn(rank)}
                continue
            del self._meetings[key]
            if key not in self._torn_s:  # looks at all members: once, not for each that enters later
                self._torn_s[key] = self._wire_s(self._members[generation], key[1])
            took = self._torn_s[key]
            for _, broke in meeting.here.values():
                self._timeline.after(took, broke)

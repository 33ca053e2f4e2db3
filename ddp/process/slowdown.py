"""Emulates a slow device, or one whose input is late: a rank's step takes so many times as long. Sleeps, so that it costs
the other ranks no core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import sleep, thread_time

from ddp.process.clock import core_wait, now
from ddp.process.meter import Meter

MEMORY = 64
"""Steps that a typical one is the median of."""


class Slowdown:
    """`speed` in (0, 1]. What a sleep overshoots is taken off the next one. `waited`: seconds for which the thread that
    pays has waited for a core so far. Emulated devices share cores; a real one would not wait 1/speed times as long for it.

    The sleep is that of a typical step: a slow device is slow, it does not hiccup 1/speed times as long as a fast one. The
    first step of a process takes a hundred times as long as those that follow: it is not slowed down, and tells nothing.
    """

    def __init__(self, speed: float, waited: Callable[[], float] = core_wait) -> None:
        self._factor = self._own = 1.0 / speed - 1.0
        self._late = 0.0
        """Of a typical step, that each batch comes late."""
        self.link = 1.0
        """So many times as long as it needs a transfer over this rank's emulated link takes."""
        self._held = 0.0
        """Seconds that the batch of this step came late."""
        self._computed: float | None = None
        """When this part of a step had computed all, and went on to wait for other ranks."""
        self._waited, self._before, self._ran = waited, 0.0, 0.0
        self._owed = 0.0
        self._recent: dict[str, deque[float]] = {}
        """Part of a step -> seconds of real work, of the last steps."""

    @property
    def slow(self) -> bool:
        """Whether steps are to take longer than they do."""
        return self._factor > 0.0

    def computed(self) -> None:
        """Note that what is left of this part of a step waits for other ranks: no slow device waits 1/speed times as long,
        and two that did would each wait for the other's waiting."""
        self._computed = now()

    def slow_down(self, factor: float) -> None:
        """Take `factor` (1 or more) times as long for a step as until now."""
        self._factor = (1.0 + self._factor) * factor - 1.0
        self._note()  # in the middle of a step
        for recent in self._recent.values():
            recent.clear()  # of steps with what they waited for a core, which nobody measured until now

    def delay_input(self, factor: float) -> None:
        """Have each batch come late from now on, so that a step takes `factor` (1 or more) times as long."""
        self._late = (1.0 + self._late) * factor - 1.0

    def slow_link(self, factor: float) -> None:
        """Have each transfer over the rank's emulated link take `factor` (1 or more) times as long as until now."""
        self.link *= factor

    def heal(self) -> None:
        """End what `slow_down`, `delay_input` and `slow_link` began."""
        self._factor, self._late, self.link = self._own, 0.0, 1.0

    def hold(self) -> None:
        """Sleep for as long as the batch of this step is late, once."""
        if self._late and not self._held:
            typical = sum(median(recent) for recent in self._recent.values() if recent)
            self._held = self._late * (1.0 + self._factor) * typical
            sleep(self._held)

    def begin(self, meter: Meter | None = None) -> float:
        """Begin a step, or with a `meter` a part of one that computes; return now."""
        if self._factor:
            self._note()
        if meter is not None:
            meter.compute()
        return now()

    def _note(self) -> None:
        self._before, self._ran = self._waited(), thread_time()

    def _without_core(self, seconds: float) -> float:
        """Return how long of so many seconds the thread waited for a core: under load the kernel may tell of longer waits
        than there was time for beside what the thread ran."""
        return min(self._waited() - self._before, max(seconds - (thread_time() - self._ran), 0.0))

    def pay(self, busy_s: float, meter: Meter, part: str = "step") -> float:
        """Sleep after `busy_s` seconds of a step, or of a part of one; return now."""
        meter.rest()
        at = now()
        others = 0.0 if self._computed is None else at - self._computed
        whole = busy_s
        busy_s, self._held, self._computed = max(busy_s - self._held - others, 0.0), 0.0, None
        if (recent := self._recent.get(part)) is None:
            self._recent[part] = deque(maxlen=MEMORY)
            return at
        if not self._factor:
            recent.append(busy_s)
            return at
        recent.append(max(busy_s - self._without_core(whole), 0.0))
        self._owed += median(recent) * self._factor
        if self._owed <= 0.0:
            return at
        sleep(self._owed)
        after = meter.add("slowdown", at)
        self._owed -= after - at
        return after

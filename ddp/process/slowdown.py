"""Emulates a slow device or slow input: a step takes a multiple of its time, or a given time, by sleeping, which costs
other ranks no core."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median
from time import sleep, thread_time

from ddp.process.clock import core_wait, now
from ddp.process.meter import Meter

MEMORY = 64
"""Number of recent steps whose median is the typical step."""
BEHIND = "optimizer"
"""The part of a step behind an exchange of gradients."""


class Slowdown:
    """`speed` in (0, 1]. The overshoot of a sleep is subtracted from the next. `waited`: returns the seconds that the
    training thread has waited for a core so far. Emulated devices share cores: that waiting is not multiplied by 1/speed.

    The sleep is proportional to a typical step, as a slow device does not multiply single hiccups. With `step_s` a step
    takes `step_s / speed` seconds, or its own time if that is longer; the part behind the exchange of gradients is
    allowed for before it. The first step of a process takes a hundred times as long as later ones: it is neither slowed
    down nor counted."""

    def __init__(self, speed: float, waited: Callable[[], float] = core_wait, step_s: float = 0.0) -> None:
        self._factor = self._own = 1.0 / speed - 1.0
        self._step_s = step_s
        self._late = 0.0
        """Delay of each batch, as a multiple of a typical step."""
        self.link = 1.0
        """Factor on the time of transfers over this rank's emulated link."""
        self._held = 0.0
        """Seconds by which the batch of this step was delayed."""
        self._computed: float | None = None
        """When this part of a step had finished computing and began to wait for other ranks."""
        self._waited, self._before, self._ran = waited, 0.0, 0.0
        self._owed = 0.0
        self._recent: dict[str, deque[float]] = {}
        """Part of a step -> seconds of real work in the last steps."""

    @property
    def slow(self) -> bool:
        """Whether steps are slowed down."""
        return self._factor > 0.0 or self._step_s > 0.0

    def computed(self) -> None:
        """Note that the rest of this part of a step waits for other ranks. That waiting is not multiplied, as two slow
        ranks would each wait for the other's waiting."""
        self._computed = now()

    def slow_down(self, factor: float) -> None:
        """Make steps take `factor` (1 or more) times as long as until now."""
        self._factor = (1.0 + self._factor) * factor - 1.0
        self._note()  # called in the middle of a step
        for recent in self._recent.values():
            recent.clear()  # they include waiting for a core, which was not measured until now

    def delay_input(self, factor: float) -> None:
        """Delay each batch from now on, so that a step takes `factor` (1 or more) times as long."""
        self._late = (1.0 + self._late) * factor - 1.0

    def slow_link(self, factor: float) -> None:
        """Make each transfer over the rank's emulated link take `factor` (1 or more) times as long as until now."""
        self.link *= factor

    def heal(self) -> None:
        """Undo `slow_down`, `delay_input` and `slow_link`."""
        self._factor, self._late, self.link = self._own, 0.0, 1.0

    def hold(self) -> None:
        """Sleep for the delay of this step's batch, once per step."""
        if self._late and not self._held:
            typical = self._step_s or sum(median(recent) for recent in self._recent.values() if recent)
            self._held = self._late * (1.0 + self._factor) * typical
            sleep(self._held)

    def begin(self, meter: Meter | None = None) -> float:
        """Begin a step or, with a `meter`, a computing part of one; return now."""
        if self.slow:
            self._note()
        if meter is not None:
            meter.compute()
        return now()

    def _note(self) -> None:
        self._before, self._ran = self._waited(), thread_time()

    def _without_core(self, seconds: float) -> float:
        """Return for how much of `seconds` the thread waited for a core, at most what it did not run: under load the kernel
        may report longer waits."""
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
        if not self.slow:
            recent.append(busy_s)
            return at
        recent.append(max(busy_s - self._without_core(whole), 0.0))
        self._owed += self._due(part, busy_s)
        if self._owed <= 0.0:
            return at
        sleep(self._owed)
        after = meter.add("slowdown", at)
        self._owed -= after - at
        return after

    def _due(self, part: str, busy_s: float) -> float:
        """Return the seconds to sleep for a part of a step that took `busy_s`."""
        if not self._step_s:
            return median(self._recent[part]) * self._factor
        if part == BEHIND:
            return 0.0
        behind = self._recent.get(BEHIND)
        later = median(behind) if behind else 0.0
        return max((1.0 + self._factor) * self._step_s - later - busy_s, 0.0)

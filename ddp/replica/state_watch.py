"""`StateWatch`: digests of a replica's state before and after what leaves it alone, for somebody else to compare.

An average leaves the optimizer's state alone, and nothing changes what it made of the replica before the next step; an
evaluation, a checkpoint, a change of the group and the beginning of an epoch leave all alone, and so does what lies between
a rank's report that it is ready and its first step, and between a step and what comes next. Changes nothing. Knows nothing
of files, nor of which averages are drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ddp.replica.flat import KINDS
from ddp.replica.pieces import BUFFERS, OPTIMIZER, PARAMETERS, StatePiece, digest
from ddp.replica.task import Job

if TYPE_CHECKING:
    from ddp.replica.replica import Replica

RESTS = 8
"""So many evaluations, checkpoints, beginnings of epochs each of a process over which the state is compared."""
LARGE = 2 << 20
"""Bytes of parameters and buffers from which on less is kept and compared: of a step's state afterwards, a part."""
STEPS = 64
"""So many steps of a process between which and what comes next it is compared; RESTS where the model is LARGE."""
START, STEP, EPOCH, REGROUPING = "the start", "step ", "the beginning of epoch ", "regrouping "
OF_MODEL = f"{PARAMETERS} ", f"{BUFFERS} "
"""How labels of parameters and buffers begin."""


class StateWatch:
    """The states of one rank. `pieces`: its whole state; `together`: whether a step is the work of all ranks."""

    def __init__(
        self, job: Job, replica: Replica, pieces: Callable[[], Iterable[StatePiece]], together: Callable[[], bool]
    ) -> None:
        self._replica, self._pieces, self._together = replica, pieces, together
        self._most = {STEP: STEPS if replica.state.bytes < LARGE else RESTS}
        settings = job.averaging
        self._untouched = not (settings.optimizer_state or settings.resets)
        """Whether averages leave optimizers alone."""
        self.over: list[dict[str, Any]] = []
        """Digests by name `before` and `after`: of the optimizer's state, and of all of it where nothing was averaged."""
        self._awaited: dict[str, Any] | None = None
        self._seen: Counter[str] = Counter()
        """What the state was compared over, by its kind."""

    @property
    def awaits(self) -> bool:
        """Whether the next step tells if the state was left alone."""
        return self._awaited is not None

    def rests(self, what: str, averages: int) -> None:
        """Note the state before what leaves it alone; not where a callback may change it. `averages`: taken in so far."""
        self._settle()
        kind = what.rstrip("0123456789")
        most = self._most.get(kind, RESTS)
        if self._awaited is not None and "what" in self._awaited:
            self._awaited["what"] += f" and {what}"
        elif self._awaited is None and self._seen[kind] < most and self._replica.task.epoch_callback is None:
            self._seen[kind] += 1
            self._awaited = {"round": averages, "what": what, "averages": averages, "before": self._digests()}

    def average(self, round: int, drawn: bool) -> None:
        """Note the optimizer's state before a replica takes in the average of a round, if it is drawn."""
        self._settle()
        if not self._untouched:
            self._awaited = None
        elif self._awaited is None and drawn:
            self._awaited = {"round": round, "before": self._optimizer()}

    def averaged(self, averages: int) -> None:
        """Note what the replica became by a drawn average."""
        if self._awaited is not None and "what" not in self._awaited and self._replica.task.epoch_callback is None:
            digests = self._digests()
            self._awaited["before"] |= {name: each for name, each in digests.items() if name.startswith(OF_MODEL)}
            self._awaited["averages"] = averages

    @contextmanager
    def regroups(self, generation: int, averages: int) -> Iterator[None]:
        """Note the state before and after what is done within: the group of a generation is formed, or left. At once, for
        what comes behind it may give this rank another's state. If none does, the next step is to find it so."""
        self._seen[REGROUPING] += 1
        before = self._digests() if self._seen[REGROUPING] <= RESTS else None
        yield
        if before is None:
            return
        what, after = f"{REGROUPING}{generation}", self._digests()
        self.over.append({"what": what, "before": before, "after": after})
        if self._untouched and self._replica.task.epoch_callback is None:
            self._awaited = {"what": what, "averages": averages, "before": after, "taken": self._replica.taken}

    def compare(self, averages: int) -> None:
        """Note the state behind what has left it alone, if one is awaited; of the model only where nothing was averaged."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or (awaited.get("what", "").startswith(START) and self._together()):
            return  # in steps of all ranks the state was shared out since the start
        if awaited.pop("taken", self._replica.taken) != self._replica.taken:
            return
        model = awaited.pop("averages", None) == averages
        if not model:
            before = awaited["before"]
            awaited["before"] = {name: each for name, each in before.items() if not name.startswith(OF_MODEL)}
        self.over.append(awaited | {"after": self._digests() if model else self._optimizer()})

    def _settle(self) -> None:
        """Compare what a step left with what there is now, before something else begins."""
        if self._awaited is not None and self._awaited.get("what", "").startswith(STEP):
            self.compare(self._awaited["averages"])

    def _optimizer(self) -> dict[str, str]:
        return self._digests((OPTIMIZER,))

    def _digests(self, kinds: Sequence[str] = KINDS) -> dict[str, str]:
        """Return those of the state's kinds, by name: of parameters and buffers behind their kind."""
        digests = {}
        for piece in (piece for piece in self._pieces() if piece.kind in kinds):
            label = f"{piece.name} {piece.key}" if piece.kind == OPTIMIZER else f"{piece.kind} {piece.name}"
            digests[f"{label} from {piece.start}" if piece.start else label] = digest(piece.values)
        return digests

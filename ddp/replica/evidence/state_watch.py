"""`StateWatch`: digests of a replica's state before and after whatever must not change it. Others compare the digests.

An average must not change the optimizer's state, and nothing may change the averaged replica before the next step. An
evaluation, a checkpoint, a change of the process group and the beginning of an epoch must not change the state at all; nor
may anything between a rank's `Ready` or `Joined` and its first step, or between a step and what comes next. A broken step
leaves the buffers as they were. Changes nothing. Knows nothing of files, nor of which averages are drawn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ddp.replica.evidence.pieces import BUFFERS, OPTIMIZER, PARAMETERS, StatePiece, digest, of_buffers
from ddp.replica.memory.flat import KINDS, Section
from ddp.replica.task import Job

if TYPE_CHECKING:
    from torch import Tensor

    from ddp.replica.replica import Replica

RESTS = 8
"""How many evaluations, checkpoints and beginnings of epochs (each) a process compares the state across."""
LARGE = 2 << 20
"""Bytes of parameters and buffers from which on less is compared, and only a sample of the state after a saved step."""
STEPS = 64
"""Number of steps per process after which the state is compared; RESTS if the model is LARGE."""
START, STEP, EPOCH, REGROUPING = "the start", "step ", "the beginning of epoch ", "regrouping "
UNDOING = f"undoing {STEP}"
JOINING = f"{START} with the state of round "
OF_MODEL = f"{PARAMETERS} ", f"{BUFFERS} "
"""Prefixes of the labels of parameters and buffers."""


class StateWatch:
    """Compares the states of one rank. `pieces`: yields its whole state; `together`: whether a step is the work of all
    ranks."""

    def __init__(
        self, job: Job, replica: Replica, pieces: Callable[[], Iterable[StatePiece]], together: Callable[[], bool]
    ) -> None:
        self._replica, self._pieces, self._together = replica, pieces, together
        self._most = {STEP: STEPS if replica.state.bytes < LARGE else RESTS}
        settings = job.averaging
        self._untouched = not (settings.optimizer_state or settings.resets)
        """Whether averages leave the optimizer's state unchanged."""
        self.over: list[dict[str, Any]] = []
        """Digests `before` and `after`, by label: of the optimizer's state, and of all state if there was no average in
        between."""
        self._awaited: dict[str, Any] | None = None
        self._seen: Counter[str] = Counter()
        """Number of comparisons so far, by kind of event."""
        self._buffers: list[Tensor] = []
        """The buffers as the present step began, by data type."""

    @property
    def awaits(self) -> bool:
        """Whether the next step triggers a comparison."""
        return self._awaited is not None

    def rests(self, what: str, averages: int) -> None:
        """Note the state before an event `what` that must not change it, unless an epoch callback may. `averages`: taken in
        so far."""
        self._settle()
        kind = what.rstrip("0123456789")
        most = self._most.get(kind, RESTS)
        if self._awaited is not None and "what" in self._awaited:
            self._awaited["what"] += f" and {what}"
        elif self._awaited is None and self._seen[kind] < most and self._replica.task.epoch_callback is None:
            self._seen[kind] += 1
            about = {"round": averages, "what": what, "averages": averages, "taken": self._replica.taken}
            self._awaited = about | {"before": self._digests()}

    def average(self, round: int, drawn: bool) -> None:
        """Note the optimizer's state before the replica takes in the average of a round, if this round is drawn."""
        self._settle()
        if not self._untouched:
            self._awaited = None
        elif self._awaited is None and drawn:
            self._awaited = {"round": round, "before": self._optimizer()}

    def averaged(self, averages: int) -> None:
        """Note the replica's state right after a drawn average."""
        if self._awaited is not None and "what" not in self._awaited and self._replica.task.epoch_callback is None:
            digests = self._digests()
            self._awaited["before"] |= {name: each for name, each in digests.items() if name.startswith(OF_MODEL)}
            self._awaited["averages"] = averages

    @contextmanager
    def regroups(self, generation: int, averages: int) -> Iterator[None]:
        """Note the state before and after joining or leaving the group of a generation (inside the `with` block). Both are
        noted at once, because the rank may receive another rank's state next; otherwise its next step starts from it."""
        self._seen[REGROUPING] += 1
        before = self._digests() if self._seen[REGROUPING] <= RESTS else None
        yield
        if before is None:
            return
        what, after = f"{REGROUPING}{generation}", self._digests()
        self.over.append({"what": what, "before": before, "after": after})
        if self._untouched and self._replica.task.epoch_callback is None:
            self._awaited = {"what": what, "averages": averages, "before": after, "taken": self._replica.taken}

    def begins(self) -> None:
        """Keep the buffers before a step that may break: a forward pass changes them."""
        self._buffers = [section.values.clone() for section in self._sections]

    def undone(self, step: int) -> None:
        """Note the buffers before a step that broke, and now that it was undone."""
        before, after = dict[str, str](), dict[str, str]()
        for section, kept in zip(self._sections, self._buffers, strict=False):
            for piece in of_buffers(self._replica.model, self._replica.state, shared=False):
                first = (piece.values.data_ptr() - section.values.data_ptr()) // kept.itemsize
                if piece.values.dtype == kept.dtype and 0 <= first < len(kept):
                    label = f"{BUFFERS} {piece.name}"
                    before[label] = digest(kept[first : first + piece.values.numel()])
                    after[label] = digest(piece.values)
        if before:
            self.over.append({"what": f"{UNDOING}{step}", "before": before, "after": after})

    @property
    def _sections(self) -> list[Section]:
        return [section for section in self._replica.state.sections if section.kind == BUFFERS]

    def compare(self, averages: int) -> None:
        """If a comparison is awaited, note the state now; parameters and buffers only if no average came in between."""
        awaited, self._awaited = self._awaited, None
        if awaited is None or (awaited.get("what", "").startswith(START) and self._together()):
            return  # in shared steps, the state was distributed after the start
        if awaited.pop("taken", self._replica.taken) != self._replica.taken:
            return
        model = awaited.pop("averages", None) == averages
        if not model:
            before = awaited["before"]
            awaited["before"] = {name: each for name, each in before.items() if not name.startswith(OF_MODEL)}
        self.over.append(awaited | {"after": self._digests() if model else self._optimizer()})

    def _settle(self) -> None:
        """Compare the state after a step with the present one, before another event begins."""
        if self._awaited is not None and self._awaited.get("what", "").startswith(STEP):
            self.compare(self._awaited["averages"])

    def _optimizer(self) -> dict[str, str]:
        return self._digests((OPTIMIZER,))

    def _digests(self, kinds: Sequence[str] = KINDS) -> dict[str, str]:
        """Return the digests of the pieces of some kinds, by label."""
        digests = {}
        for piece in (piece for piece in self._pieces() if piece.kind in kinds):
            label = f"{piece.name} {piece.key}" if piece.kind == OPTIMIZER else f"{piece.kind} {piece.name}"
            digests[f"{label} from {piece.start}" if piece.start else label] = digest(piece.values)
        return digests

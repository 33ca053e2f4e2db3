"""`StepKeeper`: keeps some of a rank's steps, so that somebody else can do them again once the run is over.

It stands beside the step, which knows nothing of it: it looks at the state before and after. Changes nothing, draws no
random numbers. Who does the steps again, and how, is not its business.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp.core.event_parts import Files
from ddp.core.spans import Batch, Span
from ddp.core.values import finite
from ddp.replica.pieces import PARAMETERS, PieceFile, StatePiece, of_model, of_optimizer, recorded
from ddp.replica.state_watch import EPOCH as EPOCH
from ddp.replica.state_watch import LARGE as LARGE
from ddp.replica.state_watch import START as START
from ddp.replica.state_watch import STEP, StateWatch
from ddp.replica.step_draws import STRETCHES, StepDraws, drawn
from ddp.replica.task import Job

if TYPE_CHECKING:
    from torch import Tensor

    from ddp.replica.replica import Replica

BUDGET = 128 << 20
"""Bytes that the steps of a run may take, if they can; below it, the step that follows a drawn one is kept too."""
PAIRED, LONG, CHEAP = 24, 400, 16 << 20
"""Steps that are kept in pairs, about; so many own steps must there be, for keeping one costs up to a third of a step; or so
few bytes must they take."""
MOST, FEWEST = 1 << 30, 2
"""Bytes that they may take at all; but for so many, and those of the first and the last window."""
ROWS = 4
"""Parts of a row at most: averages and epochs cut it."""
TIMES = 5
"""Bytes that a kept step takes, in those of parameters and buffers: momenta, and most of it twice."""
BATCHES = 1000
"""Of an evaluation, whose figures are kept at most."""
SPARE = 4
"""So many times what a step takes must be free where it is kept."""


def rank_draws(job: Job, rank: int, samples: int, alone: bool, size: int) -> StepDraws:
    """Return what is drawn of a rank's steps in a run with `samples` in an epoch, if a step takes `size` bytes."""
    total, window = job.epochs * samples, job.batch_size * job.world_size
    stretches = max(min(STRETCHES, MOST // max(size, 1)), FEWEST)
    return StepDraws.of(job.audit, rank, total, window, alone and stretches == STRETCHES, stretches, job.epochs)


@dataclass
class _Open:
    """What is kept of one step, or of a row of them, as far as it has come."""

    file: PieceFile
    about: dict[str, Any]
    left: int
    """Steps to come behind the first one."""
    losses: list[Tensor | None] = field(default_factory=list)

    @property
    def torn(self) -> bool:
        """Whether a step broke off: its loss never came."""
        return len(self.losses) <= len(self.about["then"])

    def follow(self, batch: Batch, seen: float) -> None:
        """Add a step of one batch."""
        self.about["then"].append((seen, ((batch.start, batch.stop),), batch.total))
        self.left -= 1


Pieces = Callable[[], Iterator[StatePiece]] | None
Others = Sequence[tuple[int, Sequence[Span]]]
"""Other ranks and their positions in a step of all."""


class StepKeeper:
    """Keeps steps of one rank in the run's scratch folder, as `kept-<rank>-<number>.state`."""

    def __init__(
        self, job: Job, rank: int, replica: Replica, pieces: Pieces = None, shared: bool = False, few: bool = False
    ) -> None:
        """`pieces`: give the state if it is elsewhere; `shared`: it is all ranks'; `few`: of others more is kept."""
        self._job, self._rank, self._replica, self._own_pieces, self._shared = job, rank, replica, pieces, shared
        self._draws: StepDraws | None = None
        self._size = TIMES * replica.state.bytes
        self._whole = replica.state.bytes <= LARGE
        self._buffers = any(True for _ in replica.model.buffers())
        own = job.epochs * replica.samples // (job.batch_size * job.world_size)
        self._few = few
        self._pairs = not few and self._size * PAIRED <= (BUDGET if own >= LONG else CHEAP)
        """Whether the step behind a drawn one is kept, too, and a row."""
        self._begun = 0
        self.windowed: bool = getattr(replica, "windowed", False)
        """Whether a step is of several batches, and others say where it begins and ends."""
        self._next = self._averaged = self._averages_due = False
        self._averages = self._late = 0
        """That were taken in before the last step; steps of the last epoch."""
        self._due = self._row_due = False
        self._one: _Open | None = None
        self._row: _Open | None = None
        self._row_left: int | None = None
        """Steps that are still to be in a row; None: no row has begun."""
        self._rows = 0
        self._files: list[Path] = []
        self.watch = StateWatch(job, replica, pieces or self._pieces, lambda: self._together)
        """Of states that are left alone."""

    @property
    def _together(self) -> bool:
        """Whether a step is the work of all ranks."""
        return self.windowed or self._shared or (self._replica.gradient_sync is not None and not self._apart)

    @property
    def _apart(self) -> bool:
        """Whether ranks step on their own, and meet inside some of the steps."""
        return getattr(self._replica.gradient_sync, "apart", False)

    def due(self, batch: Batch, seen: float, step: int, averages: int) -> bool:
        """Return whether something is to be kept from this step on, the rank's own number `step`, after `averages`."""
        together, apart = self._together, self._apart
        if self._draws is None:
            draws = rank_draws(self._job, self._rank, self._replica.samples, not together, self._size)
            self._draws = draws.fewer() if self._few else draws
        self.watch.compare(averages)
        # All ranks draw the same where a step is theirs together: by what all of them have seen.
        met = together or apart
        first = int(seen) if met else batch.epoch * self._replica.samples + batch.start
        own = not apart and self._own(self._draws, batch, averages)
        drawn = self._draws.has(first, first + (batch.total if met else batch.samples), step)
        self._due, self._next = drawn or own or self._next, drawn and self._pairs
        if apart:
            self.cut()
            # Behind a drawn step the next with an average is kept, too, but for parameters. Buffers are the first rank's in
            # each step. Of odd slices PyTorch weighs the losses.
            self._averaged = getattr(self._replica.gradient_sync, "averages_next", True)
            due = self._due or (self._averages_due and self._averaged)
            self._averages_due = self._pairs and (drawn or self._averages_due) and not self._averaged
            even = batch.samples * self._job.world_size == batch.total
            self._row_due, self._due = False, bool(due and even and not (self._rank and self._buffers))
            return self._due
        many = self.windowed or self._shared
        self._row_due = self._pairs and not many and self._begins_row(self._draws, batch, seen)
        return self._due or self._row_due

    def _own(self, draws: StepDraws, batch: Batch, averages: int) -> bool:
        """Return whether this is a drawn step of the last epoch, or the first behind a drawn average."""
        behind, self._averages = averages != self._averages, averages
        last = batch.epoch == self._job.epochs - 1
        self._late += last
        return (behind and draws.after(averages)) or (last and draws.late == self._late - 1)

    def _begins_row(self, draws: StepDraws, batch: Batch, seen: float) -> bool:
        """Return whether a row begins with this step; add the step to the row that there is."""
        if self._row is not None and self._row.torn:
            self._row = None
        if self._row is not None and self._row.about["epoch"] != batch.epoch:
            self.cut()
        if self._row is not None:
            self._row.follow(batch, seen)
            return False
        if self._row_left is None and draws.row[1] and self._replica.fraction(seen) >= draws.row[0]:
            self._row_left = draws.row[1]
        self._rows += bool(self._row_left)
        return bool(self._row_left) and self._rows <= ROWS

    def begin(
        self, batch: Batch, work: Sequence[Span], seen: float, step: int, averages: int, others: Others = ()
    ) -> None:
        """Keep the state before a step on `batch`, of which positions `work` are this rank's, and those of `others` theirs
        whose losses are to come behind its own."""
        self._one = None
        about: dict[str, Any] = {"rank": self._rank, "step": step, "averages": averages}
        about |= {"at_once": True} if self._own_pieces else {}
        about |= {"others": others} if others else {}
        about |= {"averaged": True} if self._averaged else {}
        about |= {"epoch": batch.epoch, "seen": seen}
        about |= {"work": work, "total": batch.samples if self._apart else batch.total, "together": self._together}
        if (scale := self._replica.passes.scale) is not None:
            about["scale"] = (scale.value, scale.steps)
        if self._due or self.windowed:
            self._one = self._opened(about, 0)
        if self._row_due:
            self._row = self._opened(about, (self._row_left or 1) - 1)

    def _opened(self, about: dict[str, Any], left: int) -> _Open | None:
        path = self._job.scratch / f"kept-{self._rank}-{self._begun}.state"
        room = os.statvfs(path.parent)
        if room.f_bavail * room.f_frsize < SPARE * self._size:
            return None  # the run goes on, and fewer steps are done again
        self._begun += 1
        with suppress(OSError), PieceFile(path, self._rank) as file:
            return _Open(file, about | {"before": file.lay(self._pieces()), "then": []}, left)
        return None

    @property
    def keeping(self) -> bool:
        """Whether a step is kept now."""
        return self._one is not None or self._row is not None

    def add(self, loss: Tensor | None, rates: Sequence[float] = ()) -> None:
        """Note the loss on a batch of the step. `rates`: of it, where the replica's are soon another rank's."""
        for each in (self._one, self._row):
            if each is not None:
                each.losses.append(loss)
                each.about["rates"] = rates

    def ends(self, last: bool, round: int) -> bool:
        """Return whether something is complete with the batch that was trained, the `last` that was granted before the
        average of a round, or is to be noted behind it."""
        if self.windowed:
            return False
        complete = self._one is not None or (self._row is not None and not self._row.left)
        return complete or (last and self._compares(round))

    def _compares(self, round: int) -> bool:
        """Return whether states are compared before and after the average of a round: not where ranks meet in steps."""
        met = self._together or self._apart or self._job.world_size == 1 or self._few
        return self._draws is not None and not met and self._draws.round(round)

    def end(self, step: int, averages: int) -> None:
        """Keep the state after it, and the losses; note the state that it left. `averages`: taken in so far, with it."""
        one, self._one = self._one, None
        if one is not None:
            self._close(one)
        if self._row is not None and not self._row.left:
            self.cut()
        if not (self.windowed or self._few):
            self.watch.rests(f"{STEP}{step}", averages)

    def cut(self) -> None:
        """End a row: what is done next is no step. What is left of it begins behind that."""
        row, self._row = self._row, None
        if row is not None and not row.torn:
            self._row_left = row.left
            self._close(row)

    def _close(self, kept: _Open) -> None:
        groups = self._replica.optimizer.param_groups
        kept.about["rates"] = kept.about.get("rates") or [float(group["lr"]) for group in groups]
        kept.about["losses"] = [None if loss is None else finite(float(loss.detach())) for loss in kept.losses]
        with suppress(OSError), kept.file:
            # As it was before: the next step may be each rank's own.
            after = [
                piece
                for piece in self._pieces(kept.about["together"])
                if not (piece.kind == PARAMETERS and "averaged" in kept.about)
            ]
            kept.about["after"] = kept.file.lay(after, self._whole)
            self._files.append(kept.file.close(kept.about))

    def _pieces(self, together: bool | None = None) -> Iterator[StatePiece]:
        replica, shared = self._replica, self._together if together is None else together
        own = self._own_pieces or getattr(replica.gradient_sync, "pieces", None)
        if own is not None:
            yield from own()
            return
        yield from of_model(replica.model, shared)
        yield from of_optimizer(replica.state.named, replica.optimizer, shared)

    def rests(self, what: str, averages: int) -> None:
        """Cut a row before something that is no step; note the state, which it leaves alone."""
        self.cut()
        if not (self._few or (self.windowed and what.startswith(EPOCH))):  # which begins within such a step
            self.watch.rests(what, averages)

    def average(self, round: int) -> None:
        """Cut a row before the average of a round; note the state, if it is drawn."""
        self.cut()
        self.watch.average(round, self._compares(round))

    def evaluated(self, epoch: int) -> None:
        """Keep what came of each batch of the rank's part of an evaluation, and on the first rank the model: `whole` of the
        first epoch, and of one drawn between that and the last; of others as many as there is room for."""
        replica, key, last = self._replica, self._job.audit, self._job.epochs - 1
        whole = epoch in (0, 1 + drawn(key, max(last - 1, 1), "evaluation"))
        others = drawn(key, max(last, 1), "evaluated", epoch) * replica.state.bytes < CHEAP // 2
        if epoch == last or not (whole or others):
            return
        shown = [(*span, finite(loss), finite(metric)) for *span, loss, metric in replica.shown[:BATCHES]]
        about = {"rank": self._rank, "epoch": epoch, "whole": whole, "batches": shown}
        path = self._job.scratch / f"kept-{self._rank}-evaluated-{epoch}.state"
        with suppress(OSError), PieceFile(path, self._rank) as file:
            about["evaluated"] = [] if self._rank else file.lay(of_model(replica.model, shared=False))
            self._files.append(file.close(about))

    def finish(self) -> Files:
        """Keep the final model, on the first rank; return what is kept: names, sizes and digests."""
        self.cut()
        about: dict[str, Any] = {"rank": self._rank, "averages": self.watch.over}
        with suppress(OSError), PieceFile(self._job.scratch / f"kept-{self._rank}-end.state", self._rank) as file:
            about["final"] = file.lay(of_model(self._replica.model, shared=True))
            self._files.append(file.close(about))
        return tuple(map(recorded, self._files))

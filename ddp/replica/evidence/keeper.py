"""`StepKeeper`: saves the state around some of a rank's steps, so that an audit can repeat these steps after the run.

It reads the state before and after a step; the step itself does not know of it. It changes nothing and draws no random
numbers. It does not know who repeats the steps, nor how."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddp.core.messages.event_parts import Files
from ddp.core.samples.spans import Batch, Span
from ddp.core.values.frozen import finite
from ddp.replica.evidence.pieces import PARAMETERS, PieceFile, StatePiece, of_model, of_optimizer, recorded
from ddp.replica.evidence.state_watch import EPOCH as EPOCH
from ddp.replica.evidence.state_watch import LARGE as LARGE
from ddp.replica.evidence.state_watch import START as START
from ddp.replica.evidence.state_watch import STEP, StateWatch
from ddp.replica.evidence.step_draws import STRETCHES, StepDraws, drawn
from ddp.replica.task import Job

if TYPE_CHECKING:
    from torch import Tensor

    from ddp.replica.replica import Replica

BUDGET = 128 << 20
"""Bytes that the saved steps of a run should stay below; if so, the step after each drawn one is saved too."""
PAIRED, LONG, CHEAP = 24, 400, 16 << 20
"""About how many steps are saved in pairs; a rank with at least LONG steps of its own may use BUDGET bytes for them, another
one CHEAP bytes: saving a step costs up to a third of one."""
MOST, FEWEST = 1 << 30, 2
"""Most bytes that saved steps may take; but this many steps, and those of the first and last window, are always saved."""
ROWS = 4
"""Most files that a row of consecutive steps is split into: averages and epochs end a file."""
TIMES = 5
"""Size of a saved step in multiples of the parameters' and buffers' size: with momenta, and most of the state twice."""
BATCHES, EVALUATIONS = 1000, 1000
"""Most batches of an evaluation whose figures are saved, and about the most evaluations that are not `whole`."""
SPARE = 4
"""Free space needed to save a step, in multiples of its size."""


def rank_draws(job: Job, rank: int, samples: int, alone: bool, size: int) -> StepDraws:
    """Return which steps of a rank to save, in a run with `samples` per epoch, if a saved step takes `size` bytes."""
    total, window = job.epochs * samples, job.batch_size * job.world_size
    stretches = max(min(STRETCHES, MOST // max(size, 1)), FEWEST)
    return StepDraws.of(job.audit, rank, total, window, alone and stretches == STRETCHES, stretches, job.epochs)


@dataclass
class _Open:
    """A file being written, of one step or of a row of consecutive steps."""

    file: PieceFile
    about: dict[str, Any]
    left: int
    """Steps still to come in this file after the first one."""
    losses: list[Tensor | None] = field(default_factory=list)

    @property
    def torn(self) -> bool:
        """Whether the current step was interrupted: its loss never came."""
        return len(self.losses) <= len(self.about["then"])

    def follow(self, batch: Batch, seen: float) -> None:
        """Add a step of one batch to the row."""
        self.about["then"].append((seen, ((batch.start, batch.stop),), batch.total))
        self.left -= 1


Pieces = Callable[[], Iterator[StatePiece]] | None
Others = Sequence[tuple[int, Sequence[Span]]]
"""(rank, its positions) of the other ranks in a step that all ranks do together."""


class StepKeeper:
    """Saves steps of one rank to the run's scratch folder, as `kept-<rank>-<number>.state`."""

    def __init__(
        self, job: Job, rank: int, replica: Replica, pieces: Pieces = None, shared: bool = False, few: bool = False
    ) -> None:
        """`pieces`: yields the state if it is not in the replica; `shared`: all ranks hold the same state; `few`: save
        fewer steps, as other ranks save more."""
        self._job, self._rank, self._replica, self._own_pieces, self._shared = job, rank, replica, pieces, shared
        self._draws: StepDraws | None = None
        self._size = TIMES * replica.state.bytes
        self._whole = replica.state.bytes <= LARGE
        self._buffers = any(True for _ in replica.model.buffers())
        own = job.epochs * replica.samples // (job.batch_size * job.world_size)
        self._few = few
        self._pairs = not few and self._size * PAIRED <= (BUDGET if own >= LONG else CHEAP)
        """Whether to save also the step after each drawn one, and a row of consecutive steps."""
        self._begun = self._rows = 0
        self.windowed: bool = getattr(replica, "windowed", False)
        """Whether a step consists of several batches; then the caller says where it begins and ends."""
        self._next = self._averaged = self._averages_due = False
        self._averages: int | None = None
        self._late = 0
        """Averages taken in before the last step (None: no step yet); steps done in the last epoch."""
        self._due = self._row_due = False
        self._single: _Open | None = None
        self._row: _Open | None = None
        self._row_left: int | None = None
        """Steps still to be saved in the row; None: the row has not begun."""
        self._files: list[Path] = []
        self.watch = StateWatch(job, replica, pieces or self._pieces, lambda: self._together)
        """Compares states across what must not change them."""

    @property
    def _together(self) -> bool:
        """Whether a step is the work of all ranks."""
        return self.windowed or self._shared or (self._replica.gradient_sync is not None and not self._apart)

    @property
    def _apart(self) -> bool:
        """Whether ranks step on their own now, with averages inside some steps (local SGD)."""
        return getattr(self._replica.gradient_sync, "apart", False)

    def due(self, batch: Batch, seen: float, step: int, averages: int) -> bool:
        """Return whether to save this step, the rank's own number `step`, done after `averages` averages."""
        together, apart = self._together, self._apart
        if self._draws is None:
            draws = rank_draws(self._job, self._rank, self._replica.samples, not together, self._size)
            self._draws = draws.fewer() if self._few else draws
        self.watch.compare(averages)
        if together:
            self.watch.begins()
        # In steps of all ranks, every rank draws by the samples that all have seen, so all draw the same steps.
        met = together or apart
        first = int(seen) if met else batch.epoch * self._replica.samples + batch.start
        own = not apart and self._own(self._draws, batch, step, averages)
        drawn = self._draws.has(first, first + (batch.total if met else batch.samples), step)
        self._due, self._next = drawn or own or self._next, drawn and self._pairs
        if apart:
            self.cut()
            # After a drawn step, save also the next step with an average, but without its parameters. Buffers are rank 0's
            # in each step. PyTorch weighs the losses of uneven slices.
            self._averaged = getattr(self._replica.gradient_sync, "averages_next", True)
            due = self._due or (self._averages_due and self._averaged)
            self._averages_due = self._pairs and (drawn or self._averages_due) and not self._averaged
            even = batch.samples * self._job.world_size == batch.total
            self._row_due, self._due = False, bool(due and even and not (self._rank and self._buffers))
            return self._due
        alone = self._pairs and not (self.windowed or self._shared)
        self._row_due = alone and self._begins_row(self._draws, batch, seen)
        return self._due or self._row_due

    def _own(self, draws: StepDraws, batch: Batch, step: int, averages: int) -> bool:
        """Return whether this is the drawn step of the last epoch, or the first one from a drawn average or loaded state."""
        first, behind, self._averages = self._averages is None, averages != self._averages, averages
        last = batch.epoch == self._job.epochs - 1
        self._late += last
        # Where all ranks step together, only the one that joined would save its first step.
        loaded = first and bool(step or averages) and not self._few and (draws.rank is not None or not self._job.life)
        return loaded or (behind and draws.after(averages)) or (last and draws.late == self._late - 1)

    def _begins_row(self, draws: StepDraws, batch: Batch, seen: float) -> bool:
        """Return whether a row begins with this step; if a row is open, add the step to it."""
        if self._row is not None and (self._row.torn or self._row.about["epoch"] != batch.epoch):
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
        """Save the state before a step on `batch`. `work`: this rank's positions; `others`: positions of other ranks, whose
        losses will be added after this rank's."""
        self._single = None
        about: dict[str, Any] = {"rank": self._rank, "step": step, "averages": averages}
        about |= {"at_once": True} if self._own_pieces else {}
        about |= {"others": others} if others else {}
        about |= {"averaged": True} if self._averaged else {}
        about |= {"epoch": batch.epoch, "seen": seen}
        about |= {"work": work, "total": batch.samples if self._apart else batch.total, "together": self._together}
        if (scale := self._replica.passes.scale) is not None:
            about["scale"] = (scale.value, scale.steps)
        if self._due or self.windowed:
            self._single = self._opened(about, 0)
        if self._row_due:
            self._row = self._opened(about, (self._row_left or 1) - 1)

    def _opened(self, about: dict[str, Any], left: int) -> _Open | None:
        path = self._job.scratch / f"kept-{self._rank}-{self._begun}.state"
        room = os.statvfs(path.parent)
        if room.f_bavail * room.f_frsize < SPARE * self._size:
            return None  # the run goes on; the audit repeats fewer steps
        self._begun += 1
        with suppress(OSError), PieceFile(path, self._rank) as file:
            return _Open(file, about | {"before": file.lay(self._pieces()), "then": []}, left)
        return None

    @property
    def keeping(self) -> bool:
        """Whether a step is being saved."""
        return self._single is not None or self._row is not None

    def add(self, loss: Tensor | None, rates: Sequence[float] = ()) -> None:
        """Note the loss on a batch of the step. `rates`: its learning rates, if the replica will soon take another
        rank's."""
        for each in (self._single, self._row):
            if each is not None:
                each.losses.append(loss)
                each.about["rates"] = rates

    def ends(self, last: bool, round: int) -> bool:
        """Return whether `end` must be called after the batch just trained: a saved step or row is complete, or this was
        the `last` batch before an average over which states are compared."""
        if self.windowed:
            return False
        complete = self._single is not None or (self._row is not None and not self._row.left)
        return complete or (last and self._compares(round))

    def _compares(self, round: int) -> bool:
        """Return whether to compare states across the average of a round. Not where ranks meet inside steps."""
        met = self._together or self._apart or self._job.world_size == 1 or self._few
        return self._draws is not None and not met and self._draws.round(round)

    def end(self, step: int, averages: int) -> None:
        """Save the state after the step, and the losses. `averages`: averages taken in so far, with this step's."""
        single, self._single = self._single, None
        if single is not None:
            self._close(single)
        if self._row is not None and not self._row.left:
            self.cut()
        if not (self.windowed or self._few):
            self.watch.rests(f"{STEP}{step}", averages)

    def cut(self) -> None:
        """Close the row's file: what follows is not a step. The rest of the row begins after that."""
        row, self._row = self._row, None
        if row is not None and not row.torn:
            self._row_left = row.left
            self._close(row)

    def _close(self, kept: _Open) -> None:
        groups = self._replica.optimizer.param_groups
        kept.about["rates"] = kept.about.get("rates") or [float(group["lr"]) for group in groups]
        kept.about["losses"] = [None if loss is None else finite(float(loss.detach())) for loss in kept.losses]
        with suppress(OSError), kept.file:
            # by the value at `begin`: the next step may be each rank's own
            pieces, out = self._pieces(kept.about["together"]), PARAMETERS if "averaged" in kept.about else None
            after = [piece for piece in pieces if piece.kind != out]
            kept.about["after"] = kept.file.lay(after, self._whole)
            self._files.append(kept.file.close(kept.about))

    def _pieces(self, together: bool | None = None) -> Iterator[StatePiece]:
        replica, shared = self._replica, self._together if together is None else together
        own = self._own_pieces or getattr(replica.gradient_sync, "pieces", None)
        if own is not None:
            yield from own()
            return
        yield from of_model(replica.model, replica.state, shared)
        yield from of_optimizer(replica.state.named, replica.optimizer, shared)

    def rests(self, what: str, averages: int) -> None:
        """End the row before something that is not a step; note the state, which must not change."""
        self.cut()
        inside = self.windowed and what.startswith(EPOCH)  # an epoch begins inside such a step
        if not inside and (self._whole or not self._few):
            self.watch.rests(what, averages)

    def average(self, round: int) -> None:
        """End the row before the average of a round; note the state if this round is compared."""
        self.cut()
        self.watch.average(round, self._compares(round))

    def evaluated(self, epoch: int) -> None:
        """Save the results of each batch of the rank's part of an evaluation; on rank 0 also the model. `whole` evaluations
        are those of the first epoch and of one drawn between it and the last; others are saved as far as there is room."""
        replica, key, last = self._replica, self._job.audit, self._job.epochs - 1
        whole = epoch in (0, 1 + drawn(key, max(last - 1, 1), "evaluation"))
        most = min(EVALUATIONS, CHEAP / 2 / max(replica.state.bytes, 1))
        if epoch == last or not (whole or drawn(key, max(last, 1), "evaluated", epoch) < most):
            return
        shown = [(*span, finite(loss), finite(metric)) for *span, loss, metric in replica.shown[:BATCHES]]
        about = {"rank": self._rank, "epoch": epoch, "whole": whole, "batches": shown}
        path = self._job.scratch / f"kept-{self._rank}-evaluated-{epoch}.state"
        with suppress(OSError), PieceFile(path, self._rank) as file:
            about["evaluated"] = [] if self._rank else file.lay(of_model(replica.model, replica.state, False))
            self._files.append(file.close(about))

    def finish(self) -> Files:
        """Save the final model (on rank 0); return (name, size, digest) of each saved file."""
        self.cut()
        about: dict[str, Any] = {"rank": self._rank, "averages": self.watch.over}
        with suppress(OSError), PieceFile(self._job.scratch / f"kept-{self._rank}-end.state", self._rank) as file:
            about["final"] = file.lay(of_model(self._replica.model, self._replica.state, True))
            self._files.append(file.close(about))
        return tuple(map(recorded, self._files))

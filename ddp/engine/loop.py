"""The training loop of a rank, in solo and distributed runs: trains, measures, reports. Makes no decisions.

The caller decides where reports go: into a channel, or straight into the record."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from ddp.checkpoint.parts import RankParts, Recut
from ddp.comm.heartbeat import Heartbeat
from ddp.core.messages.commands import Evaluate, Save
from ddp.core.messages.events import Alive, Evaluated, RankEvent, Saved, Trained
from ddp.core.messages.join_events import Joining
from ddp.core.samples.spans import Batch, Span
from ddp.core.values.frozen import finite
from ddp.core.worker import Step
from ddp.data.seeded import OwnNumbers, seed_others
from ddp.engine import reports
from ddp.engine.held_batches import HeldBatches
from ddp.engine.pending import Pending
from ddp.permutation import derive
from ddp.process.clock import now
from ddp.process.meter import Meter, reset_peak_rss
from ddp.process.profiling import Profiler
from ddp.process.slowdown import Slowdown
from ddp.replica.evidence.keeper import EPOCH, START, StepKeeper
from ddp.replica.handle import WorkerHandle
from ddp.replica.memory import final_state
from ddp.replica.replica import Replica
from ddp.replica.task import Job
from ddp.tally import MODULUS

REPORT_S = 0.02
"""Least seconds between two progress reports, unless the rank runs out of work."""
ALIVE_S = 1.0
"""Most seconds between signs of life in a long evaluation; they come five times in a deadline."""


def device_of_rank(job: Job, rank: int) -> torch.device:
    """Return CUDA if each rank here has its own GPU or the job asks for it (ValueError if there is none), or the CPU."""
    here = job.host_ranks or job.world_size
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if job.device == "cuda" and not gpus:
        raise ValueError("cluster.device=cuda, but torch sees no CUDA device; use cluster.device=auto or cpu")
    if job.device == "cpu" or gpus < (1 if job.device == "cuda" else here):
        return torch.device("cpu")
    return torch.device("cuda", (rank % here if job.local_rank is None else job.local_rank) % gpus)


class TrainingLoop:
    """One rank's training loop."""

    def __init__(
        self,
        job: Job,
        rank: int,
        send: Callable[[RankEvent], None],
        replica: type[Replica] = Replica,
        meter: type[Meter] = Meter,
    ) -> None:
        self.job, self.rank, self._send = job, rank, send
        reset_peak_rss()
        self.device = device_of_rank(job, rank)
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        self.meter = meter(rank, job.scratch, self.device)
        speed = job.speeds[rank] if job.speeds else 1.0
        self.slowdown = Slowdown(speed, step_s=job.step_s)
        self.heart = Heartbeat(math.inf if job.threads else job.deadline_s / 5, lambda: send(Alive(now(), rank)))
        self.replica = replica(job, self.device, self.meter, self.slowdown)
        if job.step.compile:
            passes, samples = self.replica.passes, self.replica.samples
            with self.heart if job.world_size > 1 else nullcontext():
                passes.warm_up(self.replica.task, self.replica.some, passes.sizes(job, samples))
        lives = (job.life,) if job.life else ()
        seed_others(derive(job.seed, "others", rank, *lives))  # random numbers of other libraries differ by rank
        self.numbers = OwnNumbers(job.threads is None and self.replica.task.epoch_callback is None)
        self.steps = 0
        """Steps since the last contribution to an average."""
        self.samples = 0
        self.after = -1
        """The round of the last contribution."""
        self.total_steps = 0  # since the start
        self.version = 0
        """Averages taken in since the start."""
        self.begun = self.begun_at_average = -1
        """The last epoch that the callback was called for: so far, and before the last contribution to an average."""
        self._held = HeldBatches()
        self.saving_s = 0.0
        """Seconds in which it saved its state, for checkpoints and for the audit."""
        self._stepped: float | None = None
        """When the last step ended; None: something else happened since."""
        self._tallied = 0
        """Tally of the training data read when the last report was made."""
        self._pending = Pending(-1)
        self.report_s = REPORT_S
        self._reported, self._kept = now(), False  # whether a saved step waits for its report
        self._profiler = Profiler(rank, job.profile_steps, job.scratch) if job.profile_steps else None
        self._parts = RankParts(job, rank, self.replica)
        self.keeper = StepKeeper(job, rank, self.replica) if job.audit else None

    def ready(self, transport: str) -> None:
        """Report that model, data and transport are ready."""
        self._send(reports.ready(self.job, self.rank, self.replica, str(self.device), transport, self._parts.lasting))
        if self.keeper is not None:
            self.keeper.rests(START, self.version)

    def come(self, transport: str) -> None:
        """Report that a restarted rank is ready to join."""
        samples, digest, data = self.replica.samples, self.replica.state.digest(), self.replica.record.content
        self._send(Joining(now(), self.rank, samples, digest, self.job.life, str(self.device), transport, data))

    def train(self, step: Step) -> None:
        """Train one step; report if the rank runs out of work or the last report is older than `report_s`."""
        if step.batch.epoch != self._pending.epoch:
            self._settle(f"{EPOCH}{step.batch.epoch}")
            self._pending = Pending(step.batch.epoch)
            self.numbers.note()
            self.begin(step.batch.epoch, step.seen)
            self.numbers.note()
            self.pause()
        if self._profiler is not None and self._profiler.step():
            self.pause()
        # Measured from the end of a step to the end of the next: the speed of a rank is that of its whole loop.
        between = 0.0 if self._stepped is None else now() - self._stepped
        loss, busy = self._step(step)
        if not self.total_steps:  # the first forward pass may have added parameters
            self.replica.state.check_added(self.replica.model)
        self._pending.add(loss, step.batch.samples, between + busy)
        self.steps += 1
        self.total_steps += 1
        self.version += self.replica.gradient_sync is not None
        self.samples += step.batch.samples
        if self._kept or step.last or now() - self._reported > self.report_s:
            self.report()
        if self.replica.record.full:
            self._sum_up()

    def _step(self, step: Step) -> tuple[Tensor | None, float]:
        """Train one step; save its state for the audit if drawn. Of a step of several batches the first call saves."""
        keeper, batch = self.keeper, step.batch
        if keeper is not None and not keeper.windowed and keeper.due(batch, step.seen, self.total_steps, self.version):
            self.keep(batch, step.seen, ((batch.start, batch.stop),))
        loss, busy = self.replica.step(batch, step.seen)
        self._stepped = now()
        self.replica.record.add_loss(batch.epoch, batch.samples, loss)
        if keeper is not None:
            keeper.add(loss)
            if keeper.ends(step.last, self.after + 1):
                self.keep_end()
        return loss, busy

    def keep(self, batch: Batch, seen: float, work: Sequence[Span]) -> None:
        """Save the state before a step on `batch`, in which this rank trains the positions `work`. This counts as no
        training time. The step gets a report of its own, which the audit compares with its repetition."""
        self.report()
        began = now()
        if self.keeper is not None:
            self.keeper.begin(batch, work, seen, self.total_steps, self.version)
        self._saving(began)

    def keep_end(self) -> None:
        """Save the state after that step."""
        began = self.pause()
        if self.keeper is not None:
            self.keeper.end(self.total_steps, self.version + (self.replica.gradient_sync is not None))
        self._saving(began)
        self._kept = True

    def _saving(self, began: float) -> None:
        self.saving_s += self.meter.add("checkpoint", began) - began

    def expect(self, batches: Iterable[Batch]) -> None:
        """Prefetch the batches that come next, in place of those expected before; an epoch's not before its callback."""
        if self.replica.task.epoch_callback is not None:
            self._held = HeldBatches(batches)
            batches = self._held.until(self.begun)
        self.replica.expect(batches)

    def close(self) -> None:
        """Stop the threads that run in the background."""
        self.replica.close()

    def pause(self) -> float:
        """Stop the training clock until the next step. Return when it stopped: at the end of the last step, or now if
        something else happened since."""
        since, self._stepped = self._stepped, None
        return now() if since is None else since

    def begin(self, last: int, seen: float) -> None:
        """Call the user's epoch callback for each epoch up to `last` that has not begun. Its time is in no slice."""
        replica, rates, fraction = self.replica, self.replica.rates, self.replica.fraction(seen)
        rank, size, device, steps, version = self.rank, self.job.world_size, self.device, self.total_steps, self.version
        if (callback := replica.task.epoch_callback) is not None and last > self.begun:
            with getattr(replica.gradient_sync, "changeable_parameters", nullcontext)():
                for epoch in range(self.begun + 1, last + 1):
                    torch.manual_seed(derive(self.job.seed, "callback", epoch))  # the same random numbers on all ranks
                    handle = WorkerHandle(rank, size, device, epoch, steps, version, replica.model, rates, fraction)
                    with rates.unchanged():
                        callback(epoch, handle)
            replica.expect(self._held.until(last))
        self.replica.state.check_added(self.replica.model)
        self.begun = max(self.begun, last)

    def report(self) -> None:
        """Report what has been trained since the last report."""
        self._reported, self._kept = now(), False
        if not (pending := self._pending).steps:
            return
        visited, work = self._visited(), self.meter.worked()
        self._send(reports.progress(self.rank, pending, self.replica, self.after, visited, work))
        self._pending = Pending(pending.epoch)
        self.meter.tick()

    def _sum_up(self) -> None:
        """Send the tallies of the samples trained since the last call."""
        for trained in self.replica.record.take():
            self._send(Trained(now(), self.rank, *trained))

    def _visited(self) -> int:
        """Return the tally of the training data read since the last report."""
        before, self._tallied = self._tallied, self.replica.feed.visited()
        return (self._tallied - before) % MODULUS

    def contribute(self, round: int) -> tuple[int, int]:
        """Return (steps, samples) since the last contribution, and reset both. `round`: the round that they contribute
        to."""
        contribution, self.after = (self.steps, self.samples), round
        self.steps = self.samples = 0
        self.begun_at_average = self.begun
        return contribution

    def _settle(self, what: str) -> None:
        """Report everything trained before `what`, an event that is not a step."""
        self.report()
        self._sum_up()
        if self.keeper is not None:
            self.keeper.rests(what, self.version)

    def evaluate(self, order: Evaluate, averaged_weights: AbstractContextManager[None] | None = None) -> None:
        """Evaluate a part of the test set with the model that `averaged_weights` swaps in."""
        self._settle("the evaluation")
        self.pause()
        began, replica = now(), self.replica
        own = replica.sketcher.model() if getattr(replica.gradient_sync, "apart", False) else ""
        with averaged_weights or nullcontext():
            samples, loss, metric, content = replica.evaluate(order.part, order.parts, self._heartbeat)
            sketch = replica.sketcher.model()
            if self.keeper is not None:
                self.keeper.evaluated(order.epoch)
        seconds = self.meter.add("evaluate", began) - began
        result = (now(), self.rank, order.epoch, samples, finite(loss), finite(metric), seconds, order.part)
        shown = replica.record.shown()
        self._send(Evaluated(*result, content=finite(content), sketch=sketch, hashes=shown, own=own))

    def save(
        self, order: Save, kept: Sequence[Tensor] = (), averaged_weights: AbstractContextManager[None] | None = None
    ) -> Saved:
        """Write this rank's part of a checkpoint, with the model that `averaged_weights` swaps in if the order says so. All
        ranks enter that context, as the model may be sharded. `kept`: what the backend keeps between averages."""
        self._settle(f"checkpoint {order.index}")
        self.pause()
        began, counters = now(), (self.begun, self.total_steps, self.version)
        self.replica.state.gather()
        with averaged_weights or nullcontext():
            files, error = self._parts.save(order, counters, kept)
            sketch, digests = self.replica.sketcher.model(), self._parts.digests(order)
            optimizer = self.replica.sketcher.optimizer(self.replica.optimizer)
        self._saving(began)
        saved = Saved(now(), self.rank, order.index, files, error, sketch, optimizer, self._parts.lasting, digests)
        self._send(saved)
        return saved

    def restore(self, kept: Sequence[Tensor] = (), recut: Recut | None = None) -> None:
        """Load this rank's part of the checkpoint that the run resumes from. `recut` makes this rank's shard of the
        optimizer's state from those of another number of ranks. Raises InvalidCheckpoint."""
        if (counters := self._parts.restore(kept, recut)) is not None:
            self.begun, self.total_steps, self.version = counters

    def _heartbeat(self) -> None:
        if now() - self._reported > min(ALIVE_S, self.job.deadline_s / 5):
            self._reported = now()
            self._send(Alive(self._reported, self.rank))

    def finish(self) -> None:
        """Write the remaining files, and the final state if the job asks for it; report the end."""
        self._sum_up()
        self.meter.flush()
        if self._profiler is not None:
            self._profiler.close()
        job, rank = self.job, self.rank
        if job.keep_state:
            final_state.write(self.replica.model, final_state.place(job.scratch, rank))
        kept, numbers = self.keeper.finish() if self.keeper is not None else (), self.numbers.digests
        self._send(reports.finished(job, rank, self.replica, self.device, kept, self.saving_s, numbers))

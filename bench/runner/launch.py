"""Runs one `RunPlan`: engine, records, analysis, run folder. A run that fails is an `Outcome`, not an exception.

Knows neither Hydra nor policies, and prints only through the monitor. Imports torch with the engine, not before.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from errno import EMFILE, ENFILE
from pathlib import Path

from rich.console import Console

from bench.audit.process import audit_of
from bench.base import environment, interrupts
from bench.base.garbage import no_collections, short_collections
from bench.base.number_format import plural
from bench.base.usage import UsageError, reason, usage
from bench.base.writing import write_bytes, write_text
from bench.config.plan import RunPlan, ScriptPlan
from bench.config.spec import RunSpec
from bench.results.analysis.stream import RunRecords, sort
from bench.results.audit_file import write_report
from bench.results.chain import chained
from bench.results.journal import Journal
from bench.results.recompute import header_of, plain, result, sealed
from bench.results.runfolder import CHECKPOINTS, CONFIG, EVENTS, GRAPH, LOG, METRICS, resumable
from bench.results.schema import Metrics
from bench.results.writer import NotInPlace, RunWriter, Unwritten
from bench.runner.earlier_records import attempt, earlier
from bench.runner.live_view import announced_line
from bench.runner.modelgraph import described
from bench.runner.progress import ProgressDisplay
from bench.runner.resume import ResumeSource
from bench.timeline import begin_timeline, write_timeline
from ddp.checkpoint.checkpoint import InvalidCheckpoint, copy
from ddp.core.errors import Diverged, EngineError, RankFailed
from ddp.core.messages.run_bounds import Attempt, Launched, RunEnd, RunHeader
from ddp.core.settings.faults import Fault
from ddp.engine import ENGINES
from ddp.engine.fault_injector import struck
from ddp.engine.ranks import OFFERS
from ddp.engine.solo import Emit
from ddp.process import termination
from ddp.process.clock import now, stopwatch
from ddp.process.codec import Record, decode, encode, stamp
from ddp.process.scratch import scratch
from ddp.registries import member
from ddp.replica.task import Job


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    spec: RunSpec
    folder: Path
    metrics: Metrics
    cause: BaseException | None = None
    """The exception that ended the run early; None if it finished."""


@dataclass(frozen=True)
class _End:
    """How the engine ended."""

    status: str
    error: str | None = None
    traceback: str | None = None
    """Traceback of the failed rank."""
    cause: BaseException | None = None


class Unwatched(Exception):
    """An exception that `watch` raised."""


class CutShort(Exception):
    """Raised when a run ended early and will be resumed."""

    def __init__(self, cause: BaseException, struck: tuple[Fault, ...], attempt: Attempt | None) -> None:
        super().__init__(str(cause))
        self.struck, self.attempt = struck, attempt
        """Injected faults that have happened; and what is known of the run, if it has no checkpoint."""
        self.folder: Path | None = None  # of the run with its checkpoints; None: it has none


def launch(
    plan: RunPlan | ScriptPlan,
    console: Console,
    source: ResumeSource | None = None,
    restarts: int = 0,
    watch: Emit | None = None,
    again: Callable[[BaseException, Path], bool] | None = None,
    notes: tuple[str, ...] = (),
    attempts: tuple[Attempt, ...] = (),
) -> Outcome:
    """Run a plan, or the rest of it from a `source`, and write its folder. `restarts`: the number of earlier starts.

    `watch` gets every record as well; an exception of it ends the run, becomes its `cause`, and is not printed.
    `again` decides, given the exception that ended the run and its folder, whether to resume: then raise CutShort.
    `notes`: warnings for readers of the results; `attempts`: those before this one.

    Raise UsageError if the folder cannot be made or the source cannot be resumed, Unwritten if the disk fails,
    NotInPlace if the folder is complete but could not be moved into its place."""
    spec, launched, elapsed = plan.spec, now(), stopwatch()
    machine = environment.describe() | environment.launched_by(os.environ)
    header = RunHeader(launched, launched, plain(spec), machine, environment.source())
    load_before = environment.usage()
    with usage():
        writer = RunWriter(*spec.key)
    with _discarding(writer):
        _write_plan(writer.path, plan)
        own = plan.job.checkpoint_folder or writer.path.absolute() / CHECKPOINTS
        offers = writer.path.absolute() if plan.job.elsewhere is None else None
        job = replace(plan.job, checkpoint_folder=own, offers=offers)
        past: list[Record] = [Launched(launched)]
        if source is not None:
            checkpoint, past = _take_over(source, writer.path, header)
            job = replace(job, resume=checkpoint, absent=source.checkpoint.absent(job))
        begin_timeline(writer.path, spec, launched)
        with (
            _private(job) as private,
            (writer.path / LOG).open("w", encoding="utf-8", errors="backslashreplace") as log,
            Journal(writer.path / EVENTS) as journal,
            ProgressDisplay(spec, console, log, past, job.absent) as monitor,
        ):
            if source is None:
                journal.add(header, launched)
                journal.add(past[0], launched)
            past.clear()  # the monitor has them
            _announce(spec, monitor, source, writer.rivals)
            journal.keep_slices(private, spec.world_size)
            end = _train(replace(job, scratch=private), spec.engine, journal, monitor, watch)
            if end.cause is not None and again is not None and again(end.cause, writer.path):
                monitor.say(f"{end.error}; all ranks begin again")
                met = tuple(fault for rank in range(spec.world_size) for fault in struck(private, rank))
                lost = None if resumable(writer.path) else attempt(writer.path, spec.world_size, job.absent)
                raise CutShort(end.cause, met, lost)
            # Read both clocks before the records are merged, which takes long.
            ended, seconds = journal.latest if ENGINES[spec.engine].virtual else now(), elapsed()
            notes = (*notes, *writer.rivals, *(source.notes if source else ()), *_circumstances(job, spec, load_before))
            for text in (end.traceback, end.error and f"{end.status}: {end.error}"):
                if text:
                    monitor.say(text.rstrip(), on=Console(stderr=True, quiet=watch is not None))
            with interrupts.deferred(), no_collections():
                records = journal.merge(monitor.analysing)
                last = RunEnd(ended, end.status, end.error, notes, restarts, seconds, attempts)
                outcome = _complete(writer, journal, records, last, replace(plan, job=job), private)
                return replace(outcome, cause=end.cause)


def _circumstances(job: Job, spec: RunSpec, before: environment.Usage) -> Iterator[str]:
    """Yield warnings about other programs that used this host's cores during the run."""
    if shared := environment.shared_cores(os.environ, os.cpu_count() or 1):
        yield shared
    # Ranks that were started elsewhere, or other cells, look like other programs.
    alone = job.elsewhere is None and spec.timing and not ENGINES[spec.engine].virtual
    if alone and (disturbance := environment.disturbed(before, environment.usage(), spec.world_size)):
        yield disturbance


def _private(job: Job) -> AbstractContextManager[Path]:
    """Return the folder for the run's private files. A folder named by the job is not removed afterwards."""
    return scratch() if job.scratch == Path() else nullcontext(job.scratch)


@contextmanager
def _discarding(writer: RunWriter) -> Iterator[None]:
    """Discard the written files if the body raises; an error of the disk becomes Unwritten."""
    try:
        yield
    except CutShort as broken:
        broken.folder = writer.commit("failed") if resumable(writer.path) else None
        if broken.folder is None:
            writer.discard()
        raise
    except NotInPlace:  # finished: what was trained is not thrown away
        raise
    except OSError as error:
        writer.discard()
        if isinstance(error, BrokenPipeError):  # the reader of our output has left
            raise
        limit = "; raise the limit (ulimit -n)" if error.errno in (EMFILE, ENFILE) else ""
        raise Unwritten(f"{reason(error)}{limit}; {writer.left()}") from error
    except BaseException as error:
        writer.discard(copied=isinstance(error, UsageError))
        raise


def _write_plan(folder: Path, plan: RunPlan | ScriptPlan) -> None:
    config = {"run_id": plan.spec.run_id, "config_hash": plan.spec.config_hash, **plan.spec.config}
    write_text(folder / CONFIG, json.dumps(config, indent=1) + "\n")
    if (graph := described(plan) if isinstance(plan, RunPlan) else plan.graph) is not None:
        write_text(folder / GRAPH, json.dumps(graph) + "\n")


def _take_over(source: ResumeSource, folder: Path, header: RunHeader) -> tuple[Path, list[Record]]:
    """Copy the checkpoint into the new run's folder, so that the new run can always be resumed from it again.

    Return the checkpoint there, and the records before it."""
    with usage():
        lines = earlier(source, header.launched, header.spec["world_size"])
        first = encode(replace(header, at=min(map(stamp, lines))))
        write_bytes(folder / EVENTS, b"".join(line + b"\n" for line in chained([first, *lines])))
        place = folder.absolute() / CHECKPOINTS / source.checkpoint.path.name
        part = place.with_name(f".part-{place.name}")
        copy(source.checkpoint, part)
        os.rename(part, place)
    return place, list(map(decode, lines))


def _complete(
    writer: RunWriter, journal: Journal, records: list[Record], last: RunEnd, plan: RunPlan | ScriptPlan, private: Path
) -> Outcome:
    """Write the rest of the folder, `metrics.json` last, and move it into place. The audit runs beside the pictures.

    Timeline and audit can be made again from the folder: an error in either does not cost the result."""
    launched = header_of(records).launched
    stream = sort(records[1:], launched)
    metrics = result([*records, last], stream)
    with audit_of(plan, metrics, records, private) as audit:
        notes = [*_draw(writer, metrics, stream, plan.spec, launched)]
        report, more = audit.report(writer.path, writer.destination(metrics.status))
    if notes or more:
        last = replace(last, warnings=(*last.warnings, *notes, *more))
        metrics = result([*records, last], stream)
    metrics = sealed(metrics, journal.end(last))
    if report is not None:
        with suppress(OSError):  # the check says that there is none, and how to audit by hand
            write_report(writer.path, report, metrics)
    write_text(writer.path / METRICS, metrics.model_dump_json(indent=1) + "\n")
    for offer in filter(Path.is_file, writer.path.glob(OFFERS)):  # nobody takes it any longer
        offer.unlink(missing_ok=True)
    return Outcome(plan.spec, writer.commit(metrics.status), metrics)


def _draw(writer: RunWriter, metrics: Metrics, stream: RunRecords, spec: RunSpec, launched: float) -> Iterator[str]:
    """Write the timeline; yield a note if that is impossible."""
    try:  # whoever interrupts does not wait for pictures
        write_timeline(writer.path, stream, spec, launched, picture=metrics.status != "killed")
    except OSError as error:
        place = shlex.quote(str(writer.destination(metrics.status).absolute()))
        yield f"the timeline is not written ({reason(error)}), all else is; it is by: python -m bench timeline {place}"


def _train(job: Job, engine: str, journal: Journal, monitor: ProgressDisplay, watch: Emit | None) -> _End:
    """Run the engine and return how it ended. Raise UsageError if it cannot resume from its checkpoint."""

    def emit(record: Record, at: float) -> None:
        journal.add(record, at)
        monitor.update(record)
        if watch is not None:
            try:
                watch(record, at)
            except Exception as error:  # not one of the disk that the records are on
                raise Unwatched from error

    try:
        with usage():
            run = member("engine", engine, ENGINES[engine].module, "run")
        with short_collections():
            run(job, emit)
        interrupts.check()
    except KeyboardInterrupt as error:
        return _End("killed", "interrupted", cause=error)
    except InvalidCheckpoint as error:
        raise UsageError(f"{job.resume}: {error}") from error
    except Unwatched as error:
        cause = error.__cause__
        return _End("failed", f"{type(cause).__name__}: {cause}", cause=cause)
    except Diverged as error:
        return _End("diverged", str(error), cause=error)
    except EngineError as error:
        return _broken(error)
    return _End("ok")


def _broken(error: EngineError) -> _End:
    """Return the end by `error`. A scheduler that ends a job also kills its processes, the fork server and the ranks
    included: errors after its signal count as the end of the job, not as failures."""
    trace = error.traceback if isinstance(error, RankFailed) else None
    if termination.announced():
        return _End("killed", f"interrupted: {error}", trace, KeyboardInterrupt(str(error)))
    return _End("failed", str(error), trace, error)


def _announce(spec: RunSpec, monitor: ProgressDisplay, source: ResumeSource | None, rivals: list[str]) -> None:
    monitor.log(announced_line(spec), brief=True)
    if source is not None:
        saved = source.checkpoint.coordinator
        trained = f"{plural(saved.epochs, 'epoch')}, {plural(saved.samples, 'sample')}"
        monitor.say(f"goes on from {source.checkpoint.path}: {trained}")
    for warning in (*spec.warnings, *rivals):
        monitor.log(f"note: {warning}", "yellow", brief=True)

"""The audit in its own process, forked from the fork server after training; and what it leaves in the run folder."""

from __future__ import annotations

import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from bench.audit.audit_input import AuditOrder, order_of
from bench.base import interrupts
from bench.base.usage import reason
from bench.config.plan import LaunchPlan
from bench.results.audit_file import FOLDER, UNAUDITED, AuditItem, AuditReport
from bench.results.rerun_command import auditing
from bench.results.schema import Metrics
from ddp.core.errors import OutOfResources
from ddp.core.messages.event_parts import Files
from ddp.process import forkserver
from ddp.process.codec import Record
from ddp.process.orphans import bind_rank
from ddp.process.resource_errors import enough

ROOM = 2 << 20
"""Bytes of kept states that stay in the run folder if all steps are equal."""
ROOM_IF_DIFFERENT = 64 << 20
"""Bytes of kept states that stay if steps differ."""

PATIENCE_S = 0.1


class Unaudited(RuntimeError):
    """An audit gave no report. The message says why, with the traceback of its process."""

    @property
    def why(self) -> str:
        """Return the reason in one line."""
        return str(self).partition("\n")[0]


class AuditProcess:
    """The process of one audit. A context manager that kills it on exit. Raises Unaudited if it cannot be started."""

    def __init__(self, order: AuditOrder, preload: tuple[str, ...] = ()) -> None:
        try:
            with enough("its process cannot be started"):
                self._start(order, forkserver.warm(preload))
        except OutOfResources as error:
            raise Unaudited(str(error)) from error

    def _start(self, order: AuditOrder, context: ForkServerContext) -> None:
        self._ours, theirs = Pipe(duplex=False)
        self._process = context.Process(target=main, args=(order, theirs), name="audit", daemon=True)
        try:
            with forkserver.script_left_alone():
                self._process.start()
        except BaseException:
            self._ours.close()
            raise
        finally:
            theirs.close()

    def __enter__(self) -> AuditProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    def report(self, stopped: Callable[[], bool] = lambda: False) -> AuditReport:
        """Wait for the report until `stopped` returns True. Raises Unaudited."""
        while not self._ours.poll(PATIENCE_S):
            if stopped():
                raise Unaudited("it was interrupted")
        try:
            body: Any = self._ours.recv()
        except (EOFError, OSError):  # OSError: the process was killed while it sent the report
            self._process.join()
            raise Unaudited(f"its process ended with exit code {self._process.exitcode}") from None
        if isinstance(body, str):
            raise Unaudited(body)
        return AuditReport.model_validate(body)


def main(order: AuditOrder, connection: Connection) -> None:
    """Audit in this process, which was made for it, and send the report; or, as text, what went wrong."""
    bind_rank()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    import torch

    from bench.audit.audit import audit
    from ddp.process.determinism import deterministic

    torch.set_num_threads(1)
    try:
        with deterministic(order.step.deterministic):
            body: Any = audit(order).model_dump()
    except Exception as error:
        trace = "".join(traceback.format_exception(error)[-3:])
        body = f"{type(error).__name__}: {error}\n{trace}"
    connection.send(body)
    connection.close()


def leave(kept: Files, items: Sequence[AuditItem], scratch: Path, folder: Path) -> None:
    """Move kept states into the run folder so that the audit can be repeated: the final model, states of what differed,
    then others, as far as there is room. `items`: of the report; empty if there is none. Raises OSError."""
    sizes = {name: size for name, size, _ in kept}
    different = [name for item in items if item.outcome == "different" for name in item.files]
    ends = [name for name in sizes if name.endswith("-end.state")]
    others = [name for item in items if item.what == "step" for name in item.files] if items else list(sizes)
    place, taken = folder / FOLDER, 0
    for names, room in ((ends, ROOM_IF_DIFFERENT), (different, ROOM_IF_DIFFERENT), (others, ROOM)):
        for name in dict.fromkeys(names):
            if name in sizes and taken + sizes[name] <= room and (scratch / name).is_file():
                place.mkdir(exist_ok=True)
                shutil.move(scratch / name, place / name)
                taken += sizes[name]


@dataclass(frozen=True)
class RunAudit:
    """The audit of a run whose folder is being written; without `order` there is none."""

    order: AuditOrder | None = None
    process: AuditProcess | None = None
    unstarted: str = ""
    """Why there is no process."""

    def report(self, folder: Path, destination: Path) -> tuple[AuditReport | None, tuple[str, ...]]:
        """Wait for the audit, and leave in the folder what a repetition needs. Return the report, and notes on what
        went wrong. `destination`: the final folder, where the audit can be repeated. Raise Unaudited if the audit was
        never started."""
        if self.order is None:
            return None, ()
        report: AuditReport | None = None
        notes: list[str] = []
        try:
            if self.process is None:
                raise Unaudited(self.unstarted)
            report = self.process.report(interrupts.interrupted)
        except Unaudited as error:
            notes.append(f"{UNAUDITED}{error.why}; by hand: {auditing(destination.absolute())}")
        try:
            leave(self.order.recorded, report.items if report is not None else (), self.order.kept, folder)
        except OSError as error:
            shutil.rmtree(folder / FOLDER, ignore_errors=True)  # without them the result may still fit on the disk
            notes.append(f"what ranks kept is not left in the run folder ({reason(error)}): nobody can audit it again")
        return report, tuple(notes)


@contextmanager
def audit_of(plan: LaunchPlan, metrics: Metrics, records: Sequence[Record], kept: Path) -> Iterator[RunAudit]:
    """Audit concurrently with the body of this context, if the audit is configured and the run ended well. `kept`:
    folder of what ranks kept."""
    if not plan.job.audit or metrics.status != "ok":
        yield RunAudit()
        return
    order = order_of(plan, metrics, records, kept)
    try:
        process = AuditProcess(replace(order, task=plan.audit_task(kept)), plan.job.preload)
    except (RuntimeError, OSError) as error:  # torch raises RuntimeError if there is no room for its files
        yield RunAudit(order, unstarted=reason(error))
        return
    with process:
        yield RunAudit(order, process)

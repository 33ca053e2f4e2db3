"""The audit as a process of its own, forked from the fork server once the training is over; and what it leaves."""

from __future__ import annotations

import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from bench.audit.order import AuditOrder, order_of
from bench.base import interrupts
from bench.config.plan import LaunchPlan
from bench.results.audit_file import FOLDER, UNAUDITED, AuditReport
from bench.results.schema import Metrics
from ddp.process import forkserver
from ddp.process.codec import Record
from ddp.process.orphans import bind_rank

ROOM = 2 << 20
"""Bytes of kept states that stay with a run whose steps are equal."""
ROOM_IF_DIFFERENT = 64 << 20
"""The same of states of steps that are not."""

PATIENCE_S = 0.1


class AuditProcess:
    """The process of one audit. A context manager, which leaves none behind."""

    def __init__(self, order: AuditOrder, preload: tuple[str, ...] = ()) -> None:
        context = forkserver.warm(preload)
        self._ours, theirs = Pipe(duplex=False)
        self._process = context.Process(target=main, args=(order, theirs), name="audit", daemon=True)
        try:
            with forkserver.script_left_alone():
                self._process.start()
        finally:
            theirs.close()

    def __enter__(self) -> AuditProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._ours.close()

    def report(self, stopped: Callable[[], bool] = lambda: False) -> AuditReport:
        """Wait for the report, until `stopped` gives True. Raise RuntimeError: why there is none."""
        while not self._ours.poll(PATIENCE_S):
            if stopped():
                raise RuntimeError("it was interrupted")
        try:
            body: Any = self._ours.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"its process ended with exit code {self._process.exitcode}") from None
        if isinstance(body, str):
            raise RuntimeError(body)
        return AuditReport.model_validate(body)


def main(order: AuditOrder, connection: Connection) -> None:
    """Audit in this process, made for it, and send the report; a text: what went wrong."""
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


def leave(report: AuditReport, scratch: Path, folder: Path) -> None:
    """Move into a run folder what is to be audited again by hand: states of what was different, then others, as far as
    there is room; the model of the end first. Raise OSError."""
    sizes = {name: size for name, size, _ in report.kept}
    different = [name for item in report.items if item.outcome == "different" for name in item.files]
    ends = [name for name in sizes if name.endswith("-end.state")]
    others = [name for item in report.items if item.what == "step" for name in item.files]
    place, taken = folder / FOLDER, 0
    for names, room in ((ends, ROOM_IF_DIFFERENT), (different, ROOM_IF_DIFFERENT), (others, ROOM)):
        for name in dict.fromkeys(names):
            if name in sizes and taken + sizes[name] <= room and (scratch / name).is_file():
                place.mkdir(exist_ok=True)
                shutil.move(scratch / name, place / name)
                taken += sizes[name]


@dataclass(frozen=True)
class RunAudit:
    """The audit of a run whose folder is being written; None: there is none."""

    process: AuditProcess | None = None
    kept: Path = Path()

    def report(self, folder: Path) -> tuple[AuditReport | None, tuple[str, ...]]:
        """Wait for the audit; leave in the folder what may be looked at again. Return what came out, or notes why nothing
        did."""
        if self.process is None:
            return None, ()
        try:
            report = self.process.report(interrupts.interrupted)
        except RuntimeError as error:
            return None, (f"{UNAUDITED}{str(error).splitlines()[0]}",)
        leave(report, self.kept, folder)
        return report, ()


@contextmanager
def audit_of(plan: LaunchPlan, metrics: Metrics, records: Sequence[Record], kept: Path) -> Iterator[RunAudit]:
    """Audit beside what is done inside, if that was asked for and the run ended well, by what ranks `kept`."""
    if not plan.job.audit or metrics.status != "ok":
        yield RunAudit()
        return
    order = order_of(plan, metrics, records, kept, plan.audit_task(kept))
    with AuditProcess(order, plan.job.preload) as process:
        yield RunAudit(process, kept)

"""An engine that trains nothing: it emits the records of a small plausible run. It misbehaves as BENCH_FAKE says."""

from __future__ import annotations

import errno
import gc
import os
import resource
import sys
import time
from collections.abc import Callable

from ddp.core.errors import Diverged, RankFailed, RankLost
from ddp.core.messages.events import Evaluated, Finished, Merged, Progress, Ready, Slice
from ddp.core.policies.sync import Sync
from ddp.process import termination
from ddp.process.clock import now
from ddp.process.codec import Record, encode
from ddp.replica.task import Job

SAMPLES = 64
EVALUATION_S = 0.0001
GRADIENTS = 40
"""Bytes of the gradients of ten parameters."""
runs: list[Job] = []
"""What was asked of it, in this process."""
watched: list[int] = []
"""By run with BENCH_FAKE=watch: objects that the garbage collector would look at."""


def run(job: Job, emit: Callable[[Record, float], None]) -> None:
    runs.append(job)

    def say(record: Ready | Progress | Merged | Evaluated | Finished) -> None:
        emit(record, record.at)

    ranks = range(job.world_size)
    share = SAMPLES // job.world_size
    steps = -(-share // job.batch_size)
    for rank in ranks:
        say(Ready(now(), rank, SAMPLES, 10, "d0", "cpu", "none" if job.world_size == 1 else "gloo"))
    if os.environ.get("BENCH_FAKE") == "saved":
        assert job.checkpoint_folder is not None
        (job.checkpoint_folder / "000003").mkdir(parents=True)
    misbehave(os.environ.get("BENCH_FAKE", ""))
    for epoch in range(job.epochs):
        for rank in ranks:
            began = now()
            time.sleep(0.001)
            seconds = now() - began
            each = seconds / steps
            parts = [
                Slice(
                    began + (step + (kind in ("backward", "optimizer"))) * each,
                    rank,
                    kind,
                    each if kind == "forward" else 0.0,
                )
                for step in range(steps)
                for kind in ("data", "forward", "backward", "optimizer")
            ]
            if isinstance(job.policy, Sync) and job.world_size > 1:  # all meet in every step, in no time
                numbers = range(epoch * steps, (epoch + 1) * steps)
                parts += [Slice(began + seconds, rank, "exchange", 0.0, number, GRADIENTS) for number in numbers]
            measured(job, parts)
            say(Progress(now(), rank, epoch, steps, share, seconds, share / (epoch + 1), 0.1))
            say(Merged(now(), rank, epoch, ((rank * share, (rank + 1) * share),)))
        began = now()
        time.sleep(0.0002)
        measured(job, [Slice(began, 0, "evaluate", EVALUATION_S)])
        say(Evaluated(now(), 0, epoch, 10, 5.0, 8.0 + epoch / job.epochs, EVALUATION_S))
    bits = "d2" if os.environ.get("BENCH_FAKE") == "other bits" else "d1"
    for rank in ranks:
        say(Finished(now(), rank, f"{bits} of seed {job.seed}", 1 << 20, 0))


def measured(job: Job, parts: list[Slice]) -> None:
    """Write slices as a rank does."""
    path = job.scratch / f"slices-{parts[0].rank}.jsonl"
    try:
        with path.open("ab") as file:
            file.writelines(encode(part) + b"\n" for part in parts)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def misbehave(how: str) -> None:
    match how:
        case "fail":
            raise RankFailed(1, "ZeroDivisionError: by me", "Traceback: the rank's own words\nZeroDivisionError: by me")
        case "lose":
            raise RankLost("rank 1: its process is gone (killed by signal 9)")
        case "told":  # as a scheduler tells all processes of a job
            termination.announce()
            raise RankLost("rank 1: its process is gone (killed by signal 15)")
        case "diverge":
            raise Diverged("the training loss is not finite in epoch 0; lower train.lr")
        case "interrupt":
            raise KeyboardInterrupt
        case "full" | "saved":
            # No file may grow any more: what a disk without room is, to this process alone.
            resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        case "files":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        case "bug":
            raise AssertionError("ours")
        case "watch":
            watched.append(len(gc.get_objects()))
        case "hang":
            print("hanging", flush=True)
            for _ in range(600):  # a signal that comes between two instructions does not end the sleep that follows
                time.sleep(0.1)
            sys.exit("nobody interrupted")

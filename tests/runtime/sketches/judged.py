"""Runs of tests as run folders, judged by the checks that read what ranks recorded."""

from __future__ import annotations

import json
from pathlib import Path

from bench.config.spec import RunSpec
from bench.results.cells import cells
from bench.results.runfolder import CONFIG, EVENTS, find_runs
from bench.validate.checks import CHECKS
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict
from ddp.process.codec import encode
from tests.bench.streams import make_metrics, make_spec, write_run
from tests.runtime.conftest import Played

RECORDED = ("average", "agreement", "idle", "evaluation")


def spec_of(played: Played, policy: str | None, engine: str = "elche") -> RunSpec:
    job = played.job
    return make_spec(
        "solo" if job.world_size == 1 else "nccl_cadence",
        world_size=job.world_size,
        engine=engine,
        policy=policy if job.world_size > 1 else None,
        backend=job.backend if job.world_size > 1 else None,
        epochs=job.epochs,
        batch_size=job.batch_size,
    )


def judged(folder: Path, played: Played, policy: str | None, engine: str = "elche") -> dict[str, Verdict]:
    """By check."""
    records = played.records
    spec = spec_of(played, policy, engine)
    path = write_run(folder, spec, make_metrics(spec, records))
    times = iter(played.times)
    (path / EVENTS).write_bytes(b"".join(encode(record, next(times)) + b"\n" for record in records))
    (path / CONFIG).write_text(json.dumps({"averaging": vars(played.job.averaging)}))
    (cell,) = cells(find_runs(folder)[0])
    verdicts = {name: CHECKS[name](Case(cell, None)) for name in RECORDED}
    return {name: verdict for name, verdict in verdicts.items() if isinstance(verdict, Verdict)}


def failures(folder: Path, played: Played, policy: str | None, engine: str = "elche") -> dict[str, str]:
    return {name: v.line for name, v in judged(folder, played, policy, engine).items() if v.name != "PASS"}

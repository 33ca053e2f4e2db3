"""Starts a user's script again, for `rerun`, `audit` and `prove`: both ends, the command's and that of the script's process.

Unpickles nothing from a run folder: the script makes the task anew, and must be the script that made the run.
"""

from __future__ import annotations

import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from bench.audit.audit_input import order_of
from bench.audit.process import AuditProcess
from bench.base import environment
from bench.config.plan import ScriptPlan
from bench.prove.proof import Proof, prove
from bench.prove.provable import Way, refuse_unproved_job
from bench.prove.whole_batch import WholeBatch, whole
from bench.results.audit_file import AuditReport
from bench.results.rerun_command import script_words
from bench.results.runfolder import CONFIG, Run, find_runs, place, read_records
from ddp.process.scratch import scratch

AGAIN = "BENCH_AGAIN"
"""Environment variable with the order for a script's process."""


class ProofSize(msgspec.Struct, frozen=True):
    """How much a proof compares."""

    steps: int
    batch: int
    """Samples of a micro-batch of one rank."""


class ProofReport(msgspec.Struct, frozen=True):
    """What came out for the mode of a run."""

    proof: Proof
    whole: WholeBatch | None
    """On one rank there is none."""


class Again(msgspec.Struct, frozen=True):
    """The order for a script that is started again."""

    output: str
    """Folder for the script's runs, in place of its own."""
    audit: str | None = None
    """Folder of a run to audit; None: train."""
    prove: ProofSize | None = None
    """How much of a run is to be proved, which is not trained either."""
    run_id: str = ""
    report: str = ""
    """File for the report of the audit or proof."""


def again_order() -> Again | None:
    """Return the order for this process; None if the user started it."""
    text = os.environ.get(AGAIN)
    return None if text is None else msgspec.json.decode(text, type=Again)


def rerun_script(run: Run, output: Path) -> Run:
    """Start the script of a run again, with its run folders in `output`; return the new run of the same name. Raise
    ValueError."""
    code = _start(run, Again(str(output)))
    m = run.metrics
    made = place(output, m.model, m.mode, m.run_id)
    if not made.is_dir():
        why = (
            f"ended with exit code {code} before that" if code else "trained something else, such as with another seed"
        )
        raise ValueError(f"{run.path}: {_name(run)} was run again and did not make this run: it {why}")
    return find_runs(made)[0][0]


def audit_script(run: Run, folder: Path) -> AuditReport:
    """Start the script of a run up to the `Trainer` that made the run, and audit the run there. `folder`: for the
    audit's own files. Raise ValueError."""
    order = Again(str(folder / "runs"), audit=str(run.path.absolute()), run_id=run.metrics.run_id)
    return AuditReport.model_validate_json(_reported(run, order, folder))


def prove_script(run: Run, folder: Path, size: ProofSize) -> ProofReport:
    """Start the script of a run as far as the `Trainer` that made the run, and prove its mode there, as `audit_script`
    does. Raise ValueError."""
    order = Again(str(folder / "runs"), prove=size, run_id=run.metrics.run_id)
    return msgspec.msgpack.decode(_reported(run, order, folder), type=ProofReport)


def _reported(run: Run, order: Again, folder: Path) -> bytes:
    report = folder / "report"
    code = _start(run, msgspec.structs.replace(order, report=str(report)))
    if not report.exists():
        raise ValueError(f"{run.path}: {_name(run)} did not come to this run; it ended with exit code {code}")
    return report.read_bytes()


def _name(run: Run) -> str:
    return str(run.config["script"]["path"])


def _start(run: Run, order: Again) -> int:
    """Run the script to its end; return its exit code. Raise ValueError if it is not the script that made the run."""
    known: dict[str, Any] = run.config["script"]
    if not isinstance(known, dict) or not isinstance(known.get("pythonpath") or [], list):
        raise ValueError(f"{run.path / CONFIG}: script is not what a script notes of itself")
    path, folder = known.get("path"), str(known.get("folder"))
    if not path:
        raise ValueError(f"{run.path}: it was made in an interactive session: there is no script to run again")
    try:
        now = sha256(Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}: the script that made {run.path} is not there") from None
    if now != known.get("sha256"):
        was = str(known.get("sha256"))
        raise ValueError(f"{path} was changed since {run.path}: sha256 {was[:16]} then, {now[:16]} now; restore it")
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: the folder that the script was started in is not there")
    words = [sys.executable, *script_words(known)]
    print(f"runs {path} again", file=sys.stderr, flush=True)
    variables = environment.inherited() | {AGAIN: msgspec.json.encode(order).decode()}
    variables["PYTHONPATH"] = os.pathsep.join([*map(str, known.get("pythonpath") or ()), variables["PYTHONPATH"]])
    return run_process(words, folder, variables)


def run_process(words: list[str], folder: str, variables: dict[str, str]) -> int:
    """Run a program to its end; return its exit code. Its output goes to standard error."""
    return subprocess.run(words, cwd=folder, env=variables, stdout=sys.stderr.fileno(), check=False).returncode


def audit_here(order: Again, plan: ScriptPlan) -> None:
    """Audit the run that `order` names with the task of `plan`, and write the report."""
    assert order.audit is not None
    folder = Path(order.audit)
    run = find_runs(folder)[0][0]
    with scratch() as private:
        task = plan.audit_task(private)
        kept = order_of(plan, run.metrics, list(read_records(folder)), folder / "audit", task)
        with AuditProcess(kept, plan.job.preload) as process:
            report = process.report()
    Path(order.report).write_text(report.model_dump_json(), encoding="utf-8")


def prove_here(order: Again, plan: ScriptPlan) -> None:
    """Prove the mode of a run with the task of `plan`, and leave the report. Raise ValueError for what has no proof."""
    assert order.prove is not None
    spec, job, size = plan.spec, plan.job, order.prove
    refuse_unproved_job(job)
    way = Way(spec.mode, spec.engine, spec.backend, job.policy, spec.world_size)
    how = size.steps, size.batch, spec.seed
    with scratch() as private:
        task = plan.audit_task(private)
        (proof,) = prove(task, [way], *how, job.preload, job.step)
        against = whole(task, way.ranks, *how, job.step) if way.ranks > 1 else None
    Path(order.report).write_bytes(msgspec.msgpack.encode(ProofReport(proof, against)))  # it has infinity, unlike JSON

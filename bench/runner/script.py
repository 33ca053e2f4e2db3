"""Records the runs of a user's `ddp.Trainer`: the same run folder, by the same path, as a run of the bench's own models.

`ddp.trainer.recording` finds `recorder` here by name. Owns the description of a script and of its task before
training.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from dataclasses import fields, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.audit.documented.reading import TrainingData, unknowable
from bench.base import canonical
from bench.base.paths import BASELINES, ROOT
from bench.base.usage import UsageError, reason
from bench.config.config_checks import Machine
from bench.config.plan import ScriptPlan
from bench.config.script_plan import Script, ScriptTask, script_spec
from bench.config.spec import Measure
from bench.report import write_report
from bench.results.audit_file import UNAUDITED
from bench.runner.digests import TaskDigest, data_digest
from bench.runner.launch import launch
from bench.runner.script_again import again_order, audit_here, prove_here
from ddp import STARTED_IN
from ddp.data.dataset import MapSource, collated
from ddp.data.fingerprint import undisturbed
from ddp.data.source import TensorSource
from ddp.engine import ENGINES
from ddp.engine.solo import Emit
from ddp.launcher.environment import Placement, read
from ddp.process.cores import cores
from ddp.replica.memory.flat import FlatState
from ddp.replica.optim.optimizers import as_one, usable
from ddp.replica.task import Job
from ddp.replica.trainable import SUMMED
from ddp.trainer.mistakes import make_model
from ddp.trainer.model_trial import sketch, sums
from ddp.trainer.recording import RecordOrder
from ddp.trainer.task import PackedTask, Parts, make_task, pack

AUDITOR = "bench.audit.audit"
"""Module that the fork server imports for the audit."""


def recorder(order: RecordOrder) -> ScriptRecorder:
    """Return the recorder of a run. Raise ValueError for a run that cannot be described; SystemExit after the audit or
    proof, if this process was started for one."""
    if order.job.resume is not None:
        raise ValueError("resume with output: a run folder holds all of its run; leave output out to go on without one")
    again = again_order()
    plan = script_plan(order, str(order.recording.output) if again is None else again.output)
    if again is not None and again.report and again.run_id == plan.spec.run_id:
        act = prove_here if again.audit is None else audit_here
        act(again, replace(plan, packed=plan.packed or pack(order.parts)))
        raise SystemExit(0)
    if SUMMED in plan.spec.warnings:
        warnings.warn(SUMMED, RuntimeWarning, stacklevel=4)
    return ScriptRecorder(plan)


def script_plan(order: RecordOrder, output: str) -> ScriptPlan:
    """Return the plan of a script's run with its folder in `output`. Raise ValueError."""
    job, recording, parts = order.job, order.recording, order.parts
    own = [getattr(parts, part.name) for part in fields(parts) if part.name not in ("dataset", "eval_dataset")]
    before, after = TaskDigest(), TaskDigest()
    before.of(own)
    lr, graph, summed = _sketch(parts, recording.metric)
    after.of(own)
    digest = TaskDigest(moving=after.moved(before))
    code = digest.of(own)
    sources = [
        collated(source, parts.collate_fn) if isinstance(source, MapSource) else source
        for source in (parts.dataset, parts.eval_dataset)
    ]
    data = canonical.digest([data_digest(digest, source) for source in sources])
    why, packed = _unaudited(order)
    task = ScriptTask(
        name=recording.name,
        data=_kind(parts.dataset),
        lr=lr,
        lr_scale_ratio=order.lr_scale_ratio,
        schedule="constant" if parts.schedule is None else "own",
        augment=parts.augment is not None,
        digests={"code": code, "dependencies": digest.dependencies, "data": data},
        measure=Measure(recording.metric, recording.higher_is_better, recording.target),
        audited=recording.audit and not why,
    )
    machine = Machine(cores(), torch.cuda.device_count())
    spec = script_spec(script(), task, job, order.mode, output, machine)
    if why and recording.audit:
        spec = replace(spec, warnings=(*spec.warnings, f"{UNAUDITED}{why}"))
    if summed:
        spec = replace(spec, warnings=(*spec.warnings, SUMMED))
    if task.audited:
        job = replace(job, audit=spec.run_id, preload=(*job.preload, AUDITOR))
    return ScriptPlan(spec, job, graph, packed if task.audited else None)


def _unaudited(order: RecordOrder) -> tuple[str, PackedTask | None]:
    """Return why the audit cannot recompute steps of the run (empty: it can). If it can and the ranks are in this
    process, also return the task packed for another process."""
    task = make_task(order.parts)
    with undisturbed():
        try:
            why = unknowable(task, TrainingData(task, order.job.seed))
        except Exception as error:  # of the user's own code: it is heard where the sample is trained
            why = f"{type(error).__name__}: {error}"
    if why or (order.job.world_size > 1 and not ENGINES[order.mode.engine].in_place):
        return why, None
    try:
        return "", pack(order.parts)
    except ValueError as error:
        return str(error), None


class ScriptRecorder:
    """Records one run."""

    def __init__(self, plan: ScriptPlan) -> None:
        self._plan = plan
        self.folder: Path | None = None

    @property
    def preload(self) -> tuple[str, ...]:
        """Return the modules that ranks and the audit import."""
        return self._plan.job.preload

    @property
    def room(self) -> int:
        """Return the bytes that the audit needs in the run's private folder."""
        return self._plan.packed.bytes if self._plan.packed is not None else 0

    def run(self, job: Job, emit: Emit) -> None:
        """Run the engine; write the run folder and its report. Raises the exception that ended the run; ValueError or
        OSError if the folder cannot be written."""
        console = Console(file=io.StringIO(), quiet=True)
        try:
            plan = replace(self._plan, job=replace(job, audit=self._plan.job.audit))
            outcome = launch(plan, console, restarts=_placement().restarts, watch=emit)
        except UsageError as error:
            raise error.__cause__ or ValueError(str(error)) from error
        self.folder = outcome.folder
        if again_order() is None and outcome.metrics.status != "killed":  # whoever aborts does not wait for a report
            try:
                write_report(outcome.folder, outcome.folder, baseline=BASELINES)
            except (ValueError, OSError) as error:
                warnings.warn(
                    f"the report of {outcome.folder} is not written: {reason(error)}", RuntimeWarning, stacklevel=1
                )
        if outcome.cause is not None:
            raise outcome.cause


def script() -> Script:
    """Return the script that this process was started with."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    place = _placement()
    here = Script(
        None,
        arguments=tuple(sys.argv[1:]),
        folder=STARTED_IN,
        processes=place.world_size,
        hosts=place.nodes,
    )
    if file is None or not Path(file).is_file():
        return here
    path = Path(file).resolve()
    spec = getattr(main, "__spec__", None)
    module = None if spec is None else str(spec.name)
    folders = [
        str(Path(STARTED_IN, name).resolve()) for name in os.environ.get("PYTHONPATH", "").split(os.pathsep) if name
    ]
    paths = tuple(name for name in folders if name != str(ROOT))
    sha = sha256(path.read_bytes()).hexdigest()
    return replace(here, path=str(path), sha256=sha, module=module, pythonpath=paths)


def _placement() -> Placement:
    """Return the placement that a launcher gave this process."""
    return read(os.environ) or Placement("")


def _kind(source: Any) -> str:
    """Return the name of the data set in results."""
    return "tensors" if type(source) is TensorSource else type(getattr(source, "dataset", source)).__name__


def _sketch(parts: Parts, metric: str) -> tuple[float, dict[str, Any] | None, bool]:
    """Return the learning rate of the optimizer's first group, the graph of the model (None: it cannot be traced), and
    whether the loss is a sum. Builds the model once and restores the random generators."""
    with undisturbed():
        model = make_model(parts.model_factory)
        made = parts.optimizer_factory(list(model.parameters()))
        optimizer = usable(as_one(made), FlatState(model))
        return float(optimizer.param_groups[0]["lr"]), sketch(parts, metric, model), sums(parts, model)

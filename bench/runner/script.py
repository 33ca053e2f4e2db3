"""Records the runs of a user's `ddp.Trainer`: the same run folder, by the same path, as a run of the bench's own models.

`ddp.trainer.recording` finds `recorder` here by name. Owns what a script is, and what is known of its task before it trains.
"""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from bench.base.usage import UsageError
from bench.config.config_checks import Machine
from bench.config.plan import ScriptPlan
from bench.config.script_plan import Script, ScriptTask, script_spec
from bench.config.spec import Measure
from bench.report import write_report
from bench.runner.launch import launch
from bench.runner.modelgraph import follow_call, tensors
from ddp.data.fingerprint import undisturbed
from ddp.data.source import TensorSource
from ddp.engine.solo import Emit
from ddp.process.cores import cores
from ddp.replica.scalars import Scalars
from ddp.replica.task import Job
from ddp.trainer.mistakes import make_model
from ddp.trainer.recording import RecordOrder
from ddp.trainer.task import Parts


def recorder(order: RecordOrder) -> ScriptRecorder:
    """Return who records the run. Raise ValueError for one that cannot be described."""
    if order.job.resume is not None:
        raise ValueError("resume with output: a run folder holds all of its run; leave output out to go on without one")
    job, recording, parts = order.job, order.recording, order.parts
    lr, graph = _sketch(parts, recording.metric)
    origin = script()
    task = ScriptTask(
        name=recording.name,
        data=_kind(parts.dataset),
        lr=lr,
        lr_scale_ratio=order.lr_scale_ratio,
        schedule="constant" if parts.schedule is None else "own",
        augment=parts.augment is not None,
        digests={"code": origin.sha256 or ""},
        measure=Measure(recording.metric, recording.higher_is_better, recording.target),
    )
    machine = Machine(cores(), torch.cuda.device_count())
    spec = script_spec(origin, task, job, order.mode, str(recording.output), machine)
    return ScriptRecorder(ScriptPlan(spec, job, graph))


class ScriptRecorder:
    """Records one run."""

    def __init__(self, plan: ScriptPlan) -> None:
        self._plan = plan
        self.folder: Path | None = None

    def run(self, job: Job, emit: Emit) -> None:
        """Run the engine, write the run folder and its report. Raises what ended the run; ValueError, OSError if the folder
        cannot be written."""
        console = Console(file=io.StringIO(), quiet=True)
        try:
            outcome = launch(replace(self._plan, job=job), console, watch=emit)
        except UsageError as error:
            raise error.__cause__ or ValueError(str(error)) from error
        self.folder = outcome.folder
        write_report(outcome.folder, outcome.folder)
        if outcome.cause is not None:
            raise outcome.cause


def script() -> Script:
    """Return what this process was started with."""
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    here = Script(None, arguments=tuple(sys.argv[1:]), folder=str(Path.cwd()))
    if file is None or not Path(file).is_file():
        return here
    path = Path(file).resolve()
    spec = getattr(main, "__spec__", None)
    module = None if spec is None else str(spec.name)
    return replace(here, path=str(path), sha256=sha256(path.read_bytes()).hexdigest(), module=module)


def _kind(source: Any) -> str:
    """Return what results call the data set."""
    return "tensors" if type(source) is TensorSource else type(getattr(source, "_dataset", source)).__name__


def _sketch(parts: Parts, metric: str) -> tuple[float, dict[str, Any] | None]:
    """Return the learning rate of the optimizer's first group, and the graph of the model where it can be followed. Makes
    the model once, and leaves random generators as they were."""
    with undisturbed():
        model = make_model(parts.model_factory)
        made = parts.optimizer_factory(list(model.parameters()))
        first = made[0] if isinstance(made, (list, tuple)) else made
        rate = float(first.param_groups[0]["lr"])
        try:
            batch = parts.dataset.batch(torch.zeros(1, dtype=torch.int64))
            model.eval()
            with Scalars():
                graph = follow_call(model, lambda: parts.train_step(model, batch))
        except Exception:  # whatever a user's own may do: a picture is not worth a run
            return rate, None
    return rate, {"metric": metric, "input": list(tensors(batch)[0].shape[1:]), **graph}

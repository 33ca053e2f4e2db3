"""Synthetic runs whose ranks record what they read, what averages made of them and what they evaluated. All of it true."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.config.spec import RunSpec
from bench.results.runfolder import CONFIG, EVENTS
from bench.validate.revisions.revision import accept, write_proposals
from ddp.core.messages.commands import Apply, Average, Evaluate
from ddp.core.messages.event_parts import DataContent, SetContent, StepSketch
from ddp.core.messages.events import Averaged, Evaluated, Finished, Merged, Progress, Ready, Snapshot, Trained
from ddp.permutation import permutation
from ddp.process.codec import Record, encode
from ddp.tally import order_tally, tally
from tests.bench.references import FIVE, TODAY
from tests.bench.streams import make_metrics, make_records, make_spec, write_run
from tests.bench.validate.sketched import GROUPS, mixed, sketch

TRAINING = SetContent(1920, 1920, 1920 * 7, 0, (960, 960))
DATA = DataContent(TRAINING, SetContent(100, 100, 500), 0, (), True)
"""Of each sample the hash is 7, of each in the test set 5."""
Change = Callable[[list[Record]], list[Record]]
TEST = 100


def model(rank: int, round: int) -> str:
    """What a rank brings into a round: replicas move, and come apart."""
    return sketch(5.0 + 0.3 * round + 0.01 * rank, 0.2 * round - rank, 2.0 + rank)


def mean(round: int) -> str:
    """Of both ranks, which train alike."""
    return mixed([(0.5, model(0, round)), (0.5, model(1, round))])


def told(spec: RunSpec) -> list[Record]:
    """A run of 3 epochs of 1,920 samples, in order of their positions; of two ranks, or one."""
    records = make_records(spec, windows=12 // spec.world_size)
    spans = {(one.rank, one.at): one.spans for one in records if isinstance(one, Merged)}
    found, trained = [], 0
    for record in records:
        if isinstance(record, Progress):
            ((first, last),) = spans.get((record.rank, record.at), ((trained % 1920, trained % 1920 + record.samples),))
            trained += record.samples
            step = StepSketch(0, 16, 32, model(record.rank, 0), mean(0) if spec.policy == "sync" else "")
            record = replace(record, visited=tally(range(first, last)), exchanged=(step,))
            found.append(_trained(spec.seed, record, first, last))
        elif isinstance(record, Averaged):
            number = record.round
            found.append(Average(record.rank, number, (0, 1), False, "it is due", True))
            if spec.backend == "cpu":
                laid = model(record.rank, number)
                found.append(Snapshot(record.at, record.rank, number, record.steps, record.samples, laid))
                found.append(Apply(record.rank, number, "it is there"))
            own = model(record.rank, number)
            record = replace(record, sketch_before=own, sketch_after=mean(number), sketch_average=mean(number))
        elif isinstance(record, Evaluated):
            if spec.world_size > 1:
                found.append(Evaluate(record.rank, record.epoch, record.rank, 2, False, "it is complete"))
                record = replace(record, part=record.rank)
            samples = TEST // spec.world_size
            part = replace(record, samples=samples, content=50.0 / spec.world_size, hashes=5 * samples)
            record = replace(part, sketch=mean(6 * record.epoch + 5))
        elif isinstance(record, Ready):
            first_sketch = sketch(0.1, 0.2, 0.3)
            record = replace(record, sketched=() if record.rank else GROUPS, sketch=first_sketch, data=DATA)
        elif isinstance(record, Finished):
            record = replace(record, sketch=mean(17))
        found.append(record)
    return found


def _trained(seed: int, event: Progress, first: int, last: int) -> Trained:
    """What a rank tells of positions in an epoch; both labels are there as often."""
    indices, half = permutation(seed, event.epoch, 1920)[first:last], (last - first) // 2
    about = event.at, event.rank, event.epoch, last - first, 7 * (last - first), 7 * (last - first)
    labels = last - first - half, half
    return Trained(*about, order_tally(np.arange(first, last), indices), labels, loss_sum=event.loss_sum)


def write(root: Path, spec: RunSpec, change: Change = lambda records: records) -> Path:
    """The folder of a run, with `change` made to its records."""
    records = change(told(spec))
    metrics = make_metrics(spec, records)
    final = metrics.final.model_copy(update={"eval": FIVE[spec.seed % 5]})
    folder = write_run(root, spec, metrics.model_copy(update={"final": final}))
    (folder / EVENTS).write_bytes(b"".join(encode(record) + b"\n" for record in records))
    (folder / CONFIG).write_text(json.dumps({"averaging": {"gamma": 1.0, "outer": "none", "wire": "float64"}}))
    return folder


def baseline(folder: Path) -> Path:
    """A folder of accepted baselines with solo's."""
    for seed in range(5):
        write(folder / "runs", make_spec("solo", seed=seed))
    write_proposals(folder / "runs", folder / "proposals", TODAY)
    accept(folder / "proposals", folder / "baselines")
    return folder / "baselines"


def each(kind: type[Any] | tuple[type[Any], ...], change: Callable[[Any], Any]) -> Change:
    """The change of all records of a kind."""
    return lambda records: [change(record) if isinstance(record, kind) else record for record in records]


def second(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The same for rank 1 alone."""
    return lambda event: change(event) if event.rank else event

"""Page one of the committed reports, by the figures beside them: made-up runs whose times and speeds come to those.

Their own runs are not kept, and a page is as full as theirs only with as many ways of training.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path

from bench.base.exitcodes import Exit
from bench.report.page import Page
from bench.results.cells import cells
from bench.results.runfolder import Run
from bench.results.schema import Metrics, RankTime
from bench.validate.verdicts.verdict import LevelFigures, Name, Verdict
from ddp.engine.modes import modes
from tests.bench.streams import make_metrics, make_spec

REPORTS = Path(__file__).parents[3] / "reports"
SEEDS, MARGIN = (0, 1, 2), 0.005
SECONDS, SPEED = 10.0, 1000.0
"""Of one device: time to the target, samples per second."""
CPU = "AMD EPYC 9B14"
Row = Mapping[str, str]
Judged = tuple[str, str, int, Name, LevelFigures]
"""Model, mode, ranks, verdict, its figures."""


def rows(report: str, file: str) -> list[Row]:
    """Return the data of a figure of a committed report."""
    with (REPORTS / report / file).open(newline="") as lines:
        return list(csv.DictReader(lines))


def example(folder: Path, others: Collection[str] = ()) -> Page:
    """Return two workloads in nine modes each, and in `others`, of which nothing is decided."""
    every = [row for file in ("answer.csv", "answer-2.csv") for row in rows("example", file)]
    runs = [run for model in ("lenet", "mlp") for run in seeds(folder, model, "solo", 1, SECONDS, SPEED, 32)]
    judged: list[Judged] = []
    for row in every:
        mode, time = row["cell"].removesuffix(" ×2"), float(row["time"])
        runs += seeds(folder, row["model"], mode, 2, SECONDS * time, SPEED * 0.97 / time, 32)
        worse, low, high = (-float(row[name]) for name in ("quality", "quality_high", "quality_low"))
        figures = LevelFigures(worse, low, high, MARGIN, len(SEEDS), 20, False)
        judged.append((row["model"], mode, 2, "PASS" if row["passed"] == "True" else "INCONCLUSIVE", figures))
    for place, (model, mode) in enumerate(product(("lenet", "mlp"), others)):
        runs += seeds(folder, model, mode, 2, SECONDS * (0.5 + 0.01 * place), SPEED * 1.7, 32)
        judged.append(
            (model, mode, 2, "INCONCLUSIVE", LevelFigures(0.004, -0.001, 0.009, MARGIN, len(SEEDS), 20, False))
        )
    return paged(folder, runs, judged)


def scaling(folder: Path) -> Page:
    """Return two models, each in strong and weak scaling, on up to four devices of two cores."""
    runs: list[Run] = []
    judged: list[Judged] = []
    batches = {(row["model"], int(row["batch"])) for row in rows("scaling", "answer-scaling.csv")}
    for model, batch in sorted(batches):
        runs += seeds(folder, model, "solo", 1, SECONDS, SPEED, batch)
    for row in rows("scaling", "answer-scaling.csv"):
        size, batch, speed = int(row["devices"]), int(row["batch"]), float(row["speedup"])
        share = batch // size if row["scaling"] == "strong" else batch
        runs += seeds(folder, row["model"], row["mode"], size, SECONDS / speed, SPEED * speed, share)
    level = LevelFigures(0.001, -0.001, 0.003, MARGIN, len(SEEDS), 20, False)
    for run in runs:
        m = run.metrics
        name: Name = "INCONCLUSIVE" if m.world_size > 2 else "PASS"
        judged.append((m.model, m.mode, m.world_size, name, level))
    return paged(folder, [*{run.path: run for run in runs}.values()], judged)


def paged(folder: Path, runs: Sequence[Run], judged: Sequence[Judged]) -> Page:
    """Return the material of a report on these runs and what is judged of them: model, mode, ranks, verdict, its figures."""
    found, verdicts = tuple(cells(runs)), []
    known = {(model, mode, size): (name, figures) for model, mode, size, name, figures in judged}
    for cell in found:
        key = cell.workload.model, cell.about.mode, cell.about.world_size
        if key in known:
            name, figures = known[key]
            code = Exit.OK if name == "PASS" else Exit.REGRESSION
            verdicts.append(Verdict(name, "quality", cell.name, "accuracy 0.9 and more", code, figures=figures))
    return Page(folder, folder, found, (), tuple(verdicts))


def seeds(folder: Path, model: str, mode: str, size: int, time: float, speed: float, batch: int) -> Iterator[Run]:
    """Return a run for each seed, whose times and speeds scatter by a few percent."""
    facts, base = modes()[mode], _base(size)
    inside = {"efficiency": None} if mode.startswith("torch") else {}  # collectives lie in the steps
    for seed in SEEDS:
        near = 1 + 0.03 * (seed - 1)
        target = base.target.model_copy(update={"reached": True, "seconds": time * near, "samples": 1000})
        changes = {
            "model": model,
            "data": "noisy_digits",
            "mode": mode,
            "engine": facts.engine,
            "policy": facts.policy,
            "backend": facts.backend,
            "seed": seed,
            "batch_size": batch,
            "run_id": f"w{size}-s{seed}-{batch}",
            "config_hash": f"{model}-{mode}-{size}-{batch}",
            "env": base.env | {"cores": 2, "cpu": CPU},
            "target": target,
            "throughput": base.throughput.model_copy(update={"samples_per_s": speed / near} | inside),
            "transport": "gloo" if inside else base.transport,
            "breakdown": [_spent(mode, size)] * size,
        }
        m = base.model_copy(update=changes)
        yield Run(folder / model / mode / m.run_id, m)


def _spent(mode: str, size: int) -> RankTime:
    comm, wait = (0.0, 0.0) if size == 1 else (0.0, 0.0) if mode.startswith("torch") else (0.07, 0.05)
    shares = {"compute": 0.78 - comm - wait, "data": 0.1, "comm": comm, "wait": wait}
    return RankTime(**shares, eval=0.05, checkpoint=0.0, other=0.07)


@cache
def _base(size: int) -> Metrics:
    return make_metrics(make_spec("solo" if size == 1 else "nccl_sync", size))


MANY = ("nccl_qsr", "cpu_qsr", "zero2", "zero3", "graph_sync", "graph_cadence", "torch_fsdp")
"""Modes that are not in the example."""

"""The baseline file: raw values of solo runs, seed by seed, for each workload. Written by `write_baseline`, never by hand.

Means and deviations are derived from the values when they are needed; they are not stored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from bench.cells import Cell, Sample, Workload, cells
from bench.runfolder import find_runs, write_text
from bench.schema import Strict

MIN_SEEDS = 5
KEY = ("model", "data", "recipe")
"""What names an entry; the other fields of a workload must then be equal."""


class Seed(Strict):
    """What one solo run came to."""

    seed: int = Field(description="of the run")
    eval: float = Field(description="final evaluation metric, unit of the metric")
    train_loss: float = Field(description="mean training loss of the last epoch, unit of the loss")
    samples_per_s: float | None = Field(description="training speed on the machine in `env`, samples per second")
    run_id: str = Field(description="name of the run folder")


class Entry(Strict):
    """The reference for one workload."""

    model: str
    data: str
    recipe: str
    epochs: int = Field(description="epochs trained")
    batch_size: int = Field(description="samples of one step of one rank")
    lr: float = Field(description="base learning rate")
    depth: int | None = Field(default=None, description="layers with weights; null: the model's own number")
    metric: str = Field(description="name of the evaluation metric")
    higher_is_better: bool
    config_hash: str = Field(description="cell of the runs")
    seeds: list[Seed] = Field(min_length=MIN_SEEDS)
    created: str = Field(description="date, ISO 8601")
    git: dict[str, JsonValue]
    env: dict[str, JsonValue]

    @property
    def eval(self) -> Sample:
        """The final metric over the seeds."""
        return Sample.of([seed.eval for seed in self.seeds])

    @property
    def workload(self) -> Workload:
        """What the entry is the reference for."""
        return Workload(self.model, self.data, self.recipe, self.epochs, self.batch_size, self.lr, self.depth)


class Baseline(Strict):
    """The file."""

    schema_version: Literal[1] = 1
    entries: list[Entry] = Field(default_factory=list)

    def entry(self, workload: Workload) -> Entry | None:
        """The entry for a workload's model, data and recipe; whether the rest of it is equal, the caller must ask."""
        found = (e for e in self.entries if all(getattr(e, key) == getattr(workload, key) for key in KEY))
        return next(found, None)


def read_baseline(path: Path) -> Baseline:
    """The baseline in `path`; an empty one if there is no such file. Raises ValueError that names what is wrong."""
    try:
        return Baseline.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Baseline()
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "file"
        raise ValueError(f"{path}: {where}: {first['msg']}; write it with a baseline command, not by hand") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: {error}") from None


def write_baseline(runs: Path, out: Path, *, created: str) -> list[str]:
    """Write the solo runs in `runs` into the baseline file `out`, which keeps its other workloads; a line for each.

    `created` is the date for the record (ISO 8601). Raises ValueError if there are no solo runs, a workload has fewer than
    five finished seeds, a seed twice, two configurations, or a run that did not finish.
    """
    found, problems = find_runs(runs)
    if problems:
        raise ValueError(f"{problems[0]}; a baseline is not written from a tree with unreadable runs")
    solo = [cell for cell in cells(found) if cell.is_solo]
    if not solo:
        raise ValueError(f"no solo runs in {runs}; run: python -m bench -m mode=solo seed=0,1,2,3,4")
    entries = [_entry(cell, created) for cell in solo]
    names = [tuple(getattr(entry, key) for key in KEY) for entry in entries]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{' '.join(name)}: solo runs of {names.count(name)} configurations in {runs}; keep one")
    kept = [e for e in read_baseline(out).entries if tuple(getattr(e, key) for key in KEY) not in names]
    entries = sorted([*kept, *entries], key=lambda entry: entry.workload)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_text(out, json.dumps(Baseline(entries=entries).model_dump(), indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise ValueError(f"cannot write {out}: {error.strerror}") from None
    return [_summary(entry) for entry in entries if entry not in kept]


def _entry(cell: Cell, created: str) -> Entry:
    name = cell.workload.title
    if len(cell.ok) < len(cell.runs):
        raise ValueError(f"{name}: not every solo run finished ({cell.status}); run them again first")
    seeds = [m.seed for m in cell.ok]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"{name}: a seed is there twice: {seeds}")
    if len(seeds) < MIN_SEEDS:
        raise ValueError(f"{name}: {len(seeds)} solo seeds, a baseline needs {MIN_SEEDS} or more (seed=0,1,2,3,4)")
    about = cell.about
    return Entry.model_validate(
        cell.workload._asdict()
        | {
            "metric": about.final.eval_metric,
            "higher_is_better": about.final.higher_is_better,
            "config_hash": about.config_hash,
            "seeds": [
                {
                    "seed": m.seed,
                    "eval": m.final.eval,
                    "train_loss": m.final.train_loss,
                    "samples_per_s": m.throughput.samples_per_s,
                    "run_id": m.run_id,
                }
                for m in cell.ok
            ],
            "created": created,
            "git": about.git,
            "env": about.env,
        }
    )


def _summary(entry: Entry) -> str:
    s = entry.eval
    return f"{entry.workload.title}: {entry.metric} {s.mean:.4f} ± {s.sd:.4f} (n={s.n})"

"""`Reference`: the results of one cell when it was accepted, seed by seed; one JSON file.

`bench baseline` writes it, never a person: the file carries a digest of its content, and is refused if the digest does
not fit. Means and deviations are computed from the values when needed. What decides a verdict is stored as it was on
that day: margins, target, bands. Knows nothing of where files lie: the module `library` does.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue, ValidationError

from bench.base import canonical
from bench.base.grouping import grouped
from bench.results.cells import Workload
from bench.results.schema import Strict
from bench.results.training_settings import norm_limit, step_settings
from bench.validate.baselines.fingerprint import Fingerprint
from bench.validate.statistics.significance import GATING_SEEDS, Moments
from ddp import regular_files

VERSION = 1
MIN_SEEDS = 5
"""Least number of seeds of a reference; below `GATING_SEEDS` it is provisional."""


class Broken(ValueError):
    """A baseline file cannot be trusted; the message is one line that names the file and what is wrong."""


class Value(Strict):
    """The value of one seed."""

    seed: int
    value: float = Field(description="unit of the metric")
    run_id: str = Field(description="name of the run folder")


class Metric(Strict):
    """A metric that is compared: its raw values, and its margin as it was when the reference was accepted."""

    unit: str
    higher_is_better: bool
    scale: Literal["linear", "log"] = Field(description="log: values are compared by their logarithms")
    margin: float = Field(gt=0, description="how much worse a cell may be, unit of the metric; log: of logarithms")
    margin_why: str
    resolution: float = Field(ge=0, description="smallest difference of values, in the unit of `margin`")
    values: list[Value] = Field(min_length=2)
    target: float | None = Field(default=None, description="value of the quality metric to reach, if any")
    missed: list[int] = Field(
        default_factory=list, description="seeds without a value, as they never reached the target"
    )

    @property
    def raw(self) -> list[float]:
        """The values as measured."""
        return [value.value for value in self.values]

    @property
    def turned_values(self) -> list[float]:
        """The values on the scale of comparison: larger is worse."""
        return [self.turned(value.value) for value in self.values]

    @property
    def moments(self) -> Moments:
        """The moments of `turned_values`."""
        return Moments.of(self.turned_values)

    def turned(self, value: float) -> float:
        """Return a value on the scale of comparison, where larger is worse."""
        scaled = math.log(value) if self.scale == "log" else value
        return -scaled if self.higher_is_better else scaled


class Target(Strict):
    """The quality that counts as reached."""

    value: float = Field(description="unit of the quality metric")
    why: str


class Curve(Strict):
    """Quantiles over the seeds at each epoch, and the margin by which the band for runs is wider."""

    higher_is_better: bool
    samples: list[int] = Field(description="samples trained by all ranks, median over the seeds")
    q10: list[float]
    q50: list[float]
    q90: list[float]
    margin: list[float] = Field(description="added to both sides of the band from q10 to q90, by epoch")


class Sets(Strict):
    """The data sets on which the runs were trained and evaluated."""

    training: int = Field(description="samples of an epoch")
    evaluated: int = Field(description="samples of an evaluation")
    content: float = Field(description="sum over the values of these, as the model received them")
    training_hashes: int | None = Field(default=None, description="sum of hashes of the training set; null: not known")
    test_hashes: int | None = Field(default=None, description="sum of hashes of the test set; null: not known")
    shared: int | None = Field(default=None, description="test samples that are training samples; null: not known")


class Reference(Strict):
    """A baseline file."""

    schema_version: Literal[1] = 1
    model: str
    data: str
    recipe: str
    mode: str
    engine: str
    world_size: int
    epochs: int
    batch_size: int = Field(description="samples of one step of one rank")
    lr: float
    metric: str = Field(description="name of the evaluation metric")
    config_hash: str = Field(description="of the cell")
    config: dict[str, JsonValue] = Field(description="resolved, without seed and folders")
    metrics: dict[str, Metric]
    diverged: list[int] = Field(default_factory=list, description="seeds that diverged; they have no values")
    target: Target
    curves: dict[str, Curve]
    rates: list[tuple[float, float]] = Field(
        default_factory=list,
        description="(fraction of all samples trained, factor on the learning rate) of the first seed; empty: "
        "not recorded",
    )
    sets: Sets | None = Field(default=None, description="null: not recorded")
    first_losses: dict[str, float] = Field(
        default_factory=dict, description="seed -> mean training loss of the first epoch; empty: not kept"
    )
    params_sha256: dict[str, str] = Field(description="seed -> digest of the final parameters")
    environment: Fingerprint
    git: list[dict[str, JsonValue]] = Field(description="states of the source that the runs were made with")
    created: str = Field(description="date, ISO 8601")
    expires: str = Field(description="date, ISO 8601: the last day on which it is compared with")
    supersedes: str | None = Field(description="digest of the reference that it replaced")
    because: str | None = Field(
        description="why it was accepted though it is worse than what it replaces, or has outliers"
    )
    digest: str = Field(description="sha256 of the rest of the file, as canonical JSON")

    @property
    def seeds(self) -> int:
        """Number of runs in it that did not diverge."""
        return len(self.metrics["quality"].values)

    @property
    def samples(self) -> tuple[Metric, float] | None:
        """(Samples to a target, the target); None: not kept."""
        metric = self.metrics.get("samples_to_target")
        return None if metric is None else (metric, self.target.value if metric.target is None else metric.target)

    def misses(self, value: float) -> tuple[int, int]:
        """Return (seeds that never reached this value of the quality metric, all seeds), both with those that diverged.
        Final values decide if the samples to this very target are not known."""
        metric, quality = self.metrics.get("samples_to_target"), self.metrics["quality"]
        total = self.seeds + len(self.diverged)
        if metric is not None and self.samples == (metric, value):
            return total - len(metric.values), total
        return total - sum(final <= quality.turned(value) for final in quality.turned_values), total

    @property
    def gating(self) -> bool:
        """Whether it has enough seeds for a cell to fail that was not shown to be good enough."""
        return self.seeds >= GATING_SEEDS

    @property
    def depth(self) -> int | None:
        """Layers with weights, by its configuration; None: the model's default."""
        depth = self.config.get("depth")
        return depth if isinstance(depth, int) else None

    @property
    def workload(self) -> Workload:
        """The workload that it is a reference for."""
        trained = (self.model, self.data, self.recipe, self.epochs, self.batch_size, self.lr, self.depth, self.metric)
        return Workload(
            *trained, norm_limit(self.config), step_settings(self.config, self.batch_size * self.world_size)
        )

    @property
    def name(self) -> str:
        """A name for messages."""
        ranks = "" if self.engine == "solo" else f" ×{self.world_size}"
        depth = f" of depth {self.depth}" if self.depth else ""
        return f"{self.model}{depth} {self.mode}{ranks} on {self.data}, recipe {self.recipe}"

    @property
    def place(self) -> Path:
        """The path of its file, below the folder of baselines."""
        file = f"{self.mode}-w{self.world_size}-{self.config_hash[:8]}.json"
        folder = re.sub(r"[^A-Za-z0-9_]+", "_", self.data).strip("_")  # options of the data have odd characters
        return Path(f"{self.model}-{folder}-{self.recipe}") / file

    def expired(self, today: date) -> bool:
        """Return whether its last day has passed."""
        return date.fromisoformat(self.expires) < today


def digest(body: dict[str, JsonValue]) -> str:
    """Return the digest of a file's content, without the digest that the file itself has."""
    return canonical.digest({key: value for key, value in body.items() if key != "digest"})


def twins(ended: Iterable[tuple[object, str]]) -> str:
    """Say which two seeds ended with the same digest, given pairs (seed, digest of the final parameters); empty:
    none."""
    seeds = grouped((sha, seed) for seed, sha in sorted(ended, key=str))
    same = ((sha, each) for sha, each in seeds.items() if len(each) > 1)
    return next(
        (f"seeds {each[0]} and {each[1]} ended with the same parameters ({sha[:12]})" for sha, each in same), ""
    )


def sealed(body: dict[str, JsonValue]) -> Reference:
    """Return the reference with its digest. Raises ValidationError if the body is not valid."""
    whole = Reference.model_validate(body | {"digest": ""}).model_dump(mode="json")
    return Reference.model_validate(whole | {"digest": digest(whole)})


def text(reference: Reference) -> str:
    """Return the content of its file."""
    return json.dumps(reference.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Reference:
    """Read the reference in a file. Raises Broken if it cannot be trusted."""
    try:
        body = json.loads(
            regular_files.content(path).decode("utf-8"), parse_constant=_no_number, object_pairs_hook=canonical.once
        )
        _version(body)
        reference = Reference.model_validate(body)
        date.fromisoformat(reference.expires), date.fromisoformat(reference.created)
    except ValidationError as error:
        first = error.errors()[0]
        problem = f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"
    except (OSError, ValueError, RecursionError) as error:
        problem = f"not a baseline file: {error}"
    else:
        problem = _inconsistency(reference)
        if digest(body) != reference.digest:
            problem = "its content is not what was accepted (its digest does not fit): edited or damaged"
        if not problem:
            return reference
    raise Broken(f"{path}: {problem}; {REMEDY}")


REMEDY = "restore it, or make it anew: python -m bench baseline propose RUNS"


def _no_number(word: str) -> float:
    raise ValueError(f"{word} is not a number")


def _version(body: JsonValue) -> None:
    version = body.get("schema_version") if isinstance(body, dict) else VERSION
    if version != VERSION:
        raise ValueError(f"it has schema version {version}, but this program reads {VERSION}")


def _inconsistency(reference: Reference) -> str:
    """Say which parts of a reference contradict each other; empty: none."""
    if "quality" not in reference.metrics:
        return "it has no quality"
    if wrong := twins(reference.params_sha256.items()):
        return f"params_sha256: {wrong}"
    for name, curve in reference.curves.items():
        if len({len(part) for part in (curve.samples, curve.q10, curve.q50, curve.q90, curve.margin)}) != 1:
            return f"curves.{name}: columns of different length"
    for name, metric in reference.metrics.items():
        if metric.scale == "log" and any(value.value <= 0 for value in metric.values):
            return f"metrics.{name}: a value that has no logarithm"
        if metric.resolution == 0 and len({value.value for value in metric.values}) == 1:
            return f"metrics.{name}: values without spread, and no resolution"
    return ""

"""`Reference`: what one cell came to when it was accepted, seed by seed; one JSON file.

Written by `bench baseline`, never by hand: the file carries a digest of its content, and one that does not fit is refused.
Means and deviations are derived from the values when they are needed. What decides a verdict is stored as it was on the day:
margins, target, bands. Knows nothing of where files lie (`bench.validate.library`).
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
from bench.results.cells import Workload, norm_limit, step_settings
from bench.results.schema import Strict
from bench.validate.fingerprint import Fingerprint
from bench.validate.statistics import GATING_SEEDS, Moments
from ddp import regular_files

VERSION = 1
MIN_SEEDS = 5
"""Fewer make no reference; fewer than `GATING_SEEDS` a provisional one."""


class Broken(ValueError):
    """A baseline file that cannot be trusted: one line that names it and what is wrong."""


class Value(Strict):
    """Of one seed."""

    seed: int
    value: float = Field(description="unit of the metric")
    run_id: str = Field(description="name of the run folder")


class Metric(Strict):
    """What is compared: raw values, and the margin as it was fixed when the reference was accepted."""

    unit: str
    higher_is_better: bool
    scale: Literal["linear", "log"] = Field(description="log: values are compared by their logarithms")
    margin: float = Field(gt=0, description="how much worse a cell may be, unit of the metric; log: of logarithms")
    margin_why: str
    resolution: float = Field(ge=0, description="step between values that can be told apart, as `margin`")
    values: list[Value] = Field(min_length=2)
    target: float | None = Field(
        default=None, description="value of the quality metric whose crossing is meant, if any"
    )
    missed: list[int] = Field(default_factory=list, description="seeds that have no value: they never came so far")

    @property
    def raw(self) -> list[float]:
        """The values as they were measured."""
        return [value.value for value in self.values]

    @property
    def turned_values(self) -> list[float]:
        """The values as tests want them: larger is worse."""
        return [self.turned(value.value) for value in self.values]

    @property
    def moments(self) -> Moments:
        """The moments of these."""
        return Moments.of(self.turned_values)

    def turned(self, value: float) -> float:
        """Return a value such that larger is worse, on the scale of comparison."""
        scaled = math.log(value) if self.scale == "log" else value
        return -scaled if self.higher_is_better else scaled


class Target(Strict):
    """The quality that counts as reached."""

    value: float = Field(description="unit of the quality metric")
    why: str


class Curve(Strict):
    """Quantiles over the seeds at each epoch, and how much wider the band is that runs must stay in."""

    higher_is_better: bool
    samples: list[int] = Field(description="samples trained by all ranks, median over the seeds")
    q10: list[float]
    q50: list[float]
    q90: list[float]
    margin: list[float] = Field(description="added to both sides of the band from q10 to q90, at each epoch")


class Sets(Strict):
    """What its runs trained and were evaluated on."""

    training: int = Field(description="samples of an epoch")
    evaluated: int = Field(description="samples of an evaluation")
    content: float = Field(description="sum over the values of these, as the model was shown them")
    training_hashes: int | None = Field(default=None, description="sum of hashes of the training set; null: not known")
    test_hashes: int | None = Field(default=None, description="sum of hashes of the test set; null: not known")
    shared: int | None = Field(default=None, description="test samples that are training samples; null: not known")


class Reference(Strict):
    """The file."""

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
        description="(fraction of all samples trained, factor on the learning rate) in the course of the first seed; empty: "
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
    supersedes: str | None = Field(description="digest of the reference that it took the place of")
    because: str | None = Field(
        description="why it was accepted though it is worse than what it replaces, or has outliers"
    )
    digest: str = Field(description="sha256 of the rest of the file, as canonical JSON")

    @property
    def seeds(self) -> int:
        """Number of runs behind it."""
        return len(self.metrics["quality"].values)

    @property
    def samples(self) -> tuple[Metric, float] | None:
        """Samples to a target, and the target; None: they were not kept."""
        metric = self.metrics.get("samples_to_target")
        return None if metric is None else (metric, self.target.value if metric.target is None else metric.target)

    def misses(self, value: float) -> tuple[int, int]:
        """Return (how many seeds never reached this value of the quality metric, of how many), those that diverged among
        them; by the final values where nothing else is known."""
        metric, quality = self.metrics.get("samples_to_target"), self.metrics["quality"]
        total = self.seeds + len(self.diverged)
        if metric is not None and self.samples == (metric, value):
            return total - len(metric.values), total
        return total - sum(final <= quality.turned(value) for final in quality.turned_values), total

    @property
    def gating(self) -> bool:
        """Whether its seeds suffice to call what was not shown a failure."""
        return self.seeds >= GATING_SEEDS

    @property
    def depth(self) -> int | None:
        """Layers with weights, as its configuration has them; None: the model's own number."""
        depth = self.config.get("depth")
        return depth if isinstance(depth, int) else None

    @property
    def workload(self) -> Workload:
        """What it is the reference for."""
        trained = (self.model, self.data, self.recipe, self.epochs, self.batch_size, self.lr, self.depth, self.metric)
        return Workload(
            *trained, norm_limit(self.config), step_settings(self.config, self.batch_size * self.world_size)
        )

    @property
    def name(self) -> str:
        """For people."""
        ranks = "" if self.engine == "solo" else f" ×{self.world_size}"
        depth = f" of depth {self.depth}" if self.depth else ""
        return f"{self.model}{depth} {self.mode}{ranks} on {self.data}, recipe {self.recipe}"

    @property
    def place(self) -> Path:
        """Its file, below the folder of baselines."""
        file = f"{self.mode}-w{self.world_size}-{self.config_hash[:8]}.json"
        folder = re.sub(r"[^A-Za-z0-9_]+", "_", self.data).strip("_")  # options of the data have signs of all kinds
        return Path(f"{self.model}-{folder}-{self.recipe}") / file

    def expired(self, today: date) -> bool:
        """Return whether its last day is over."""
        return date.fromisoformat(self.expires) < today


def digest(body: dict[str, JsonValue]) -> str:
    """Return the digest of the content of a file, whatever digest it has."""
    return canonical.digest({key: value for key, value in body.items() if key != "digest"})


def twins(ended: Iterable[tuple[object, str]]) -> str:
    """Say which seeds have the same digest, of pairs (seed, digest of the final parameters); empty: none have."""
    seeds: dict[str, list[object]] = {}
    for seed, sha in sorted(ended, key=str):
        seeds.setdefault(sha, []).append(seed)
    same = ((sha, each) for sha, each in seeds.items() if len(each) > 1)
    return next(
        (f"seeds {each[0]} and {each[1]} ended with the same parameters ({sha[:12]})" for sha, each in same), ""
    )


def sealed(body: dict[str, JsonValue]) -> Reference:
    """Return the reference with its digest. Raises ValidationError for a body that is none."""
    whole = Reference.model_validate(body | {"digest": ""}).model_dump(mode="json")
    return Reference.model_validate(whole | {"digest": digest(whole)})


def text(reference: Reference) -> str:
    """Return the content of its file."""
    return json.dumps(reference.model_dump(mode="json"), indent=1, ensure_ascii=False) + "\n"


def read(path: Path) -> Reference:
    """Read the reference in a file. Raises Broken."""
    try:
        body = json.loads(
            regular_files.content(path).decode("utf-8"), parse_constant=_no_number, object_pairs_hook=_once
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
    raise ValueError(f"{word} is no number")


def _once(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    """Return an object whose every key is there once: of two, a reader sees one and the program the other."""
    body = dict(pairs)
    if len(body) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} is said twice")
    return body


def _version(body: JsonValue) -> None:
    version = body.get("schema_version") if isinstance(body, dict) else VERSION
    if version != VERSION:
        raise ValueError(f"it is of schema version {version}, and {VERSION} is read here")


def _inconsistency(reference: Reference) -> str:
    """Say what does not fit together; empty: nothing."""
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

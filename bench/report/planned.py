"""What an experiment planned: the runs that its file declares, without training or composing anything. Imports no torch.

A sweep is the product of what it varies; one rank is all that some engines have, so their world sizes are one.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError  # type: ignore[import-untyped]

from bench.runfolder import Run
from ddp.runtime.engines import facts
from models import MODELS

CONF = Path(__file__).resolve().parent.parent.parent / "conf"
DEFAULT_WORLD = 2


class Point(NamedTuple):
    """What tells the runs of an experiment apart."""

    model: str
    mode: str
    world_size: int
    seed: int


@dataclass(frozen=True)
class Planned:
    """An experiment and its runs."""

    experiment: str
    points: tuple[Point, ...]

    def missing(self, runs: Sequence[Run]) -> list[Point]:
        """Planned runs that have no folder, in the order of the plan."""
        there = {Point(m.model, m.mode, m.world_size, m.seed) for m in (run.metrics for run in runs)}
        return [point for point in self.points if point not in there]


def planned(root: Path, name: str | None, conf: Path = CONF) -> Planned | None:
    """The experiment `name`; without a name, the one whose `output` is the tree `root`, if there is one.

    Raises ValueError for a name that is none, or a file that is no experiment.
    """
    files = sorted((conf / "experiment").glob("*.yaml"))
    if name is not None:
        chosen = [file for file in files if file.stem == name]
        if not chosen:
            raise ValueError(f"no experiment {name!r}; there are {', '.join(file.stem for file in files)}")
        return _read(chosen[0], conf)
    for file in files:
        with suppress(ValueError):  # an experiment that nobody asked for may be anything
            if (output := _body(file).get("output")) and Path(str(output)).resolve() == root.resolve():
                return _read(file, conf)
    return None


def _read(file: Path, conf: Path) -> Planned:
    body = _body(file)
    varied = body.get("hydra", {}).get("sweeper", {}).get("params", {})
    said = {**{key: body[key] for key in ("world_size", "seed") if key in body}, **varied}
    models = _choices(said.get("model"), sorted(MODELS))
    modes = _choices(said.get("mode"), sorted(path.stem for path in (conf / "mode").glob("*.yaml")))
    sizes = [int(size) for size in _choices(said.get("world_size"), ())] or [DEFAULT_WORLD]
    seeds = [int(seed) for seed in _choices(said.get("seed", "0"), ())]
    ranks = {mode: list(_sizes(mode, sizes, "world_size" in said, conf)) for mode in modes}
    points = [Point(m, mode, n, seed) for seed, m, mode in product(seeds, models, modes) for n in ranks[mode]]
    return Planned(file.stem, tuple(dict.fromkeys(points)))


def _sizes(mode: str, sizes: list[int], said: bool, conf: Path) -> Iterator[int]:
    """The world sizes of a mode: those that its engine can have; of one rank where none is said, if it can have no other."""
    chosen = _body(conf / "mode" / f"{mode}.yaml").get("defaults", ())
    engines = [one["override /engine"] for one in chosen if isinstance(one, dict) and "override /engine" in one]
    able = [facts(str(engine)) for engine in engines]
    if not said and any(each.one_rank for each in able):
        sizes = [1]
    yield from (size for size in sizes if all(each.fits(size) for each in able))


def _choices(said: Any, all_of_them: Sequence[str]) -> list[str]:
    """`a,b`, or `glob(*)` over all there are."""
    text = "" if said is None else str(said)
    if text.startswith("glob(") and text.endswith(")"):
        return fnmatch.filter(all_of_them, text[5:-1])
    return [word.strip() for word in text.split(",") if word.strip()]


def _body(file: Path) -> dict[str, Any]:
    try:
        body = OmegaConf.to_container(OmegaConf.load(file), resolve=False)
    except (YAMLError, OmegaConfBaseException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: not an experiment: {str(error).splitlines()[0]}") from None
    return {str(key): value for key, value in body.items()} if isinstance(body, dict) else {}

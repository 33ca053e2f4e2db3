"""The folder of baselines: which reference a cell is compared with. Files: `<workload>/<mode>-w<ranks>-<hash>.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from bench.results.cells import Cell
from bench.results.runfolder import located, there
from bench.validate.fingerprint import FieldDifference, Fingerprint, cell_config, differences, flat
from bench.validate.reference import Broken, Reference, read
from ddp import regular

APART = ("epochs", "batch_size", "lr", "max_grad_norm", "global_batch_size", "lr_scale_ratio")
"""Keys of `train` that are fields of a workload, or belong to a way of training: how the batches of ranks make one, and how
the rate grows with their number."""


@dataclass(frozen=True)
class Match:
    """A cell's reference and how it fits."""

    reference: Reference
    own: bool
    """It is of the same cell; otherwise of one process that trains the same."""
    differing: list[FieldDifference]
    """Fields that make it not comparable."""


@dataclass(frozen=True)
class Library:
    """The references at hand."""

    references: tuple[Reference, ...] = ()
    broken: tuple[str, ...] = ()
    """A line for each file that cannot be trusted, and each folder that may not be looked into."""
    places: Mapping[str, Path] = field(default_factory=dict)
    """Hash of a cell -> file of its reference."""

    def match(self, cell: Cell) -> Match | None:
        """The reference of the same cell, else solo's of the same model, data and recipe; None if there is neither."""
        about = cell.about
        own = [r for r in self.references if r.config_hash == about.config_hash]
        if own:
            return Match(own[0], True, _environment(own[0], cell))
        alike = [r for r in self.references if (r.model, r.data, r.recipe) == tuple(cell.workload[:3])]
        config = cell.runs[0].config
        solo = sorted(
            (r for r in alike if r.engine == "solo"),
            key=lambda r: (r.workload == cell.workload, not _training(r.config, config), r.created),
        )
        if not solo:
            return None
        return Match(solo[-1], False, [*_workload(solo[-1], cell), *_environment(solo[-1], cell)])


def _workload(reference: Reference, cell: Cell) -> list[FieldDifference]:
    """Fields in which training differs. A solo cell that is not the reference's own differs somewhere: it is said where."""
    theirs, mine = reference.workload._asdict(), cell.workload._asdict()
    config = cell_config(cell.runs[0].config)
    found = [*differences(theirs, mine, prefix=""), *_training(reference.config, config)]
    if found or not cell.is_solo or cell.about.emulated_speeds:
        return found
    known = {key: value for key, value in config.items() if key in reference.config}  # others came up after it was made
    told = differences(flat(reference.config), flat(known), prefix="")
    if not told:  # what no field shows: the recipe itself was changed
        return [FieldDifference("config_hash", reference.config_hash[:8], cell.about.config_hash[:8])]
    return [one for one in told if not one.field.startswith("cluster.")]


def _training(theirs: Mapping[str, JsonValue], mine: Mapping[str, JsonValue]) -> list[FieldDifference]:
    """Fields of two configurations that change what is trained, whatever trains it. What is not recorded is not held against
    anybody: files from before `training` was kept say nothing of the recipe."""
    found = differences(_beyond(theirs), _beyond(mine), prefix="train.")
    base, run = theirs.get("training"), mine.get("training")
    if isinstance(base, dict) and isinstance(run, dict):
        found += differences(base, run, prefix="training.")
    return found


def _beyond(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """What is said of the training beyond the fields of a workload, and is no business of the way of training."""
    train = config.get("train")
    return {key: value for key, value in train.items() if key not in APART} if isinstance(train, dict) else {}


def _environment(reference: Reference, cell: Cell) -> list[FieldDifference]:
    found: list[FieldDifference] = []
    for metrics in cell.ok:
        for one in differences(reference.environment.required, Fingerprint.of(metrics).required):
            if one not in found:
                found.append(one)
    return found


def files(path: Path) -> tuple[list[Path], list[str]]:
    """Return the files of references in a folder, or the one file that `path` is; and a line for each folder in it that may
    not be looked into."""
    unread: list[OSError] = []
    if not path.is_dir():
        return [path] if there(path) else [], []
    found = [folder / name for folder, _, names in regular.walk(path, unread) for name in names]
    return sorted(file for file in found if file.suffix == ".json"), list(map(located, unread))


def load(path: Path) -> Library:
    """The references in a folder, or in one file. What is not there is an empty library."""
    found: dict[str, tuple[Path, Reference]] = {}
    listed, broken = files(path)
    for file in listed:
        try:
            reference = read(file)
        except Broken as error:
            broken.append(str(error))
            continue
        first, _ = found.setdefault(reference.config_hash, (file, reference))
        if first != file:
            broken.append(f"{file}: a second baseline of the cell of {first}; remove the one that is not meant")
    places = {key: file for key, (file, _) in found.items()}
    return Library(tuple(reference for _, reference in found.values()), tuple(broken), places)

"""The folder of baselines, and which reference a cell is compared with. Files:
`<workload>/<mode>-w<ranks>-<hash>.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import JsonValue

from bench.config.user_parts import TASK
from bench.results.cells import Cell, Workload
from bench.results.runfolder import group_of, located, there
from bench.validate.baselines.fingerprint import FieldDifference, Fingerprint, cell_config, differences, flat
from bench.validate.baselines.global_batch import global_batch
from bench.validate.baselines.reference import Broken, Reference, read
from ddp import regular_files
from ddp.core.settings.steps import NAMES as STEP

APART = ("epochs", "batch_size", "lr", "max_grad_norm", "global_batch_size", "lr_scale_ratio", "steps", *STEP)
"""Keys of `train` that are either fields of a workload or belong to the mode: how ranks share a batch, and how the rate
grows with their number."""


@dataclass(frozen=True)
class Match:
    """A cell's reference and how it fits."""

    reference: Reference
    own: bool
    """True: it is the reference of the same cell; False: of a solo cell with the same training."""
    differing: list[FieldDifference]
    """Fields whose difference forbids a comparison."""


@dataclass(frozen=True)
class Library:
    """All references that were read."""

    references: tuple[Reference, ...] = ()
    broken: tuple[str, ...] = ()
    """A line for each file that cannot be trusted, and each folder that cannot be read."""
    places: Mapping[str, Path] = field(default_factory=dict)
    """Hash of a cell -> file of its reference."""
    folder: Path | None = None
    """The folder of new references; None: the usual one."""

    def match(self, cell: Cell) -> Match | None:
        """Return the reference of the same cell, else that of solo with the same model, data and recipe; None if there
        is none."""
        for reference in self.references:
            if reference.config_hash == cell.about.config_hash:
                return Match(reference, True, _environment(reference, cell))
        trained = tuple(cell.workload[:3])
        alike = [r for r in self.references if r.engine == "solo" and (r.model, r.data, r.recipe) == trained]
        alike.sort(key=lambda reference: _fit(reference, cell))
        if not alike:
            return None
        return Match(alike[-1], False, [*_workload(alike[-1], cell), *_environment(alike[-1], cell)])


def _fit(reference: Reference, cell: Cell) -> tuple[bool, bool, bool, str]:
    """Return how well a reference fits a cell; larger is better. Of two that fit, that of the same global batch, then the
    latest."""
    same, alike = reference.workload == _together(reference, cell), not _training(reference.config, cell.runs[0].config)
    return same, alike, reference.batch_size == global_batch(cell.about), reference.created


def _together(reference: Reference, cell: Cell) -> Workload:
    """Return a cell's workload, with the reference's batch size if the ranks' batches together have that size. Digests
    are compared apart, as older files lack them: see `_training`."""
    workload = cell.workload._replace(digests=())
    if global_batch(cell.about) == reference.batch_size:
        return workload._replace(batch_size=reference.batch_size)
    return workload


def _workload(reference: Reference, cell: Cell) -> list[FieldDifference]:
    """Return the fields in which the workloads differ. For a solo cell with another hash this is never empty."""
    theirs, mine = reference.workload._asdict(), _together(reference, cell)._asdict()
    config = cell_config(cell.runs[0].config)
    fields = [*differences(theirs, mine, prefix=""), *_training(reference.config, config)]
    if fields or not cell.is_solo or cell.about.emulated_speeds:
        return fields
    known = {key: value for key, value in config.items() if key in reference.config}  # later versions added other keys
    settings = differences(flat(reference.config), flat(known), prefix="")
    if not settings:  # no field shows a difference, so the recipe itself was changed
        return [FieldDifference("config_hash", reference.config_hash[:8], cell.about.config_hash[:8])]
    return [each for each in settings if not each.field.startswith("cluster.")]


def _training(theirs: Mapping[str, JsonValue], mine: Mapping[str, JsonValue]) -> list[FieldDifference]:
    """Return the fields that change the training itself, whatever the mode. Fields that one side lacks are ignored:
    older files do not record `training`."""
    fields = differences(_beyond(theirs), _beyond(mine), prefix="train.")
    base, run = theirs.get("training"), mine.get("training")
    if isinstance(base, dict) and isinstance(run, dict):
        fields += differences(base, run, prefix="training.")
    return fields + differences(_code(theirs), _code(mine), prefix="code.")


def _code(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the digests of a user's own model and data set; {} for those of the project."""
    parts = group_of(config, "code").items()
    return {kind: part.get("sha256") for kind, part in parts if kind in TASK and isinstance(part, dict)}


def _beyond(config: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the settings of `train` that are neither fields of a workload nor of the mode."""
    return {key: value for key, value in group_of(config, "train").items() if key not in APART}


def _environment(reference: Reference, cell: Cell) -> list[FieldDifference]:
    base = reference.environment.required
    return list(dict.fromkeys(field for m in cell.ok for field in differences(base, Fingerprint.of(m).required)))


def files(path: Path) -> tuple[list[Path], list[str]]:
    """Return the reference files in a folder, or the file `path` itself; and a line for each folder that cannot be
    read."""
    shut: list[OSError] = []
    if not path.is_dir():
        return [path] if there(path) else [], []
    paths = [folder / name for folder, _, names in regular_files.walk(path, shut) for name in names]
    return sorted(file for file in paths if file.suffix == ".json"), list(map(located, shut))


def load(*paths: Path) -> Library:
    """Read the references in folders or files; of a cell that several paths have, the first one's. A missing path has
    none."""
    references: dict[str, Reference] = {}
    places: dict[str, Path] = {}
    broken: list[str] = []
    for path in paths:
        earlier = set(places)
        listed, shut = files(path)
        broken += shut
        for file in listed:
            try:
                reference = read(file)
            except Broken as error:
                broken.append(str(error))
                continue
            key = reference.config_hash
            if key in places and key not in earlier:
                broken.append(
                    f"{file}: a second baseline of the cell of {places[key]}; remove the one that is not meant"
                )
            if key not in places:
                references[key], places[key] = reference, file
    return Library(tuple(references.values()), tuple(broken), places, next(iter(paths), None))

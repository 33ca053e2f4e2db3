"""A predicted cell as a run, for the analysis and its folder; what of it lies outside of what was calibrated. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.base import canonical
from bench.config.spec import RunSpec
from bench.predict.calibration import Calibration
from bench.predict.play import PlayedCell, PredictedCell, samples_of, speeds_of
from ddp.engine.modes import mode_name
from ddp.process.codec import Record

FAR = 4
"""A prediction for so many times the ranks that were calibrated on is far away."""


def predicted_spec(cell: PredictedCell, calibration: Calibration) -> RunSpec:
    """Return a cell as a run, for the analysis."""
    spec = calibration.spec
    config: dict[str, Any] = spec.config | {
        "audit": False,
        "world_size": cell.ranks,
        "policy": {"name": cell.policy} | dict(cell.settings),
        "cluster": spec.config["cluster"] | {"speeds": list(speeds_of(cell, calibration))},
    }
    if cell.links is not None:
        config["cluster"]["links"] = cell.links.words
    mode = mode_name(spec.engine, cell.policy, spec.backend)
    speeds = speeds_of(cell, calibration)
    changed: dict[str, Any] = {
        "mode": mode,
        "policy": cell.policy,
        "world_size": cell.ranks,
        "speeds": speeds,
        "config": config,
    }
    if spec.lr_scale != 1.0:
        changed["lr_scale"] = 1.0 + (spec.lr_scale - 1.0) * (cell.ranks - 1) / (spec.world_size - 1)
    how = (cell.healed, cell.steps) if cell.cores is None else (cell.healed, cell.steps, cell.cores)
    cell_hash = canonical.digest({**config, "of": spec.config_hash, "how": repr(how)})
    changed |= {
        "config_hash": cell_hash,
        "run_id": f"w{cell.ranks}-s{spec.seed}-{cell_hash[:8]}",
        "source": "predicted",
    }
    note = f"predicted from {spec.run_id}, nothing was trained"
    return replace(spec, **changed, warnings=(note, *beyond(cell, calibration)), faults=())


def records_of(played: PlayedCell) -> list[Record]:
    """Return the records of a played cell, in the order of their times; slices behind."""
    return [*(record for _, record in played.records), *played.slices]


def other_links(cell: PredictedCell, calibration: Calibration) -> bool:
    """Return whether a cell has other links than the run."""
    words = [links.words if links is not None else None for links in (cell.links, calibration.links)]
    return words[0] != words[1]


def beyond(cell: PredictedCell, calibration: Calibration, shown: bool = False) -> list[str]:
    """Return what of a cell lies outside of what was calibrated. `shown`: runs with other numbers of ranks show how far
    predictions are off."""
    spec, lines = calibration.spec, list[str]()
    if cell.ranks > calibration.ranks:
        far = "far " if cell.ranks >= FAR * calibration.ranks else ""
        how = (
            "their error is that of runs with other numbers" if shown else "costs may not grow, or grow as their number"
        )
        lines.append(f"{far}more ranks than the {calibration.ranks} calibrated: {how}")
    if cell.cores is None and calibration.device == "cpu" and cell.ranks > calibration.ranks:
        lines.append("each rank has a core of its own (--cores N: all share N)")
    if cell.cores is not None and cell.ranks > max(cell.cores, calibration.ranks):
        lines.append(f"{cell.ranks} ranks share {cell.cores} cores: what that costs beside waiting is a guess")
    if other_links(cell, calibration):
        lines.append("other links: by the cost model")
    if cell.policy != spec.policy:
        lines.append(f"policy {cell.policy}: what averages cost is that of {spec.policy}")
    if cell.steps is not None:
        lines.append("step times are drawn from a distribution")
    if samples_of(cell, calibration) > calibration.samples:
        lines.append(f"{samples_of(cell, calibration):,} samples an epoch, where the run had {calibration.samples:,}")
    slowest = min(spec.speeds, default=1.0)
    if min(speeds_of(cell, calibration), default=1.0) < slowest:
        lines.append(f"slower ranks than the calibrated {slowest:g}")
    return lines

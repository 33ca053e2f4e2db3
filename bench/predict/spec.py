"""A predicted cell as a `RunSpec`, for the analysis and its folder; and what of it was not calibrated. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.base import canonical
from bench.base.number_format import plural
from bench.config.spec import RunSpec
from bench.predict.calibration import Calibration
from bench.predict.play import PlayedCell
from bench.predict.predicted_cell import (
    PredictedCell,
    epoch_of,
    lr_scale_of,
    samples_of,
    shared_cores,
    shares,
    shares_anew,
    speeds_of,
    step_s_of,
)
from bench.predict.traces import TracedSteps
from bench.results.runfolder import group_of
from ddp.core.network.links import Links
from ddp.engine.modes import mode_name
from ddp.process.codec import Record

FAR = 4
"""Ratio of ranks to calibrated ranks from which a prediction is far away."""
PER_RANK = ("speed_hint", "partition_ratios")
"""Settings of policies with an entry for each rank."""


def predicted_spec(cell: PredictedCell, calibration: Calibration) -> RunSpec:
    """Return the `RunSpec` of a cell, for the analysis."""
    spec = calibration.spec
    config: dict[str, Any] = spec.config | {
        "audit": False,
        "world_size": cell.ranks,
        "policy": {"name": cell.policy} | dict(cell.settings),
        "cluster": group_of(spec.config, "cluster") | {"speeds": list(speeds_of(cell, calibration))},
    }
    if cell.links is not None or calibration.links is not None:
        config["cluster"]["links"] = words_of(cell.links) or []
    mode = mode_name(spec.engine, cell.policy, spec.backend)
    speeds = speeds_of(cell, calibration)
    changed: dict[str, Any] = {
        "mode": mode,
        "lr_scale": lr_scale_of(cell, calibration),
        "policy": cell.policy,
        "world_size": cell.ranks,
        "speeds": speeds,
        "config": config,
    }
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
    """Return the records of a played cell in order of time, followed by its slices."""
    dated = sorted(played.records, key=lambda arrived: getattr(arrived[1], "at", arrived[0]))
    return [*(record for _, record in dated), *played.slices]


def other_links(cell: PredictedCell, calibration: Calibration) -> bool:
    """Return whether a cell has other links than the calibrated run."""
    return words_of(cell.links) != words_of(calibration.links)


def words_of(links: Links | None) -> list[str] | None:
    """Return the links as in `cluster.links`, whatever their seed; None: there are none."""
    return links.words if links is not None else None


def policy_settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of a run's policy."""
    return {key: value for key, value in group_of(spec.config, "policy").items() if key != "name"}


def otherwise(cell: PredictedCell, calibration: Calibration) -> list[str]:
    """Return, as text, in what the cell differs from the run besides the number of ranks."""
    spec = calibration.spec
    speeds, as_run = speeds_of(cell, calibration), speeds_of(replace(cell, speeds=(), healed=()), calibration)
    slowest = min(spec.speeds, default=1.0)
    slower = min(speeds, default=1.0) < slowest
    before, now = policy_settings(spec), dict(cell.settings)
    changed = [name for name in before | now if before.get(name) != now.get(name)]
    alone = _unlinked(cell, calibration)
    lines = {
        "other links: by the cost model": other_links(cell, calibration),
        f"policy {cell.policy}: what averages cost is that of {spec.policy}": cell.policy != spec.policy,
        f"other settings of the policy: {', '.join(changed)}": cell.policy == spec.policy and bool(changed),
        _drawn(cell, step_s_of(calibration)): cell.steps is not None,
        f"slower ranks than the calibrated {slowest:g}" if slower else "other speeds": speeds != as_run,
        "healed: step times of the fastest rank": bool(cell.healed) and speeds == as_run,
        alone: bool(alone),
    }
    return [line for line, holds in lines.items() if holds]


def _unlinked(cell: PredictedCell, calibration: Calibration) -> str:
    """Return which ranks beyond those of the run have no link, though others have; empty: none."""
    rules = cell.links.rules if cell.links is not None else ()
    if not rules or not all(rule.groups for rule in rules):
        return ""
    last = max(high for rule in rules for group in rule.groups for _, high in group)
    first = max(last + 1, calibration.ranks)
    which = f"rank {first} has" if first == cell.ranks - 1 else f"ranks {first} to {cell.ranks - 1} have"
    return f"{which} no link, so messages of theirs take no time" if first < cell.ranks else ""


def _drawn(cell: PredictedCell, step_s: float) -> str:
    """Return how step times are drawn."""
    shape = f"as in {cell.steps.name}" if isinstance(cell.steps, TracedSteps) else "as drawn from a distribution"
    mean = f"the emulated {1e3 * step_s:g} ms a step, by speed" if step_s else "the calibrated mean of a step"
    return f"step times scatter {shape}, around {mean}"


def _sharing(cell: PredictedCell, calibration: Calibration) -> list[str]:
    """Return, as text, how ranks share cores otherwise than in the run."""
    then, anew = shared_cores(calibration), shares_anew(cell, calibration)
    more = calibration.device == "cpu" and cell.ranks > calibration.ranks
    if cell.cores is None:
        alone = f"waits for a core as when {calibration.ranks} shared {then}" if anew else "has a core of its own"
        return [f"each rank {alone} (--cores N: all share N)"] if anew or more else []
    how = f"{cell.ranks} ranks share {plural(cell.cores, 'core')}"
    if not shares(cell):
        how = f"each rank has a core of its own, where {calibration.ranks} shared {then}"
    return [f"{how}: what that costs beside waiting is a guess"] if anew else []


def beyond(cell: PredictedCell, calibration: Calibration, shown: bool = False) -> list[str]:
    """Return, as text, what of a cell was not calibrated. `shown`: runs with other numbers of ranks show the error of
    predictions."""
    lines = list[str]()
    if cell.ranks > calibration.ranks:
        far = "far " if cell.ranks >= FAR * calibration.ranks else ""
        how = (
            "their error is that of runs with other numbers" if shown else "costs may not grow, or grow as their number"
        )
        lines.append(f"{far}more ranks than the {calibration.ranks} calibrated: {how}")
    if FAR * cell.ranks <= calibration.ranks:
        lines.append(f"far fewer ranks than the {calibration.ranks} calibrated: costs may not fall")
    lines += _sharing(cell, calibration)
    lines += otherwise(cell, calibration)
    played, own = samples_of(cell, calibration), epoch_of(cell, calibration)
    if played > own:
        lines.append(f"{played:,} samples an epoch, where the run has {own:,}")
    return lines

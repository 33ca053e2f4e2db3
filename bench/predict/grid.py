"""Which cells to predict: a grid of ranks, links and policies; and what-if variants of one cell. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from typing import Any, cast

from bench.predict.calibration import Calibration
from bench.predict.evidence import CalibratedCell, own_cell
from bench.predict.predicted_cell import PredictedCell, default_cores, speeds_of, step_s_of
from bench.predict.spec import PER_RANK
from ddp.core.network.links import MOST_BANDWIDTH, Links
from ddp.core.policies import POLICIES, meets_every_step
from ddp.settings import check_policy, make_policy

MOST_HEALED = 4
"""Most slow ranks that are healed one at a time, the slowest first."""
ANCHORS = ("anchor", "min_anchor", "max_anchor", "base")
"""Settings of policies for the steps of the slowest rank in a window."""


def grid(
    sources: Sequence[CalibratedCell],
    ranks: Sequence[int],
    links: Sequence[Links | None],
    policies: Sequence[str],
    **changes: Any,
) -> Iterator[tuple[PredictedCell, CalibratedCell]]:
    """Yield (cell, runs to predict it from). `changes`: fields of every cell. Without `policies`, the policy of the
    first run; without `cores`, those of `default_cores`. Raises ValueError if the policy cannot do with so many ranks."""
    for policy in policies or (str(sources[0].calibration.spec.policy),):
        for link in links:
            for size in ranks:
                source = calibrated_for(policy, size, sources)
                settings = settings_for(policy, size, source)
                check_policy(make_policy(policy, dict(settings)), size)
                about = {"ranks": size, "links": link, "policy": policy, "settings": settings}
                about["cores"] = default_cores(size, source.calibration)
                yield replace(own_cell(source.calibration), **about | changes), source


def settings_for(policy: str, ranks: int, source: CalibratedCell) -> tuple[tuple[str, Any], ...]:
    """Return the settings of a policy in a cell: those of the runs that it is predicted from, if they have that policy, but
    for settings with an entry for each rank if the numbers of ranks differ."""
    own = own_cell(source.calibration)
    settings = dict(own.settings) if policy == own.policy else {}
    if ranks != own.ranks:
        settings |= dict.fromkeys(settings.keys() & PER_RANK)
    return tuple(settings.items())


def calibrated_for(policy: str, ranks: int, sources: Sequence[CalibratedCell]) -> CalibratedCell:
    """Return the runs from which to predict a cell: those of its policy with the nearest number of ranks, else the
    first."""
    same = [each for each in sources if each.calibration.spec.policy == policy]
    return min(same, key=lambda each: abs(math.log2(ranks / each.calibration.ranks)), default=sources[0])


def faster(links: Links, factor: float) -> Links:
    """Return links with `factor` times the bandwidth. Raises ValueError beyond the largest possible one."""
    rules = tuple(
        replace(rule, link=replace(rule.link, bandwidth=rule.link.bandwidth * factor)) for rule in links.rules
    )
    return replace(links, rules=rules)


def anchored(cell: PredictedCell, anchor: int) -> PredictedCell:
    """Return a cell with a constant anchor, or the least one of a policy that varies it: steps of the slowest rank in a
    window. Raises ValueError for a policy without windows or such a setting, and for an anchor that it refuses."""
    if meets_every_step(cell.policy):
        raise ValueError(f"policy {cell.policy} meets in every step: it has no anchor")
    if not (names := _anchors(cell.policy)):
        raise ValueError(f"policy {cell.policy} has no setting for the steps in a window: {', '.join(ANCHORS)}")
    settings = dict(cell.settings) | dict.fromkeys(names, anchor)
    make_policy(cell.policy, settings)
    return replace(cell, settings=tuple(settings.items()))


def _anchors(policy: str) -> list[str]:
    return [field.name for field in fields(cast(Any, POLICIES[policy])) if field.name in ANCHORS]


def what_if(cell: PredictedCell, calibration: Calibration) -> Iterator[tuple[str, PredictedCell]]:
    """Yield (name, variant) of a cell: slow ranks healed, twice the bandwidth, other policies, longer windows."""
    speeds = speeds_of(cell, calibration) or (1.0,) * cell.ranks
    step_s = step_s_of(calibration)
    own = [step_s or calibration.steps[rank % calibration.ranks].mean() for rank in range(cell.ranks)]
    pace = [own[rank] / speeds[rank] for rank in range(cell.ranks)]
    slow = [rank for rank in range(cell.ranks) if pace[rank] > 1.05 * min(pace) and rank not in cell.healed]
    for rank in sorted(slow, key=lambda rank: -pace[rank])[:MOST_HEALED]:
        yield f"rank {rank} healed", replace(cell, healed=(*cell.healed, rank))
    rates = [rule.link.bandwidth for rule in cell.links.rules] if cell.links is not None else []
    if cell.links is not None and 2 * max(rates) <= MOST_BANDWIDTH:
        yield "twice the bandwidth", replace(cell, links=faster(cell.links, 2.0))
    for policy in POLICIES:
        if policy != cell.policy:
            yield f"policy {policy}", replace(cell, policy=policy, settings=())
    if not meets_every_step(cell.policy) and _anchors(cell.policy):
        for anchor in (10, 40, 160):
            yield f"windows of {anchor}", anchored(cell, anchor)

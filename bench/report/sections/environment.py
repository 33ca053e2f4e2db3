"""The machines, devices and versions that the runs were made with."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from typing import Any

from bench.base.environment import BUSY
from bench.base.number_format import plural
from bench.report.blocks import Block, Heading, Text, nonempty, plain
from bench.report.page import Page, size, table
from bench.results.schema import Metrics

BYTES = "_bytes"
"""How the name of an entry ends that counts bytes."""


def section(page: Page) -> list[Block]:
    """Return the environment: what all runs share, and where they differ."""
    if not page.runs:
        return []
    facts = ({"fact": name, "value": value} for name, value in _facts(page.runs))
    return nonempty(Heading("Environment"), Text(crowding(page.runs)), table(facts, left=2))


def crowding(runs: list[Metrics]) -> str:
    """Return a text on how many ranks shared how many processor cores, and how that limits speeds. Empty if no run
    trained on the CPU in real time."""
    on_cpu = [m for m in runs if set(m.devices) == {"cpu"} and m.source is None]
    cores = Counter(value for m in on_cpu if isinstance(value := m.env.get("cores"), int))
    if not cores:
        return ""
    counts = " or ".join(map(str, sorted(cores)))
    widest = max(m.world_size for m in on_cpu)
    text = f"All ranks are processes on **{counts} processor core{'s' * (counts != '1')}**, without a GPU"
    text = text if len(on_cpu) == len(runs) else f"{len(on_cpu)} of {len(runs)} runs are on {counts} processor cores"
    if widest > max(cores):
        share = max(cores) / widest
        text += (
            f": up to {widest} ranks shared them, so at {widest} ranks no way of training can reach more than "
            f"{share:.0%} of the ideal speed-up"
        )
    if busy := sum(BUSY in warning for m in runs for warning in m.warnings):
        crowded = f"{busy} of {plural(len(runs), 'run')}"
        text += f". In {crowded} other programs used the cores as well: speeds are too low there"
    if emulated := sorted({tuple(m.emulated_speeds) for m in runs if m.emulated_speeds}):
        speeds = ", ".join("/".join(f"{speed:g}" for speed in devices) for devices in emulated)
        text += f". Unequal devices are emulated ({speeds} of the speed of a core), which every label says"
    return text + "."


def _facts(runs: list[Metrics]) -> list[tuple[str, str]]:
    """Return (name, value) for each entry of the recorded environments. Where runs differ, the value lists all values
    with their numbers of runs."""
    entries: dict[str, list[Any]] = {"transport": [m.transport for m in runs]}
    entries["devices"] = [sorted(set(m.devices)) for m in runs]
    entries |= {
        f"git {key}": [m.git.get(key) for m in runs] for key in dict.fromkeys(key for m in runs for key in m.git)
    }
    entries |= {key: [m.env.get(key) for m in runs] for key in dict.fromkeys(key for m in runs for key in m.env)}
    return [
        (plain(_name(name)), plain(_summary([_shown(name, value) for value in values])))
        for name, values in entries.items()
    ]


def _name(entry: str) -> str:
    return entry.removesuffix(BYTES).replace("_", " ")


def _shown(entry: str, value: Any) -> str:
    """Return a recorded value as a person reads it."""
    if entry.endswith(BYTES) and isinstance(value, int):
        return size(value)
    if isinstance(value, list):
        return ", ".join(_shown("", each) for each in value) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "unknown"}[value]
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _summary(values: list[str]) -> str:
    counts = Counter(values)
    distinct = sorted(counts)
    if len(distinct) == 1:
        return distinct[0]
    if len(distinct) > 3:
        with suppress(ValueError):  # they are no numbers
            numbers = list(map(float, distinct))
            return f"{min(numbers):g} to {max(numbers):g}"
    shown = [f"{value} ({plural(counts[value], 'run')})" for value in distinct[:8]]
    return "; ".join([*shown, f"… and {len(distinct) - 8} more"] if len(distinct) > 8 else shown)

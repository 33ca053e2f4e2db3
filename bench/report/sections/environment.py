"""On what the numbers were made."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable

from bench.base.environment import BUSY
from bench.base.figures import plural
from bench.report.blocks import Block, Heading, Text, plain, told
from bench.report.page import Page, table
from bench.results.schema import Metrics


def section(page: Page) -> list[Block]:
    """What all runs share, and what differs."""
    runs = [run.metrics for cell in page.cells for run in cell.runs]
    if not runs:
        return []
    facts = [{"": name, "value": value} for name, value in _facts(runs)]
    return told(Heading("Environment"), Text(crowding(runs)), table(facts, left=2))


def crowding(runs: list[Metrics]) -> str:
    """How many ranks shared how many cores: what speeds of processors can say. Empty where devices are no processors."""
    on_cpu = [m for m in runs if m.devices and all(device == "cpu" for device in m.devices)]
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
    busy = sum(BUSY in warning for m in runs for warning in m.warnings)
    if busy:
        text += (
            f". In {busy} of {plural(len(runs), 'run')} other programs used the cores as well: speeds are too low there"
        )
    emulated = sorted({m.emulated_speeds and tuple(m.emulated_speeds) for m in runs if m.emulated_speeds})
    if emulated:
        speeds = ", ".join("/".join(f"{speed:g}" for speed in one) for one in emulated)
        text += f". Unequal devices are emulated ({speeds} of the speed of a core), which every label says"
    return text + "."


def _facts(runs: list[Metrics]) -> list[tuple[str, str]]:
    """Every entry of the recorded environments; where runs differ, all values with their number of runs."""
    readers: dict[str, Callable[[Metrics], object]] = {
        "transport": lambda m: m.transport,
        "devices": lambda m: sorted(set(m.devices)),
    }
    for key in dict.fromkeys(key for m in runs for key in m.git):
        readers[f"git {key}"] = lambda m, key=key: m.git.get(key)  # type: ignore[misc]
    for key in dict.fromkeys(key for m in runs for key in m.env):
        readers[key] = lambda m, key=key: m.env.get(key)  # type: ignore[misc]
    return [(plain(name), plain(_values([_text(read(m)) for m in runs]))) for name, read in readers.items()]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _values(values: list[str]) -> str:
    counts = Counter(values)
    distinct = sorted(counts)
    if len(distinct) == 1:
        return distinct[0]
    numbers = _floats(distinct)
    if numbers and len(distinct) > 3:
        return f"{min(numbers):g} to {max(numbers):g}"
    told = [f"{value} ({plural(counts[value], 'run')})" for value in distinct[:8]]
    return "; ".join([*told, f"… and {len(distinct) - 8} more"] if len(distinct) > 8 else told)


def _floats(texts: list[str]) -> list[float]:
    try:
        return [float(text) for text in texts]
    except ValueError:
        return []

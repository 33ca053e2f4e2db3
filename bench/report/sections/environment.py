"""On what the numbers were made, and the commands that make them again."""

from __future__ import annotations

import json
from collections.abc import Callable

from bench.report.page import Page, plural, table
from bench.reproduce import command
from bench.schema import Metrics


def section(page: Page) -> str:
    """What all runs share, what differs, and a command per cell."""
    runs = [run.metrics for cell in page.cells for run in cell.runs]
    if not runs:
        return ""
    facts = [{"": name, "value": value} for name, value in _facts(runs)]
    commands = "\n".join(command(cell.runs) for cell in page.cells)
    return "\n\n".join(
        [
            "## Environment",
            table(facts, left=2),
            "## Reproduce",
            f"One line for each cell, with all its seeds ({plural(len(runs), 'run')} in all):",
            f"```sh\n{commands}\n```",
        ]
    )


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
    return [(name, _values([_text(read(m)) for m in runs])) for name, read in readers.items()]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _values(values: list[str]) -> str:
    distinct = sorted(set(values))
    if len(distinct) == 1:
        return distinct[0]
    numbers = _floats(distinct)
    if numbers and len(distinct) > 3:
        return f"{min(numbers):g} to {max(numbers):g}"
    return "; ".join(f"{value} ({plural(values.count(value), 'run')})" for value in distinct)


def _floats(texts: list[str]) -> list[float]:
    try:
        return [float(text) for text in texts]
    except ValueError:
        return []

"""Where the files of the harness lie."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
ROOT = PACKAGE.parent
"""The source tree, or where it is installed."""
CONF = (PACKAGE / "conf").resolve()
"""Hydra's groups; in a source tree a link to the folder of that name beside `bench`, as `baselines` and `models` are."""
RUNS = Path("runs")
"""Where runs are written unless `output` says otherwise, seen from where the command is called."""
BASELINES = (PACKAGE / "baselines").resolve()
"""The committed references."""
METRICS_SCHEMA = PACKAGE / "metrics.schema.json"
"""JSON schema of `metrics.json`."""


def experiments(conf: Path, presets: Path | None) -> dict[str, Path]:
    """Return the files of experiments by their names; those in a user's `presets` go before others."""
    folders = [conf] if presets is None else [conf, presets]
    files = {file.stem: file for folder in folders for file in (folder / "experiment").glob("*.yaml")}
    return dict(sorted(files.items()))

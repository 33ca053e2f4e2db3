"""Where the files lie that come with the harness."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The source tree, or where it is installed."""
CONF = ROOT / "conf"
"""Hydra's groups."""
BASELINES = ROOT / "baselines"
"""The committed references."""
METRICS_SCHEMA = ROOT / "bench" / "metrics.schema.json"
"""JSON schema of `metrics.json`."""

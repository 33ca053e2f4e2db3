"""The JSON Schema of a baseline file, committed beside this module. To write it: `python -m
bench.validate.baselines.schema`."""

from __future__ import annotations

import json
from pathlib import Path

from bench.validate.baselines.reference import Reference

SCHEMA_FILE = Path(__file__).with_name("reference.schema.json")


def json_schema() -> str:
    """Return the JSON Schema of a baseline file."""
    return json.dumps(Reference.model_json_schema(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    SCHEMA_FILE.write_text(json_schema(), encoding="utf-8")

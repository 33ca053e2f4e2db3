"""What `bench prove` finds, as objects, for tables that set it beside what is published. Knows no experiment."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def proved(*words: str, steps: int, batch: int) -> dict[str, Any]:
    """Return the JSON of `bench prove` with these overrides. RuntimeError, with what it said, where it wrote none."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "proof.json"
        options = ("--steps", str(steps), "--batch", str(batch), "--json", str(path))
        command = [sys.executable, "-m", "bench", "prove", *words, *options]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if not path.is_file():
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
        body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return body


def worst(proof: dict[str, Any], name: str) -> float:
    """Return the largest difference over the steps of a proof."""
    return max((step[name] for step in proof["steps"] if step[name] is not None), default=0.0)

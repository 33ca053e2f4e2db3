"""What a page and a timeline have of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ddp


def pieces(page: Path) -> dict[str, Any]:
    """What an exported page holds of its only run, by kind."""
    return {piece["kind"]: piece["body"] for piece in of_page(page.read_text())}


def of_page(text: str) -> list[dict[str, Any]]:
    """The pieces that an exported page holds."""
    start = text.index('{"root":')
    pieces: list[dict[str, Any]] = json.JSONDecoder().raw_decode(text[start:].replace("\\u003c", "<"))[0]["pieces"]
    return pieces


def check_timeline(timeline: ddp.Timeline, folder: Path, kinds: set[str], ranks: set[int]) -> None:
    trace = json.loads(timeline.save_json(folder / "timeline.json").read_text())
    assert any(event["ph"] == "X" for event in trace["traceEvents"])
    rows = [line.split(",") for line in timeline.save_csv(folder / "timeline.csv").read_text().splitlines()[1:]]
    assert {row[1] for row in rows} >= kinds
    assert {int(row[0]) for row in rows} == ranks
    assert timeline.save_html(folder / "timeline.html").read_text().startswith("<!doctype html>")

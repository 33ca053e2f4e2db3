"""Makes the pictures of page one at the head of README.md and of the site from a recorded sweep and its verdicts.

Needs Chromium. A picture contains the digest of the text that it shows, so that a test can compare it with the record
without a browser.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo
from pydantic import TypeAdapter

from bench.base.style import styled
from bench.base.writing import write_bytes, write_text
from bench.report import html, markdown
from bench.report.blocks import Block, LeadText
from bench.report.page import Page
from bench.report.sections import answer
from bench.results.cells import cells
from bench.results.runfolder import Run, find_runs
from bench.results.schema import Metrics
from bench.validate import judge_cells
from bench.validate.verdicts.verdict import Verdict
from benchmarks.documents import DOCS, dark_twin, paletted

RECORD = DOCS / "readme" / "page.json"
PICTURE = DOCS / "images" / "page-one.png"
DARK = dark_twin(PICTURE)
"""The same for a dark page."""
SIZE = (1400, 900)
"""Pixels of the window; the picture has what it shows beside the contents."""
FIGURES = "figures"
"""Key of the digest in the picture."""
VERDICTS = TypeAdapter(list[Verdict])


def record(root: Path, baselines: Path) -> None:
    """Put the runs of a tree, and what is judged of them, into the record."""
    runs, _ = find_runs(root)
    verdicts = judge_cells(cells(runs), [], baselines).verdicts
    # Windows and plans are most of a result, and nothing here shows them.
    short = [run.metrics.model_copy(update={"elche": None}).model_dump(mode="json") for run in runs]
    body = {"runs": short, "verdicts": VERDICTS.dump_python(list(verdicts), mode="json")}
    write_text(RECORD, json.dumps(body) + "\n")


def recorded() -> tuple[list[Metrics], list[Verdict]]:
    """Return the results of the sweep, and its verdicts."""
    body = json.loads(RECORD.read_bytes())
    return [Metrics.model_validate(each) for each in body["runs"]], VERDICTS.validate_python(body["verdicts"])


def blocks(folder: Path) -> list[Block]:
    """Return page one of the record; its picture goes into `folder`."""
    results, verdicts = recorded()
    runs = [Run(folder / m.model / m.mode / m.run_id, m) for m in results]
    with styled():
        return answer.section(Page(folder, folder, tuple(cells(runs)), (), tuple(verdicts)))


def digest(shown: Sequence[Block]) -> str:
    """Return what the picture bears of the text that it shows."""
    return sha256(markdown.render(shown).encode()).hexdigest()


def sentence(shown: Sequence[Block]) -> str:
    """Return the answer, as the text in place of the picture."""
    return next(block.text for block in shown if isinstance(block, LeadText)).replace("*", "").replace("`", "")


def draw() -> None:
    """Make the pictures from the record. Raises ValueError without a browser."""
    from playwright.sync_api import sync_playwright

    found = os.environ.get("BENCH_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        raise ValueError("no browser: set BENCH_CHROMIUM to the path of a Chromium")
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        shown = blocks(folder)
        write_text(folder / "report.html", html.render(shown, folder, answer.TITLE))
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.goto((folder / "report.html").as_uri())
        page.add_style_tag(content="main { align-self: start }")  # no blank down to the window's edge
        for place in (PICTURE, DARK):
            page.emulate_media(color_scheme="dark" if place == DARK else "light")
            _save(page.locator("main").screenshot(), place, digest(shown))
        browser.close()


def _save(pixels: bytes, place: Path, figures: str) -> None:
    info = PngInfo()
    info.add_text(FIGURES, figures)
    file = io.BytesIO()
    picture = paletted(Image.open(io.BytesIO(pixels)).convert("RGB"))
    picture.save(file, "PNG", compress_level=9, pnginfo=info)
    write_bytes(place, file.getvalue())

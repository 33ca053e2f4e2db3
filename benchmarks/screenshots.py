"""Takes pictures of page one of a report, the page of one run, its timeline, the dashboard and the site, at 1400 and
400 pixels, light and dark.

python -m benchmarks.screenshots    # or make screenshots; needs Chromium, and mkdocs for the site

The runs are those of `docs/readme`, a recorded one, and simulated ones, so that pictures are equal wherever browser and
fonts are. They contain the names of both. A test compares them pixel by pixel.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from bench.base.writing import write_bytes, write_text
from bench.dashboard import page as dashboard
from bench.dashboard.board import whole
from bench.report import html, write_report
from bench.report.sections import answer
from bench.results.recompute import header_of
from bench.results.runfolder import read_records
from bench.timeline import write_timeline
from bench.timeline.about import about
from benchmarks import frame, page_one
from benchmarks.documents import DOCS, paletted
from tests.bench.streams import make_spec, write_run
from tests.browser import FLAGS, NAMES

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PLACE = DOCS / "images" / "screens"
SIZES = {1400: 900, 400: 1600}
"""Width and height of the window, pixels: of a telephone two screens, the second with the figure of page one."""
THEMES = ("light", "dark")
UNEQUAL = Path(__file__).parent / "golden/recorded/lenet/nccl_cadence/w2-s0-e0a77d4d"
"""A recorded run of which one rank is half as fast as the other."""
STARTED = "2026-11-21T12:00:00+00:00"
"""Time that its timeline shows as that of the launch."""
MADE_BY = "made by"
"""Key of the browser and the fonts in a picture."""


def pages(folder: Path) -> dict[str, Path]:
    """Write the pages into `folder`; return name -> file."""
    found = {"page-one": folder / "page-one" / "report.html"}
    found["page-one"].parent.mkdir()
    shown = page_one.blocks(found["page-one"].parent)
    write_text(found["page-one"], html.render(shown, found["page-one"].parent, answer.TITLE))
    runs = folder / "runs"
    for mode in ("solo", "nccl_sync", "nccl_cadence"):
        write_run(runs, make_spec(mode, epochs=8))
    write_report(runs / "mlp" / "nccl_cadence", folder / "run")
    found["run"] = folder / "run" / "report.html"
    found["timeline"] = timeline(folder / "timeline")
    found["dashboard"] = folder / "dashboard.html"
    write_text(found["dashboard"], dashboard.exported(whole(runs), Path("runs")))
    return found


def timeline(folder: Path) -> Path:
    """Write the timeline of `UNEQUAL` into `folder`; return its page."""
    records = list(read_records(UNEQUAL))
    launched = header_of(records).launched
    folder.mkdir()
    write_text(folder / "timeline.json", json.dumps({"otherData": {"launched": launched, "started": STARTED}}))
    write_timeline(folder, records, about(UNEQUAL), launched, picture=False)
    return folder / "timeline.html"


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser. Raises ValueError without one."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("BENCH_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise ValueError("no browser: set BENCH_CHROMIUM to the path of a Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


def made_by(browser: Browser) -> str:
    """Return what pixels depend on: the browser and the fonts that it takes."""
    fonts = []
    for family in ("system-ui", "monospace", "sans-serif"):
        with_fontconfig = shutil.which("fc-match")
        fonts += [subprocess.check_output(["fc-match", family], text=True).strip()] if with_fontconfig else []
    return " ".join([f"Chromium {browser.version}", *fonts])


def picture(browser: Browser, page: Path, width: int, theme: str) -> Image.Image:
    """Return what the window shows of a page."""
    size = {"width": width, "height": SIZES[width]}
    context = browser.new_context(viewport=size, color_scheme=theme, reduced_motion="reduce")  # type: ignore[arg-type]
    tab = context.new_page()
    tab.goto(page.as_uri())
    tab.wait_for_load_state("networkidle")
    pixels = tab.screenshot(animations="disabled")
    context.close()
    return paletted(Image.open(io.BytesIO(pixels)).convert("RGB"))


def name_of(page: str, width: int, theme: str) -> str:
    """Return the name of a picture's file."""
    return f"{page}-{width}-{theme}.png"


def draw(browser: Browser, found: dict[str, Path]) -> None:
    """Write all pictures of these pages."""
    info = PngInfo()
    info.add_text(MADE_BY, made_by(browser))
    PLACE.mkdir(parents=True, exist_ok=True)
    for name, page in found.items():
        for width in SIZES:
            for theme in THEMES:
                file = io.BytesIO()
                picture(browser, page, width, theme).save(file, "PNG", compress_level=9, pnginfo=info)
                write_bytes(PLACE / name_of(name, width, theme), file.getvalue())
                print(PLACE / name_of(name, width, theme))


def main() -> None:
    """Make the pictures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.screenshots", description=(__doc__ or "").partition("\n")[0]
    )
    parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = pages(Path(name))
        if find_spec("mkdocs") is None:
            print("the site is left out: mkdocs is not installed (make site brings it)", file=sys.stderr)
        else:
            from benchmarks.site import build

            build(Path(name) / "site")
            found["site"] = Path(name) / "site" / "index.html"
        try:
            with chromium() as browser:
                draw(browser, found)
        except ValueError as error:
            sys.exit(str(error))


if __name__ == "__main__":
    frame.run_command(main)

"""Pictures for dark pages: drawn like their light twins, in the colours of a dark report."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image, ImageColor

from bench.base.dark_pixels import DARK_COLOURS, DIM, FAINT, INK, PAPER, darkened
from bench.base.drawing import PAGE_COLOURS
from bench.base.mode_styles import BLUE, PALETTE
from bench.base.style import save_picture, styled
from bench.report.html import ASSETS
from benchmarks import curve_pictures
from benchmarks.documents import dark_twin


def test_its_colours_are_those_of_a_dark_report() -> None:
    (sheet,) = re.findall(r':root\[data-theme="dark"\] \{([^}]*)\}', (ASSETS / "report.css").read_text())[:1]
    colours = dict(re.findall(r"--(\w+): (#\w{6})", sheet))
    assert tuple(colours[name] for name in ("back", "text", "dim", "line")) == (PAPER, INK, DIM, FAINT)
    assert DARK_COLOURS["#cc3311"] == colours["ccc3311"]
    assert PALETTE.items() <= DARK_COLOURS.items()


def test_pixels_and_vectors_have_one_dark_colour_for_each() -> None:
    words = {"currentColor": INK, "--dim": DIM, "--line": FAINT}
    on_page = {colour: name.removeprefix("var(").partition(",")[0] for colour, name in PAGE_COLOURS.items()}
    assert {colour: words.get(name, DARK_COLOURS.get(colour)) for colour, name in on_page.items()} == DARK_COLOURS


def test_opacity_is_kept_and_an_unknown_colour_too() -> None:
    assert darkened((0, 0, 0, 0.5)) == to_rgba(INK, 0.5)
    assert darkened("#4477aa") == "#4477aa"
    assert darkened(None) is None


def test_lines_marks_areas_and_texts_change_their_colours(tmp_path: Path) -> None:
    with styled():
        figure = Figure(figsize=(3, 2))
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=BLUE, lw=6)
        axes.scatter([0.2, 0.8], [0.8, 0.2], s=400, color="#000000")
        axes.fill_between([0, 1], [0.4, 0.4], [0.6, 0.6], color="#cc3311", lw=0)
        axes.set_axis_off()
        for dark in (False, True, False):
            save_picture(figure, tmp_path / f"{dark}.png", dark)
    seen = []
    for dark in (False, True):
        with Image.open(tmp_path / f"{dark}.png") as image:
            counts = image.convert("RGB").getcolors(1 << 16)
        assert counts is not None
        seen.append({colour for count, colour in counts if count > 100})
    for colour in (BLUE, "#000000", "#cc3311", "#ffffff"):
        twin = PAPER if colour == "#ffffff" else DARK_COLOURS[colour]
        for expected, colours in zip((colour, twin), seen, strict=True):
            near = min(math.dist(ImageColor.getrgb(expected), each) for each in colours)
            assert near < 8, "a palette moves a colour a little"
    assert max(map(min, seen[1])) < 250, "nothing is white"


@pytest.mark.parametrize("name", curve_pictures.CURVES)
def test_learning_curves_in_the_documents_are_drawn_from_their_data(tmp_path: Path, name: str) -> None:
    """Pixels, not bytes: another zlib packs them otherwise."""
    for place in (kept := curve_pictures.picture(name), dark_twin(kept)):
        with styled():
            save_picture(curve_pictures.drawing(name), tmp_path / place.name, dark=place != kept)
        with Image.open(tmp_path / place.name) as new, Image.open(place) as old:
            assert new.size == old.size
            assert new.convert("RGB").tobytes() == old.convert("RGB").tobytes(), "python -m benchmarks.curve_pictures"
    text = curve_pictures.DOCUMENT.read_text(encoding="utf-8")
    assert curve_pictures.words(name) in text
    assert "\n".join([*curve_pictures.lines(text), ""]) == text

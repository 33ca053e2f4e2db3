"""Colours of modes: they can be read on light and dark pages, and whoever is colour-blind tells them apart."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.base.mode_styles import PALETTE, SOLO, mode_style
from bench.base.style import CATEGORIES
from bench.dashboard import page
from bench.report.html import ASSETS
from ddp.engine.modes import modes

Colour = NDArray[np.float64]
LEAST, LETTERS = 3.0, 4.5
"""Contrast by WCAG 2.2, of a line and of a text."""
APART = 0.065
"""Distance in OKLab; what can just be told apart side by side is at 0.02."""
GROUNDS = {"light": ("#ffffff", "#f4f5f7"), "dark": ("#14171a", "#1b2027", "#12161b")}
INKS = {"light": "#000000", "dark": "#e6e8ea"}
COLOURS = {"light": list(PALETTE), "dark": list(PALETTE.values())}
EYES = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
"""What is seen of linear RGB: Machado, Oliveira and Fernandes 2009, in full severity."""
CONES = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
LAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)
"""OKLab, Ottosson 2020."""


def test_kinds_of_time_have_the_colours_of_the_report_on_the_dashboard() -> None:
    (text,) = re.findall(r"const KINDS = \{(.*)\};", Path(page.__file__).with_name("run.js").read_text())
    assert dict(re.findall(r'(\w+): "(#\w+)"', text)) == {k: v for k, v in CATEGORIES.items() if k != "other"}


def linear(colour: str) -> Colour:
    parts = np.array([int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    low, high = sorted(float(linear(each) @ [0.2126, 0.7152, 0.0722]) + 0.05 for each in (one, other))
    return high / low


def distance(one: str, other: str, eyes: str) -> float:
    seen = [np.clip(EYES[eyes] @ linear(colour), 0, 1) for colour in (one, other)]
    a, b = (LAB @ np.cbrt(CONES @ each) for each in seen)
    return float(np.linalg.norm(a - b))


@pytest.mark.parametrize("page_is", GROUNDS)
def test_each_colour_is_seen_and_read_on_its_page(page_is: str) -> None:
    for colour in COLOURS[page_is]:
        assert contrast(colour, GROUNDS[page_is][0]) >= LETTERS, colour
        assert all(contrast(colour, ground) >= LEAST for ground in GROUNDS[page_is]), colour


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("page_is", GROUNDS)
def test_every_two_colours_are_told_apart(page_is: str, eyes: str) -> None:
    pairs = combinations([INKS[page_is], *COLOURS[page_is]], 2)
    assert not [(one, other) for one, other in pairs if distance(one, other, eyes) < APART]


def test_the_measure_is_that_of_known_colours() -> None:
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert contrast("#56b4e9", "#ffffff") < LEAST
    assert distance("#882255", "#aa4466", "deuteranopia") < 2 * APART
    assert distance("#ff0000", "#00ff00", "all cones") > distance("#ff0000", "#00ff00", "deuteranopia")


def test_report_and_dashboard_show_these_colours_alone() -> None:
    assert {mode_style(mode)[0] for mode in (*modes(), "of_mine") if mode != SOLO} <= set(PALETTE)
    report, dashboard = (ASSETS / "report.css").read_text(), (page.HERE / "page.css").read_text()
    assert (report.count("/*modes*/"), dashboard.count("/*modes*/")) == (2, 1), "dark by itself, and by the button"
    lines = re.findall(r"--c\d: var\(--c(\w{6}), #(\w{6})\)", dashboard)
    assert len(lines) == len(set(lines)) == 8
    assert {f"#{colour}" for pair in lines for colour in pair} <= set(PALETTE)
    assert all(f"--c{light[1:]}: {dark};" in page.live() for light, dark in PALETTE.items())

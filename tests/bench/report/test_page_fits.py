"""Page one within a window of 1,400 x 900 pixels, as full as the committed reports are."""

from __future__ import annotations

import re
from functools import partial
from itertools import combinations
from pathlib import Path

import pytest
from playwright.sync_api import Page

from bench.base.style import styled
from bench.base.writing import write_text
from bench.report import html
from bench.report.sections import answer
from tests.bench.report import drawn
from tests.browser import browser, page  # noqa: F401
from tests.slow import slow

WIDTH, HEIGHT, WORDS = 1400, 900, 1500
LABELS = """[...document.querySelectorAll('.plots text')].map((e) => [e.textContent, e.getBoundingClientRect()])
    .filter(([text]) => /^([0-9]+|one device|[a-z]+_.*)$/.test(text.trim()))
    .map(([text, box]) => [text, box.left, box.top, box.right, box.bottom])"""
FOLDED = """'<details class="section" open><summary><h2>More</h2></summary>a word</details>'"""
MARGIN = 1.5
"""Pixels of a text's box that no ink is in."""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    many = partial(drawn.example, others=drawn.MANY)
    for name, made in {"example": drawn.example, "many": many, "scaling": drawn.scaling}.items():
        folder = tmp_path_factory.mktemp(name)
        with styled():
            blocks = answer.section(made(folder))
        found[name] = folder / "report.html"
        write_text(found[name], html.render(blocks, folder, answer.TITLE))
    return found


@pytest.mark.parametrize("name", ["example", *slow("many"), "scaling"])
def test_all_of_page_one_is_in_the_window(page: Page, pages: dict[str, Path], name: str) -> None:  # noqa: F811
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto(pages[name].as_uri())
    ends = "[...document.querySelectorAll('main > *')].map((e) => e.getBoundingClientRect().bottom)"
    assert 500 < max(page.evaluate(ends)) <= HEIGHT
    assert 500 < len(page.inner_text("main").split()) <= WORDS


@pytest.mark.parametrize("name", ["example", *slow("many"), "scaling"])
def test_page_one_is_one_printed_page_and_what_is_unfolded_begins_the_next(
    page: Page,  # noqa: F811
    pages: dict[str, Path],
    name: str,
) -> None:
    page.goto(pages[name].as_uri())
    assert printed(page) == 1
    page.evaluate(f"document.querySelector('main').insertAdjacentHTML('beforeend', {FOLDED})")
    assert printed(page) == 2


def printed(page: Page) -> int:  # noqa: F811
    """Count the pages of paper."""
    return len(re.findall(rb"/Type\s*/Page\b", page.pdf(prefer_css_page_size=True)))


def test_on_a_telephone_what_is_recommended_stands_first_and_nothing_is_blank(
    page: Page,  # noqa: F811
    pages: dict[str, Path],
) -> None:
    page.set_viewport_size({"width": 400, "height": HEIGHT})
    page.goto(pages["example"].as_uri())
    table = page.locator(".verdicts:has(tr.marked)").first
    tops = table.locator("tbody tr").evaluate_all(
        "(rows) => rows.map((e) => [e.matches('.marked'), e.getBoundingClientRect().top])"
    )
    assert not tops[0][0], "nor is it the first of the table"
    assert min(tops, key=lambda each: each[1])[0]
    whys = table.locator("td.why").evaluate_all("(all) => all.map((e) => [e.innerText.trim(), e.checkVisibility()])")
    assert len({bool(text) for text, _ in whys}) == 2
    assert all(bool(text) == shown for text, shown in whys)


@pytest.mark.parametrize(("name", "last"), [("example", "9"), ("many", "16")])
def test_no_label_of_a_point_lies_on_another(page: Page, pages: dict[str, Path], name: str, last: str) -> None:  # noqa: F811
    """As the browser has set them, ticks of the axes included."""
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto(pages[name].as_uri())
    labels = page.evaluate(LABELS)
    assert [name for name, *_ in labels].count(last) == 2
    for (one, *a), (other, *b) in combinations(labels, 2):
        apart = a[2] - MARGIN <= b[0] or b[2] - MARGIN <= a[0] or a[3] - MARGIN <= b[1] or b[3] - MARGIN <= a[1]
        assert apart, (one, other)


@pytest.mark.parametrize("name", ["example", "scaling"])
def test_the_committed_page_one_is_in_the_window(page: Page, name: str) -> None:  # noqa: F811
    """Its cells are longer than those of made-up runs."""
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.goto((drawn.REPORTS / name / "report.html").as_uri())
    ends = "[...document.querySelectorAll('main > :not(details)')].map((e) => e.getBoundingClientRect().bottom)"
    assert 500 < max(page.evaluate(ends)) <= HEIGHT

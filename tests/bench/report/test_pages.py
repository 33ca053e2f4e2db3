"""The pages that people read: whoever sees little, or has a keyboard or a telephone alone, reads them as well.

Contrast, names, headings and roles are axe's to judge, which the extra `dev` has.
"""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops
from playwright.sync_api import Browser, Page, expect

from bench.base.mode_styles import mode_style
from bench.dashboard import page as dashboard
from bench.dashboard.board import whole
from bench.report import write_report
from benchmarks import screenshots
from benchmarks.site import ROOT
from tests.bench.report.generated import plant
from tests.bench.streams import make_spec, write_run
from tests.browser import browser, page  # noqa: F401
from tests.slow import few, slow

WORDS, BYTES = 1500, 2_000_000
COMMITTED = {name: ROOT / "reports" / name / "report.html" for name in ("example", "scaling")}
READABLE = 9
"""Pixels of a text in a plot, at 400 pixels: three times as many of a telephone's."""
UNFOLD = "document.querySelectorAll('details').forEach((each) => (each.open = true))"
REACHED = (
    "[...document.querySelectorAll('a[href], button, summary, input, [tabindex]')]"
    ".filter((each) => each.checkVisibility())"
)
CONFIGURED = """() => { const keys = [...state.rows.keys()].sort();
    const config = (i) => (i ? [["policy.no_divergence_guard", "false"]] : [["policy", "null"]]);
    keys.forEach((key, i) => state.about.set(key, { config: config(i) }));
    choose(keys); }"""
"""Chooses all runs, after each but the first got a policy."""
BAD = """<html lang="en"><title>bad</title><main><h1>a</h1><h3>skipped</h3>
<img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=">
<p style="color: #aaa; background: #fff">faint</p><button></button></main></html>"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = screenshots.pages(folder)
    plant(folder / "twenty", 20)
    write_report(folder / "twenty", folder / "many")
    return found | COMMITTED | {"many": folder / "many" / "report.html"}


def opened(browser: Browser, address: str, width: int, theme: Any = "light") -> Page:  # noqa: F811
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce", bypass_csp=True
    )
    tab = context.new_page()
    tab.goto(address)
    tab.wait_for_load_state("networkidle")
    tab.evaluate(UNFOLD)
    return tab


def violations(tab: Page) -> list[str]:
    """What axe finds wrong; a rule that it could not judge by itself is none."""
    from axe_playwright_python.sync_playwright import Axe

    response = Axe().run(tab).response
    assert len(response["passes"]) > 5, "the rules have run"
    return [f"{each['id']}: {node['target']}" for each in response["violations"] for node in each["nodes"]]


@pytest.mark.parametrize(
    ("name", "look"),
    few(["page-one", "run", "dashboard", *COMMITTED], [(1400, "light"), (1400, "dark"), (400, "dark")]),
)
def test_axe_finds_nothing_wrong(
    browser: Browser,  # noqa: F811
    pages: dict[str, Path],
    name: str,
    look: tuple[int, str],
) -> None:
    pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install -e '.[dev]'")
    tab = opened(browser, pages[name].as_uri(), *look)
    assert violations(tab) == []
    tab.context.close()


@pytest.mark.parametrize("name", COMMITTED)
def test_a_committed_report_names_no_folder_outside_the_repository(name: str) -> None:
    """Runs lie beside `reports`, wherever the repository is."""
    links = re.findall(r'href="(\.\./[^"]*)"', COMMITTED[name].read_text())
    assert [link for link in links if not (ROOT / "reports" / name / link).resolve().is_relative_to(ROOT)] == []


def test_axe_finds_what_is_wrong(browser: Browser) -> None:  # noqa: F811
    pytest.importorskip("axe_playwright_python", reason="axe is not installed: pip install -e '.[dev]'")
    tab = opened(browser, "about:blank", 1400)
    tab.set_content(BAD)
    rules = {line.partition(":")[0] for line in violations(tab)}
    assert {"color-contrast", "heading-order", "image-alt", "button-name"} <= rules
    tab.context.close()


@pytest.mark.parametrize("name", ["run", "dashboard"])
def test_the_keyboard_reaches_all_that_can_be_pressed(browser: Browser, pages: dict[str, Path], name: str) -> None:  # noqa: F811
    tab = opened(browser, pages[name].as_uri(), 1400)
    count = tab.evaluate(f"window.all = {REACHED}; window.seen = new Set(); window.all.length")
    for _ in range(count + 5):
        tab.keyboard.press("Tab")
        tab.evaluate("window.seen.add(document.activeElement)")
    left = tab.evaluate("window.all.filter((e) => !window.seen.has(e)).map((e) => e.outerHTML.slice(0, 200))")
    assert count > 10
    assert left == []
    tab.context.close()


def test_runs_beside_each_other_have_the_colours_of_the_report(browser: Browser, pages: dict[str, Path]) -> None:  # noqa: F811
    modes = ("nccl_cadence", "nccl_sync", "solo")
    tab = opened(browser, pages["dashboard"].as_uri(), 1400)
    keys = tab.eval_on_selector_all("#runs li", "(all) => all.map((e) => e.dataset.key)")
    tab.evaluate("(keys) => choose(keys)", sorted(keys))
    expect(tab.locator("#detail .chart")).to_have_count(3)
    lines = tab.locator("#detail .chart").first.locator("svg:not(.swatch) > path")
    strokes = lines.evaluate_all("(all) => all.map((e) => getComputedStyle(e).stroke)")
    assert strokes == [shown_as(mode_style(mode)[0]) for mode in modes[:2]] + ["rgb(28, 33, 40)"], "solo's is the ink"
    ticks = tab.eval_on_selector_all(".chart text[text-anchor=end]", "(all) => all.map((e) => e.textContent)")
    assert not [text for text in ticks if re.fullmatch(r"0\.\d*0", text)], "no digit too many"
    assert tab.eval_on_selector_all(
        "#detail .chart svg[role=img]", "(all) => all.every((e) => e.querySelector('.unit'))"
    )
    tab.context.close()


def test_on_a_telephone_runs_beside_each_other_are_cards_and_keys_stay_in_sight(
    browser: Browser,  # noqa: F811
    pages: dict[str, Path],
) -> None:
    tab = opened(browser, pages["dashboard"].as_uri(), 400)
    tab.evaluate(CONFIGURED)
    tab.wait_for_selector("table.differ td")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    assert tab.evaluate("(e => e.scrollWidth <= e.clientWidth)(document.querySelector('table.compared').parentElement)")
    cells = tab.eval_on_selector_all("table.compared td", "(all) => all.slice(2, 8).map((e) => e.dataset.name)")
    assert cells == ["epochs", "time left", "time", "loss", "evaluation", "samples/s"], "each cell says what it is"
    tab.evaluate("document.querySelector('table.differ').parentElement.scrollLeft = 60")
    key = "document.querySelector('table.differ td').getBoundingClientRect()"
    assert tab.evaluate(f"{key}.left") > 0, "the key does not move with the values"
    assert 90 < tab.evaluate(f"{key}.width") < 200
    keys = tab.eval_on_selector_all("table.differ td:first-child", "(all) => all.map((e) => e.textContent)")
    assert keys == ["policy.no_divergence_guard"], "it says as much of the run without a policy"
    tab.context.close()


def test_seeds_of_one_mode_are_told_apart(page: Page, tmp_path: Path) -> None:  # noqa: F811
    for seed in (0, 1, 2):
        write_run(tmp_path / "runs", make_spec("cpu_async", seed=seed, epochs=4))
    (tmp_path / "page.html").write_text(dashboard.exported(whole(tmp_path / "runs"), Path("runs")))
    page.goto((tmp_path / "page.html").as_uri())
    page.evaluate("choose([...document.querySelectorAll('#runs li')].map((e) => e.dataset.key).sort())")
    expect(page.locator("#detail .chart")).to_have_count(3)
    for chart in page.locator("#detail .chart").all():
        looks = "(all) => all.map((e) => e.getAttribute('stroke-dasharray'))"
        dashes = chart.locator("svg:not(.swatch) > path").evaluate_all(looks)
        assert len(set(dashes)) == 3, "each line has a dash of its own, and its name shows it"
        assert chart.locator(".legend path").evaluate_all(looks) == dashes
        assert sorted(chart.locator("text.end").all_text_contents()) == ["s0", "s1", "s2"]
        places = chart.locator("text.end").evaluate_all("(all) => all.map((e) => e.getBoundingClientRect().top)")
        assert min(b - a for a, b in pairwise(sorted(places))) >= 10, "no word on another"
        heights = chart.locator(".legend span").evaluate_all("(all) => all.map((e) => e.clientHeight)")
        assert max(heights) < 24, "the piece of a line stands beside the name"
    charts = page.locator("#detail .chart svg[role=img]").evaluate_all("(all) => all.map((e) => e.ariaLabel)")
    assert [text.partition(":")[0] for text in charts] == ["loss", "accuracy", "samples/s"], "each says its unit"
    assert all(text.endswith(", against seconds") for text in charts)


def shown_as(colour: str) -> str:
    """A colour as a browser names it."""
    return f"rgb({', '.join(str(int(colour[k : k + 2], 16)) for k in (1, 3, 5))})"


def test_a_fold_opens_by_the_keyboard(page: Page, pages: dict[str, Path]) -> None:  # noqa: F811
    page.goto(pages["run"].as_uri())
    page.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert page.locator("details").first.evaluate("(fold) => fold.open")


@pytest.mark.parametrize("name", ["page-one", *slow("run"), "many", "dashboard"])
def test_on_a_telephone_no_table_and_no_page_is_wider_than_the_window(
    browser: Browser,  # noqa: F811
    pages: dict[str, Path],
    name: str,
) -> None:
    tab = opened(browser, pages[name].as_uri(), 400)
    assert tab.evaluate("document.documentElement.scrollWidth") <= 400
    tables = "[...document.querySelectorAll('table')].filter((e) => e.scrollWidth > e.parentElement.clientWidth + 1)"
    assert tab.evaluate(f"{tables}.map((e) => e.innerText.slice(0, 200))") == []
    if name != "dashboard":
        names = "[...document.querySelectorAll('td')].map((e) => e.dataset.name)"
        assert all(tab.evaluate(names)), "each cell says what it is"
    tab.context.close()


@pytest.mark.parametrize("name", ["page-one", *slow("run"), "many"])
def test_no_table_and_no_command_is_cut_on_a_screen(browser: Browser, pages: dict[str, Path], name: str) -> None:  # noqa: F811
    tab = opened(browser, pages[name].as_uri(), 1400)
    cut = "[...document.querySelectorAll('.wide, pre')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    assert tab.evaluate(f"{cut}.map((e) => e.innerText.slice(0, 200))") == []
    tab.context.close()


def test_on_a_telephone_the_wheel_moves_the_page_by_what_it_turns(browser: Browser, pages: dict[str, Path]) -> None:  # noqa: F811
    """The contents stand last there: to mark where the reader is must not lead him to them."""
    tab = opened(browser, pages["run"].as_uri(), 400)
    tab.mouse.move(200, 400)
    for _ in range(6):
        tab.mouse.wheel(0, 300)
        tab.wait_for_timeout(60)
    assert tab.evaluate("document.querySelector('nav a.here') !== null"), "it is marked all the same"
    assert tab.evaluate("scrollY") == 1800
    tab.context.close()


@pytest.mark.parametrize("name", ["page-one", *slow("run"), "many"])
def test_on_a_telephone_every_plot_is_in_sight_and_its_texts_can_be_read(
    browser: Browser,  # noqa: F811
    pages: dict[str, Path],
    name: str,
) -> None:
    tab = opened(browser, pages[name].as_uri(), 400)
    wide = "[...document.querySelectorAll('figure, figure *')].filter((e) => e.getBoundingClientRect().right > 401)"
    assert (
        tab.evaluate(
            f"{wide}.filter((e) => !e.closest('svg') || e.tagName === 'svg').map((e) => e.outerHTML.slice(0, 99))"
        )
        == []
    )
    sizes = tab.evaluate("""[...document.querySelectorAll('.plots svg')].flatMap((plot) =>
        [...plot.querySelectorAll('text')].map((e) => parseFloat(getComputedStyle(e).fontSize) * plot.getScreenCTM().a))""")
    assert len(sizes) > 5
    assert min(sizes) >= READABLE
    signs = tab.evaluate("[...document.querySelectorAll('.legend svg')].map((e) => e.getBoundingClientRect().width)")
    assert all(width > 10 for width in signs)
    tab.context.close()


@pytest.mark.parametrize("name", ["page-one", *slow("run"), "many", *COMMITTED])
def test_a_report_is_short_before_it_is_unfolded_and_light(page: Page, pages: dict[str, Path], name: str) -> None:  # noqa: F811
    page.goto(pages[name].as_uri())
    assert 50 < len(page.inner_text("main").split()) <= WORDS
    assert pages[name].stat().st_size < BYTES


@pytest.mark.parametrize(
    ("name", "width", "theme"), few(["page-one", "run", "timeline", "dashboard"], screenshots.SIZES, screenshots.THEMES)
)
def test_the_pictures_in_the_documents_are_of_these_pages(
    browser: Browser,  # noqa: F811
    pages: dict[str, Path],
    name: str,
    width: int,
    theme: str,
) -> None:
    """Pixel by pixel, where browser and fonts are those that the pictures were made by."""
    made_by = screenshots.made_by(browser)
    file = screenshots.PLACE / screenshots.name_of(name, width, theme)
    with Image.open(file) as kept:
        if kept.info[screenshots.MADE_BY] != made_by:
            pytest.skip(f"made by {kept.info[screenshots.MADE_BY]}, here is {made_by}")
        shown = kept.convert("RGB")
    difference = ImageChops.difference(shown, screenshots.picture(browser, pages[name], width, theme).convert("RGB"))
    assert difference.getbbox() is None, f"{file.name} is of another page: make screenshots"

"""The renderers of the report, and its page: what comes from runs is harmless, and the page does what it offers."""

from __future__ import annotations

import os
import re
import string
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote_to_bytes

import pytest
from markdown_it import MarkdownIt
from playwright.sync_api import Page as Tab

from bench.base import style
from bench.report import html, markdown, write_report
from bench.report.blocks import Bullets, Code, Heading, Picture, TableBlock, Text, Verdicts, nonempty, plain
from bench.report.page import Page
from bench.report.sections import timeline
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from tests.bench.streams import make_metrics, make_records, make_spec, write_run
from tests.browser import browser  # noqa: F401
from tests.browser import page as tab  # noqa: F401

EVIL = "<script>alert(1)</script> **x** [a](javascript:alert(2)) `</code>` | $\\frac{1}{0}$ &lt;"
NUMBERS, BYTES = (
    ["3", "1,000", "–", "20%", "2", "1", "-5"],
    ["9 GB", "212 kB", "20 MB", "8.5 MB", "1.5 GB", "7 B", "191 MB"],
)
MANY = tuple({"mode": a, "n": n, "bytes": size} for a, n, size in zip("abcdefg", NUMBERS, BYTES, strict=True))


class Seen(HTMLParser):
    """Tags, and what they would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "action", "data", "poster")]


def test_an_interval_stays_in_one_line_and_a_list_may_break(tmp_path: Path) -> None:
    row = {"cell": "a", "interval": "**+0.10 pt [-0.05 pt, +0.25 pt]**", "list": "12.5, 13.1", "both": "1 [0, 2], 3"}
    page = html.render([TableBlock((row,), 1)], tmp_path, "")
    assert re.findall(r'<td class="n( list)?">', page) == ["", " list", " list"]


@pytest.mark.parametrize(
    "name", ["d](http://evil.com/x) <img src=x>", "`a` <b> `", "a [b", "a] \\", "x][y", "*a*\n_b_ &lt;"]
)
def test_a_name_in_the_words_beside_a_picture_is_text(name: str) -> None:
    """The name of a data set chose what picture was shown."""
    (paragraph,) = (
        token for token in MarkdownIt().parse(markdown.render([Picture("a.png", f"Of {name}")])) if token.children
    )
    (image,) = paragraph.children or ()
    assert (image.type, image.attrs["src"]) == ("image", "a.png")
    texts = [child.content for child in image.children or ()]
    assert "".join(texts) == f"Of {' '.join(name.split())}".replace("_b_", "b")


def test_markup_is_the_same_in_both() -> None:
    text = "**a *b* c** and `c < d`, [e f](g.csv), 2 \\* 3 <i>"
    assert html.inline(text) == (
        '<strong>a <em>b</em> c</strong> and <code>c &lt; d</code>, <a href="g.csv">e f</a>, 2 * 3 &lt;i&gt;'
    )
    assert markdown.render([Text(text)]) == "**a *b* c** and `c < d`, [e f](g.csv), 2 \\* 3 \\<i>\n"


@pytest.mark.parametrize(
    "text", [EVIL, "a*b*c", "_x_ `y`", "[t](u)", "a\\b \\* <b>", "&amp; &#60;", "two\nlines", "`", "**", "](", "<"]
)
def test_what_runs_say_is_read_as_it_is(text: str) -> None:
    """Escaped, then rendered, it is the text itself."""
    shown = html.inline(plain(text))
    assert Seen(shown).tags == []
    seen: list[str] = []

    class Read(HTMLParser):
        def handle_data(self, data: str) -> None:
            seen.append(data)

    reader = Read()
    reader.feed(shown)
    reader.close()
    assert "".join(seen) == " ".join(text.split())


def test_a_forgotten_escape_does_no_harm() -> None:
    shown = html.inline(EVIL)
    assert not {"script", "a"} & set(Seen(shown).tags)
    text = markdown.render([Text(EVIL), Heading(EVIL), Bullets((EVIL,)), TableBlock(({"a": EVIL},))])
    assert re.search(r"(?<!\\)<script", text) is None


@pytest.mark.parametrize(
    "target", ["javascript:alert(1)", "//host/x", "https://host/x", "data:text/html,x", "vbscript:x"]
)
def test_links_stay_in_the_folder(target: str) -> None:
    assert Seen(html.inline(f"[x]({target})")).tags == []


def test_blocks_that_say_nothing_are_left_out() -> None:
    assert nonempty(None, Text(""), Bullets(()), TableBlock(()), [Text("a"), None]) == [Text("a")]


def test_tables_are_whole_in_both(tmp_path: Path) -> None:
    table = TableBlock(({"a|b": "x|y", "n": "1"}, {"a|b": "long " * 20, "n": "–"}))
    lines = markdown.render([table]).splitlines()
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in lines] == [3] * 4
    assert lines[1].startswith("|:--")
    assert lines[1].endswith("--:|")
    page = html.render(
        [table, Verdicts(({"cell": "c", "quality": "PASS", "why": "FAIL of words"},), left=3)], tmp_path, "t"
    )
    assert 'x|y</td><td class="n">1</td>' in page
    assert '<span class="verdict PASS">PASS</span>' in page
    assert page.count('class="verdict ') == 1


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report over runs whose every string wants to be more than text."""
    root = tmp_path_factory.mktemp("evil")
    write_run(root, make_spec("solo"))
    for mode in ("nccl_sync", "nccl_cadence"):
        spec = make_spec(mode)
        metrics = make_metrics(spec)
        final = metrics.final.model_copy(update={"eval_metric": EVIL})
        env = {EVIL: EVIL, "cores": 2}
        said = {"model": EVIL, "data": EVIL, "recipe": EVIL, "warnings": [EVIL], "env": env, "git": env, "final": final}
        write_run(root, spec, metrics.model_copy(update=said))
    failed = make_spec("cpu_async")
    write_run(root, failed, make_metrics(failed, make_records(failed)[:99], status="failed", error=EVIL))
    return write_report(root, tmp_path_factory.mktemp("report"), baseline=root / "none")


def test_evil_runs_make_a_harmless_page(evil: Path) -> None:
    seen = Seen(evil.with_suffix(".html").read_text())
    assert seen.tags.count("script") == 1, "ours"
    assert [
        link for link in seen.links if re.match(r"[a-z]+:|//", link) and not link.startswith("data:image/png;")
    ] == []
    assert "svg" in seen.tags
    text = re.sub(r"^```sh\n.*?^```$", "", evil.read_text(), flags=re.M | re.S)
    assert "script" in text
    assert re.search(r"(?<!\\)<script", text) is None


def test_names_longer_than_those_of_files_are_reported(tmp_path: Path) -> None:
    spec = make_spec("solo")
    write_run(tmp_path, spec, make_metrics(spec).model_copy(update={"model": "m" * 3000, "mode": "s" * 3000}))
    text = write_report(tmp_path, tmp_path / "out").read_text()
    assert "m" * 3000 in text
    assert max(len(file.name) for file in (tmp_path / "out").iterdir()) < 256


def test_data_files_hold_no_formulas(tmp_path: Path) -> None:
    for mode in ("solo", "nccl_cadence"):
        spec = make_spec(mode)
        write_run(tmp_path, spec, make_metrics(spec).model_copy(update={"mode": "=1+cmd|calc"}))
    write_report(tmp_path, tmp_path / "out")
    texts = [file.read_text() for file in (tmp_path / "out").glob("*.csv")]
    assert any("'=1+cmd" in text for text in texts)
    assert not any(re.search(r"(^|,)=", text, re.M) for text in texts)


def test_long_labels_leave_room_for_what_is_drawn(tmp_path: Path) -> None:
    """Many scripted faults are a label that is wider than a figure; warnings are errors here."""
    script = [f"1@{step}:slow:2.5" for step in range(9)]
    for mode in ("solo", "nccl_cadence"):
        spec = make_spec(mode)
        write_run(tmp_path, spec, make_metrics(spec).model_copy(update={"scripted_faults": script}))
    assert ", ".join(script) in write_report(tmp_path, tmp_path / "out").read_text()
    assert style.brief("a" * 99, 9) == "aaaaa…aaa"
    assert style.brief("short\nand short", 9) == "short\nand short"


def test_markdown_and_page_say_the_same(evil: Path) -> None:
    heads = re.findall(r"^#{2,3} (.+)$", evil.read_text(), re.M)
    page = evil.with_suffix(".html").read_text()
    assert [html.inline(head) for head in heads] == re.findall(r"<h[23](?: id=[^>]+)?>(.+?)</h[23]>", page)
    pictures = re.findall(r"!\[.+\]\((.+\.png)\)", evil.read_text())
    assert len(pictures) == page.count("<figure>") > 3


def test_the_page_sorts_filters_and_zooms(
    tmp_path: Path,
    evil: Path,
    tab: Tab,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(html, "FILTER_FROM", len(MANY))
    said: list[str] = []
    asked: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("dialog", lambda dialog: said.append(dialog.message))
    tab.on("request", lambda request: asked.append(request.url))
    picture = next(evil.parent.glob("*.png"))
    blocks = [Heading("One"), TableBlock(MANY), Picture(picture.name, "a picture"), Heading("Two"), Code("x")]
    path = tmp_path / "page.html"
    path.write_text(html.render(blocks, evil.parent, "t"))
    tab.goto(path.as_uri())
    tab.locator("summary").first.click()
    column = (
        "() => [...document.querySelectorAll('tbody tr:not(.hidden)')].map(row => row.cells[0].textContent).join('')"
    )
    head = tab.locator("th button").nth(1)
    head.click()
    assert tab.evaluate(column) == "gfeadbc", "by number; what is not known comes last"
    head.click()
    assert tab.evaluate(column) == "bdaefgc"
    tab.locator("th button").nth(2).click()
    assert tab.evaluate(column) == "fbdcgea", "sizes by what they are"
    head.click()
    head.click()
    assert tab.locator("th").nth(1).get_attribute("aria-sort") == "descending"
    tab.locator(".filter").fill("20 d")
    assert tab.evaluate(column) == "d"
    tab.locator(".filter").fill("")
    assert len(tab.evaluate(column)) == 7
    tab.locator("figure .zoom").click()
    assert tab.locator("dialog").is_visible()
    tab.keyboard.press("Escape")
    tab.locator("dialog").wait_for(state="hidden", timeout=10_000)
    before = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    tab.locator("#theme").click()
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") != before
    tab.goto(evil.with_suffix(".html").as_uri())
    assert tab.locator("h1").inner_text() == "Benchmark report"
    assert said == []
    assert [url for url in asked if not url.startswith(("file://", "data:image/png"))] == []


def test_a_section_is_folded_until_a_link_leads_into_it(tmp_path: Path, tab: Tab) -> None:  # noqa: F811
    path = tmp_path / "page.html"
    path.write_text(
        html.render([Heading("One"), Text("a"), Heading("Two"), Heading("Part", 3), Code("x")], tmp_path, "t")
    )
    tab.goto(path.as_uri())
    assert not tab.locator("pre").is_visible()
    tab.locator("nav a").nth(1).click()
    assert tab.url.endswith("#part-2")
    tab.locator("pre").wait_for(state="visible", timeout=10_000)  # the page hears of its new address a little later
    assert not tab.locator("p").is_visible()


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_self_contained_page_has_no_link_to_a_run_folder(tmp_path: Path, seeds: int) -> None:
    for seed in range(seeds):
        folder = write_run(tmp_path / "runs", make_spec("solo", seed=seed))
        for name, (file, _) in timeline.KINDS.items():
            (folder / file).write_text(name)
    for alone in (False, True):
        cells_of = tuple(cells(find_runs(tmp_path / "runs")[0]))
        page = Page(tmp_path / "runs", tmp_path, cells_of, (), (), self_contained=alone)
        text = markdown.render(timeline.section(page))
        assert ("(runs/mlp/solo/" in text) is not alone
        assert "`timeline.json`" in text


def test_links_lead_to_folders_of_any_name(tmp_path: Path) -> None:
    """Brackets, signs that mean something in an address, a drive, letters of other alphabets, bytes that are no text."""
    names = ["a b", "b)(c", "c#d", "d%20e", "e?f=g", "https:x", "ü→", "q\"'<", os.fsdecode(b"\xff")]
    for name in names:
        target = tmp_path / "runs" / name / "timeline.json"
        link = Page(tmp_path, tmp_path / "out", (), (), ()).link(target)
        (found,) = Seen(html.inline(f"[json]({link})")).links
        assert os.fsdecode(unquote_to_bytes(found)) == f"../runs/{name}/timeline.json"
        assert f"]({link})" in markdown.render([Text(f"[json]({link})")])
        assert not set(found) - set(string.ascii_letters + string.digits + "/%._-~"), found

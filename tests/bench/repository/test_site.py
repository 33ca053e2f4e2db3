"""The site of the documents: what it is made of. The generator itself is an extra, and fails where a link leads nowhere."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from PIL import Image, ImageColor, ImageStat

import bench
import ddp
from bench.base.mode_styles import PALETTE, SOLO, mode_style
from benchmarks import page_one, site
from benchmarks.documents import themed_picture

WORKFLOWS = site.ROOT / ".github" / "workflows"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    pages = tmp_path_factory.mktemp("site") / "pages"
    return pages, site.assemble(pages)


def files(order: Any) -> Iterator[str]:
    """Pages in an order of them."""
    if isinstance(order, str):
        yield order
    for part in order.values() if isinstance(order, dict) else order if isinstance(order, list) else ():
        yield from files(part)


def test_every_page_has_its_place(made: tuple[Path, list[Any]]) -> None:
    pages, order = made
    written = sorted(page.relative_to(pages).as_posix() for page in pages.rglob("*.md"))
    assert sorted(files(order)) == written
    assert len(written) > len(list((site.DOCS).rglob("*.md"))), "and the first page, reports and the reference"


def test_every_link_leads_to_a_file_of_the_site(made: tuple[Path, list[Any]]) -> None:
    pages, _ = made
    for page in pages.rglob("*.md"):
        for link in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).resolve().is_relative_to(pages.resolve()), f"{page.name}: {link}"
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_example_reports_are_pages(made: tuple[Path, list[Any]]) -> None:
    pages, _ = made
    for name in site.REPORTS:
        assert (pages / "reports" / name / "report.html").stat().st_size > 10_000
    assert "reports/example/report.html" in (pages / "index.md").read_text()
    assert "../reports/scaling/report.html" in (pages / "reference" / "report.md").read_text()


def test_page_one_is_dark_on_a_dark_page(made: tuple[Path, list[Any]]) -> None:
    pages, _ = made
    shown = re.findall(r"!\[.+\]\(images/(page-one\S*)\)", (pages / "index.md").read_text())
    assert shown == ["page-one.png#only-light", "page-one-dark.png#only-dark"]
    with Image.open(page_one.PICTURE) as light, Image.open(page_one.DARK) as dark:
        assert ImageStat.Stat(light.convert("L")).median[0] > 240
        assert ImageStat.Stat(dark.convert("L")).median[0] < 40
        assert dark.info == light.info, "of the same figures"
        for picture, colours in ((light, PALETTE), (dark, PALETTE.values())):
            pixels = [each for _, each in picture.convert("RGB").getcolors(1 << 16)]
            known = dict(zip(PALETTE, map(ImageColor.getrgb, colours), strict=True))
            for mode in {metrics.mode for metrics in page_one.recorded()[0]} - {SOLO}:
                assert min(math.dist(known[mode_style(mode)[0]], pixel) for pixel in pixels) < 12, "its colour is kept"


def test_a_picture_with_a_dark_twin_follows_the_switch_of_the_site(made: tuple[Path, list[Any]]) -> None:
    pages, _ = made
    for page in pages.rglob("*.md"):
        assert "<picture>" not in page.read_text(), "a link in HTML leads nowhere from a page's folder"
    words = 'of "mlp" & one'
    text = site.switched(
        f"{themed_picture(words, 'docs/images/a.png')} and {themed_picture(words, 'b-light.png')}", "docs/"
    )
    assert text == (
        f"![{words}](images/a.png#only-light)\n![{words}](images/a-dark.png#only-dark) and "
        f"![{words}](b-light.png#only-light)\n![{words}](b-dark.png#only-dark)"
    )


def test_every_picture_for_a_theme_is_there() -> None:
    for page in [site.ROOT / "README.md", *site.DOCS.rglob("*.md")]:
        for address in re.findall(r'(?:srcset|src)="([^"]+)"', page.read_text()):
            assert (page.parent / address).is_file(), f"{page.name}: {address}"


def test_the_reference_has_every_public_name(made: tuple[Path, list[Any]]) -> None:
    pages, _ = made
    for package, names in (("ddp", ddp.__all__), ("bench", bench.__all__)):
        text = (pages / "api" / f"{package}.md").read_text()
        shown = re.findall(rf"^::: {package}\.(\w+)$", text, re.MULTILINE)
        assert shown == [name for name in names if not name.startswith("_")]
    with pytest.raises(ValueError, match="no __all__"):
        site.public("bench.base")


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ('<script src="https://unpkg.com/x.js"></script>', "https://unpkg.com/x.js"),
        ('<link rel="stylesheet" href="//fonts.example/css">', "//fonts.example/css"),
        ('<img src="http://example.com/a.png">', "http://example.com/a.png"),
        ("<style>@import 'https://example.com/a.css';</style>", "https://example.com/a.css"),
        ('<p style="background: url(https://example.com/b.png)">', "https://example.com/b.png"),
        ('<a href="https://example.com">there</a><script src="../a.js"></script>', None),
        ('<link rel="canonical" href="https://example.com/"><img src="data:image/png;base64,//8=">', None),
    ],
)
def test_what_a_page_loads_from_elsewhere_is_noticed(tmp_path: Path, text: str, loads: str | None) -> None:
    (tmp_path / "a.html").write_text(text)
    assert list(site.elsewhere(tmp_path)) == ([] if loads is None else [f"a.html loads {loads}"])


def test_a_style_sheet_that_loads_from_elsewhere_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.css").write_text("@font-face { src: url('https://fonts.example/f.woff2') }")
    assert list(site.elsewhere(tmp_path)) == ["a.css loads https://fonts.example/f.woff2"]


def test_settings_leave_out_what_would_be_loaded(tmp_path: Path) -> None:
    settings = site.configuration(tmp_path, [{"Start": "index.md"}])
    assert settings["theme"]["font"] is False
    assert (site.DOCS / settings["extra"]["polyfills"][0]).is_file()
    assert settings["nav"] == [{"Start": "index.md"}]


def test_the_workflow_builds_it_with_the_extra_and_publishes_from_main() -> None:
    jobs = yaml.safe_load((WORKFLOWS / "site.yml").read_text())["jobs"]
    runs = " ".join(step.get("run", "") for step in jobs["build"]["steps"])
    assert '["docs"]' in runs
    assert "python -m benchmarks.site" in runs
    assert jobs["publish"]["needs"] == "build"
    extras = tomllib.loads((site.ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = {line.partition("==")[0] for line in (site.ROOT / "constraints.txt").read_text().splitlines()}
    assert {re.split(r"[\[>]", name)[0] for name in extras["docs"]} <= pinned

"""The documents: links lead somewhere, what can be chosen is all there, and they stay short."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import get_type_hints

import pytest

from bench.base.exitcodes import Exit
from bench.config.config import Config
from bench.models import MODELS
from bench.models.data import DATA
from bench.validate.checks import CHECKS, OPTIONAL
from benchmarks import documents, targets
from ddp.core.guard import GUARDS
from ddp.core.policies import POLICIES
from ddp.core.settings.faults import KINDS

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
_LISTED = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
KEPT = {ROOT / name for name in subprocess.check_output(_LISTED, cwd=ROOT, text=True).split("\0")}
"""What git keeps: a reader of the repository has no other file."""
REPORTS = sorted(page for page in KEPT if page.is_relative_to(ROOT / "reports") and page.suffix in (".md", ".html"))
"""Pages of measurements and example reports."""
MOST_WORDS = 27_340
"""Half of what there was before the documents were divided by kind."""


def anchors(page: Path) -> set[str]:
    """Those of a page's headings, as GitHub makes them."""
    heads = re.findall(r"^#+ (.*)$", re.sub(r"(?s)```.*?```", "", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a link of a page leads to a file that git keeps, and to a heading of it."""
    if link.startswith(("http", "data:")):
        return True
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return target in KEPT and (not anchor or target.suffix == ".html" or anchor in anchors(target))


@pytest.mark.parametrize("page", [*PAGES, *REPORTS], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text()) if page.suffix == ".md" else []
    links += re.findall(r"\b(?:src|srcset|href)=\"([^\"]+)\"", page.read_text())
    dead = [link for link in links if not leads_somewhere(page, link)]
    assert not dead, f"{len(dead)} dead links, such as {dead[0]}; reports: `bench report ... --self-contained`"


def settings() -> Iterator[tuple[str, str]]:
    """Page of the reference -> a setting that must be in it."""
    own = {"averaging": "averaging", "data": "data"}
    for name, kind in get_type_hints(Config).items():
        if name == "policy":
            yield from {("controller", field.name) for policy in POLICIES.values() for field in fields(policy)}
        elif is_dataclass(kind):
            for field in fields(kind):
                key = name if field.name == "name" else f"{name}.{field.name}"
                yield own.get(name, "settings"), field.name if name == "averaging" else key
        else:
            yield "settings", name


def test_every_page_of_measurements_is_in_their_list() -> None:
    text = (ROOT / "reports" / "README.md").read_text()
    for page in {page for page in KEPT if page.parent.parent == ROOT / "reports" and page.suffix == ".md"}:
        assert f"({page.relative_to(ROOT / 'reports').as_posix()})" in text


def test_missed_targets_are_those_of_their_pages() -> None:
    text = (ROOT / "reports" / "README.md").read_text()
    block = text.partition(f"<!-- {targets.MARKS} -->\n")[2].partition(f"\n\n<!-- /{targets.MARKS} -->")[0]
    assert block == "\n".join(targets.rows()), "python -m benchmarks.targets --write"


@pytest.mark.parametrize("target", targets.TARGETS, ids=lambda target: target.words)
def test_a_target_that_is_met_leaves_the_list_and_lost_figures_are_an_error(target: targets.Target) -> None:
    assert targets.reached(replace(target, missed=lambda *_: True))
    assert targets.reached(replace(target, missed=lambda *_: False)) == ""
    with pytest.raises(ValueError, match="has no figures of the target"):
        targets.reached(replace(target, pattern="(no such figure)"))


@pytest.mark.parametrize("page", ["scale/links.md", "goodput/real.md", "prediction/stragglers.md"])
def test_a_target_for_each_row_looks_at_every_row(page: str) -> None:
    """A link of several words was in no match, so 6 of 22 rows were never held against their target."""
    lines = (ROOT / "reports" / page).read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and re.search(r"\d", line) and "refused" not in line]
    (target,) = (each for each in targets.TARGETS if f"({page})" in each.page)
    assert len(targets.reached(replace(target, missed=lambda *_: True)).split("; ")) == len(rows)


CHOICES = [
    *settings(),
    *(("modes", name) for name in POLICIES),
    *(("controller", name) for name in GUARDS),
    *(("faults", name) for name in KINDS),
    *(("data", name) for name in DATA),
    *(("models", name) for name in MODELS),
    *(("validation", name) for name in (*CHECKS, *OPTIONAL)),
]


@pytest.mark.parametrize(("page", "name"), sorted(CHOICES))
def test_what_can_be_chosen_is_in_the_reference(page: str, name: str) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text()
    assert f"`{name}`" in text or (page, name) == ("data", "data")  # the name of the data set heads its table


def test_every_exit_code_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "command.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)} == set(Exit)


@pytest.mark.parametrize("name", ["deciding", "coordinating"])
def test_tables_have_a_place_in_the_document(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, copy = (documents.DOCS / "explanation" / "speed.md").read_text(), tmp_path / "speed.md"
    copy.write_text(text)
    monkeypatch.setattr(documents, "DOCS", tmp_path)
    documents.put("speed.md", **{name: "a table"})
    after, begin, end = copy.read_text(), f"<!-- {name} -->", f"<!-- /{name} -->"
    assert f"{begin}\na table\n\n{end}" in after
    assert after.split(begin)[0] == text.split(begin)[0]
    assert after.split(end)[1] == text.split(end)[1]


def test_the_documents_stay_short() -> None:
    assert sum(len(page.read_text().split()) for page in PAGES) < MOST_WORDS

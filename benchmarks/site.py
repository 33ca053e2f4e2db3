"""Builds the site of the documents: search, the reference of the public names, the example reports. It loads nothing
from other hosts.

python -m benchmarks.site --out site    # wants the extra `docs`; `make site` brings it
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from benchmarks import frame
from benchmarks.documents import DOCS, dark_twin

ROOT = DOCS.parent
CONFIG = ROOT / "mkdocs.yml"
KINDS = {"tutorial": "Tutorial", "how-to": "How to", "reference": "Reference", "explanation": "Why"}
"""Folder of the documents -> what the site calls it."""
REPORTS = ("example", "scaling")
"""Folders of reports that are pages of their own."""
MEASURED = ("faults", "goodput", "gpu", "prediction", "proofs", "scale", "seeds", "virtual")
"""Folders of reports whose Markdown is a page of the site."""
PACKAGES = ("ddp", "bench", "ddp.data", "ddp.parallel")
"""What users import; their `__all__` is in the reference."""
_THEMED = re.compile(r'<picture>.*?<img src="([^"]+)" alt="([^"]*)"></picture>')
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_ELSEWHERE = re.compile(r"(?i)(?:url\(|@import)\s*['\"]?\s*((?:https?:)?//[^'\")\s]+)")


def assemble(folder: Path) -> list[Any]:
    """Write the pages of the site into `folder`; return their order."""
    shutil.copytree(DOCS, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("readme"))
    (folder / "index.md").write_text(at_home((ROOT / "README.md").read_text(encoding="utf-8")), encoding="utf-8")
    for page in folder.rglob("*.md"):
        page.write_text(to_reports(switched(page.read_text(encoding="utf-8"))), encoding="utf-8")
    for name in REPORTS:
        place = folder / "reports" / name
        place.mkdir(parents=True)
        for file in sorted((ROOT / "reports" / name).iterdir()):
            if file.suffix in (".html", ".csv"):
                shutil.copyfile(file, place / file.name)
    for package in PACKAGES:
        (folder / "api").mkdir(exist_ok=True)
        (folder / "api" / f"{package}.md").write_text(reference(package), encoding="utf-8")
    sections: list[Any] = [{"Start": "index.md"}]
    for kind, title in KINDS.items():
        sections.append({title: [page.relative_to(folder).as_posix() for page in _ordered(folder / kind)]})
    sections.append({"Python": [{package: f"api/{package}.md"} for package in PACKAGES]})
    return [*sections, {"Measured": _measured(folder)}]


def _measured(folder: Path) -> list[str]:
    """Write the pages of measurements, their list first, and the files that they link to; return their order."""
    home, pages = ROOT / "reports", []
    for source in (home / "README.md", *sorted(page for name in MEASURED for page in (home / name).glob("*.md"))):
        text, page = source.read_text(encoding="utf-8"), folder / source.relative_to(ROOT)
        page = page.with_name("index.md") if source.parent == home else page
        page.parent.mkdir(parents=True, exist_ok=True)
        at_site = re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", text).replace("/report.md)", "/report.html)")
        page.write_text(at_site, encoding="utf-8")
        for link in (match[2] for match in _LINK.finditer(text)):
            if (source.parent / link).is_file() and "/" not in link and not link.endswith(".md"):
                shutil.copyfile(source.parent / link, page.parent / link)
        pages.append(page.relative_to(folder).as_posix())
    return pages


def _ordered(folder: Path) -> list[Path]:
    pages = sorted(folder.glob("*.md"))
    return sorted(pages, key=lambda page: page.name != "first-hour.md")


def at_home(text: str) -> str:
    """Return README.md as the first page: its documents lie beside it."""
    return _LINK.sub(lambda match: f"{match[1]}{match[2].removeprefix('docs/')}{match[3]}", switched(text, "docs/"))


def switched(text: str, folder: str = "") -> str:
    """Replace pictures that follow the reader's theme by two: the site has a switch, by which it shows one of them."""

    def both(match: re.Match[str]) -> str:
        words, light = unescape(match[2]), match[1].removeprefix(folder)
        return f"![{words}]({light}#only-light)\n![{words}]({dark_twin(light)}#only-dark)"

    return _THEMED.sub(both, text)


def to_reports(text: str) -> str:
    """Lead links to reports and to README.md to their pages on the site."""

    def led(match: re.Match[str]) -> str:
        target = re.sub(r"^((?:\.\./)*?)(?:\.\./)?reports/", r"\1reports/", match[2])
        target = re.sub(r"(reports/\w+)/report\.md$", r"\1/report.html", target)
        target = re.sub(r"(^|/)reports/README\.md$", r"\1reports/index.md", target)
        target = re.sub(r"^\.\./\.\./README\.md", "../index.md", target)
        return f"{match[1]}{target}{match[3]}"

    return _LINK.sub(led, text)


def public(package: str) -> list[str]:
    """Return the names in the `__all__` of a package, in their order. Imports nothing."""
    place = ROOT.joinpath(*package.split("."))
    tree = ast.parse((place / "__init__.py").read_text(encoding="utf-8"))
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            assert isinstance(node, ast.Assign)
            return list(ast.literal_eval(node.value))
    raise ValueError(f"{package} has no __all__")


def reference(package: str) -> str:
    """Return the page of a package: what it says of itself, and its public names."""
    names = [name for name in public(package) if not name.startswith("_")]
    own = f"# `{package}`\n\n::: {package}\n    options:\n      members: []\n      show_root_heading: false\n"
    return own + "".join(f"\n::: {package}.{name}\n" for name in names)


def configuration(pages: Path, order: Sequence[Any]) -> dict[str, Any]:
    """Return the settings of the generator for assembled pages."""
    settings: dict[str, Any] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    settings["plugins"]["mkdocstrings"]["handlers"]["python"]["paths"] = [str(ROOT)]
    return settings | {"docs_dir": str(pages), "nav": list(order)}


class _Loaded(HTMLParser):
    """What a page would load."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.addresses += [values[name] for name in ("src", "srcset", "data", "poster") if name in values]
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.addresses.append(values.get("href", ""))
        self.addresses += _ELSEWHERE.findall(values.get("style", ""))


def elsewhere(site: Path) -> Iterator[str]:
    """Yield a line for each thing that a page or a style sheet of the site would load from another host."""
    for file in sorted(site.rglob("*")):
        if file.suffix not in (".html", ".css"):
            continue
        text = file.read_text(encoding="utf-8")
        addresses = _ELSEWHERE.findall(text)
        if file.suffix == ".html":
            page = _Loaded()
            page.feed(text)
            addresses += page.addresses
        for address in dict.fromkeys(addresses):
            if re.match(r"(?i)(?:https?:)?//", address.strip()):
                yield f"{file.relative_to(site)} loads {address.strip()}"


def build(out: Path) -> None:
    """Make the site in `out`. Raises CalledProcessError if a link leads nowhere, ValueError if a page loads anything from
    elsewhere."""
    with tempfile.TemporaryDirectory() as name:
        pages = Path(name) / "pages"
        settings = configuration(pages, assemble(pages))
        file = Path(name) / "mkdocs.yml"
        file.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
        command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(file), "-d", str(out.absolute())]
        subprocess.run(command, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    if loaded := list(elsewhere(out)):
        raise ValueError("\n".join(["the site is to load nothing from elsewhere:", *loaded]))


def main() -> None:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.site", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("site"), help="folder to write into (default: site)")
    out = parser.parse_args().out
    try:
        build(out)
    except (subprocess.CalledProcessError, ValueError) as error:
        sys.exit(f"the site is not made: {error}")
    print(out / "index.html")


if __name__ == "__main__":
    frame.run_command(main)

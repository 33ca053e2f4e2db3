"""Renders blocks as one self-contained HTML page: pictures, style and script are in it. Does not know what the blocks
say.

Texts are escaped before their markup is parsed, and links only lead to relative paths, so that a string of a run
cannot inject HTML.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup

from bench.base.mode_styles import DARK, MODES
from bench.report.blocks import (
    BADGE,
    Beside,
    Block,
    Bullets,
    Code,
    Facts,
    Heading,
    LeadText,
    Picture,
    SmallText,
    TableBlock,
    Text,
    Tile,
    Tiles,
    Verdicts,
)
from bench.report.drawing.plots import on_page
from ddp import regular_files

ASSETS = Path(__file__).with_name("assets")
FILTER = '<input type="search" class="filter" placeholder="filter rows" aria-label="filter rows">'
FILTER_FROM = 9
"""Least rows of a table that gets a filter box."""
_INLINE = re.compile(
    r"\\([^\w\s])|`([^`]+)`|\*\*(.+?)\*\*|\*(.+?)\*|"
    r"\[((?:[^\]\\]|\\.)+)\]\((?![A-Za-z][\w+.-]*:|//)([^)\s]+)\)"
)
_BRACKETS = re.compile(r"\[[^\]]*\]")


def render(blocks: Sequence[Block], folder: Path, title: str) -> str:
    """Return the page. `folder`: folder of the pictures. Raises OSError if a picture cannot be read."""
    body: list[str] = []
    contents: list[tuple[int, str, str]] = []
    for block in blocks:
        if isinstance(block, Heading) and block.level > 1:
            anchor = f"part-{len(contents) + 1}"
            body.append(_heading(block, anchor, any(level == 2 for level, _, _ in contents)))
            contents.append((block.level, anchor, Markup(inline(block.text))))
        else:
            body.append(_block(block, folder))
    body += ["</details>"] if contents else []
    return _template().render(
        title=title,
        contents=contents,
        body=Markup("\n".join(body)),
        style=Markup(_asset("report.css").replace(MODES, DARK)),
        script=Markup(_asset("report.js")),
    )


def _heading(heading: Heading, anchor: str, again: bool) -> str:
    """Return a heading; level 2 begins a section that is folded at first."""
    text = inline(heading.text)
    if heading.level > 2:
        return f'<h{heading.level} id="{anchor}">{text}</h{heading.level}>'
    end = "</details>\n" if again else ""
    return f'{end}<details class="section" id="{anchor}"><summary><h2>{text}</h2></summary>'


def inline(text: str) -> str:
    """Return a text as HTML."""
    parts, last = [], 0
    for match in _INLINE.finditer(text):
        parts += [escape(text[last : match.start()]), _marked(match)]
        last = match.end()
    return "".join([*parts, escape(text[last:])])


def _marked(match: re.Match[str]) -> str:
    sign, code, strong, stressed, text, target = match.groups()
    if sign:
        return escape(sign)
    if code:
        return f"<code>{escape(code)}</code>"
    if strong:
        return f"<strong>{inline(strong)}</strong>"
    if stressed:
        return f"<em>{inline(stressed)}</em>"
    return f'<a href="{escape(target)}">{inline(text)}</a>'


def _block(block: Block, folder: Path) -> str:
    match block:
        case Heading(text, level):
            return f"<h{level}>{inline(text)}</h{level}>"
        case Text(text):
            return f"<p>{inline(text)}</p>"
        case LeadText(text):
            return f'<p class="lead">{inline(text)}</p>'
        case Tiles(items, slim) if slim:
            return f'<dl class="facts">{"".join(map(_slim, items))}</dl>'
        case Tiles(items):
            return f'<dl class="tiles">{"".join(map(_tile, items))}</dl>'
        case SmallText(text):
            return f'<p class="small">{inline(text)}</p>'
        case Facts(items, lines):
            rows = (f"<div><dt>{inline(question)}</dt><dd>{inline(text)}</dd></div>" for question, text in items)
            return f'<dl class="facts{" lines" if lines else ""}">{"".join(rows)}</dl>'
        case Beside(picture, other, note):
            small = f'<p class="small">{inline(note)}</p>' if note else ""
            return f'<div class="beside">{_picture(picture, folder)}{_table(other, False, small)}</div>'
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{inline(item)}</li>' for item in items)}</ul>"
        case Code(text):
            commands = "".join(f"<code>{escape(line)}</code>" for line in text.splitlines())
            return f'<pre tabindex="0">{commands}</pre>'
        case Picture():
            return _picture(block, folder)
        case TableBlock():
            return _table(block)


def _slim(tile: Tile) -> str:
    return f"<div><dt>{inline(tile.label)}</dt><dd><strong>{inline(tile.value)}</strong> {inline(tile.note)}</dd></div>"


def _tile(tile: Tile) -> str:
    note = f"<dd>{inline(tile.note)}</dd>" if tile.note else ""
    look = "value dim" if tile.dim else "value"
    return f'<div><dt>{inline(tile.label)}</dt><dd class="{look}">{inline(tile.value)}</dd>{note}</div>'


def _picture(picture: Picture, folder: Path) -> str:
    alt = escape(picture.alt)
    link = f' <a href="{escape(picture.data)}">data</a>' if picture.data else ""
    if picture.drawing:
        shown = on_page(regular_files.content(folder / picture.drawing).decode(), picture.panels, alt)
    else:
        data = base64.b64encode(regular_files.content(folder / picture.file)).decode()
        shown = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
    button = f'<button type="button" class="zoom" title="Larger">{shown}</button>'
    return f"<figure>{button}<figcaption>{alt}.{link}</figcaption></figure>"


def _table(table: TableBlock, filtered: bool = True, below: str = "") -> str:
    columns = table.columns
    sides = ["" if place < table.left else ' class="n"' for place in range(len(columns))]
    sides = [' class="why"' if name == "why" else side for name, side in zip(columns, sides, strict=True)]
    head = "".join(
        f'<th{side} scope="col"><button type="button">{inline(name)}</button></th>'
        for name, side in zip(columns, sides, strict=True)
    )
    badges = table.badges if isinstance(table, Verdicts) else {}
    marked = table.marked if isinstance(table, Verdicts) else ()
    rows = [_row([row[name] for name in columns], sides, badges) for row in table.rows]
    body = "\n".join(
        f'<tr class="marked">{row}</tr>' if n in marked else f"<tr>{row}</tr>" for n, row in enumerate(rows)
    )
    box = FILTER if filtered and len(table.rows) >= FILTER_FROM else ""
    grid = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="table{" verdicts" if badges else ""}">{box}<div class="wide">{grid}</div>{below}</div>'


def _row(cells: Iterable[str], sides: Iterable[str], badges: Mapping[str, str]) -> str:
    return "".join(
        f"<td{_side(cell, side)}>{_cell(cell, badges)}</td>" for cell, side in zip(cells, sides, strict=True)
    )


def _side(cell: str, side: str) -> str:
    """Return the class of a cell: a list of values may stand in several lines; one value, with its interval in brackets,
    in one line only."""
    return ' class="n list"' if side == ' class="n"' and ", " in _BRACKETS.sub("", cell) else side


def _cell(cell: str, badges: Mapping[str, str]) -> str:
    before, _, last = cell.rpartition(BADGE)
    if last not in badges:
        return inline(cell)
    return f'{inline(before)} <span class="verdict {badges[last]}">{inline(last)}</span>'.lstrip()


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(ASSETS), autoescape=True, undefined=StrictUndefined, keep_trailing_newline=True
    )
    return environment.get_template("report.html.j2")


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")

"""What a report is made of. A section returns blocks; `markdown` and `html` render them, so nothing is written twice.

Texts carry a little markup, the same in both: `**strong**`, `*stressed*`, `` `code` ``, `[text](relative/path)`, and a
backslash before a sign that is none. What comes from runs (names, errors, warnings) goes through `plain` first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from bench.base.panels import Panels
from bench.validate.verdict import Name

NO_PANELS = Panels()
BADGE = " · "
"""Before a verdict that a cell ends in."""
_SIGNS = re.compile(r"[`*]|\\(?=[^\w\s])|\](?=\()|<(?=[A-Za-z/!?])|&(?=#?\w+;)")


@dataclass(frozen=True)
class Heading:
    """Opens a section (level 2) or a part of one (3)."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class LeadText:
    """A sentence that page one is read for."""

    text: str


@dataclass(frozen=True)
class Tile:
    """One figure under its name, with what it is of."""

    label: str
    value: str
    note: str
    dim: bool = False
    """It is not to be relied on."""


@dataclass(frozen=True)
class Tiles:
    """Figures side by side."""

    items: tuple[Tile, ...]
    slim: bool = False
    """In small letters, where the page has much to say."""


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Shell lines, as they are."""

    text: str


@dataclass(frozen=True)
class TableBlock:
    """Rows of equal keys; the first `left` columns are text, the others numbers."""

    rows: tuple[Mapping[str, str], ...]
    left: int = 1

    @property
    def columns(self) -> list[str]:
        """Heads, from left to right."""
        return list(self.rows[0])


@dataclass(frozen=True)
class Verdicts(TableBlock):
    """A table whose cells may be verdicts, or end in one behind `BADGE`, which HTML shows as such."""

    badges: Mapping[str, str] = field(default_factory=lambda: {name: name for name in get_args(Name)})
    """What such a cell says -> the verdict whose look it has."""
    marked: tuple[int, ...] = ()
    """The rows that stand out."""


@dataclass(frozen=True)
class Picture:
    """A figure as a file beside the report, with its data file."""

    file: str
    """Path of the PNG, as seen from the report."""
    alt: str
    data: str = ""
    """Path of the CSV; empty: there is none."""
    drawing: str = ""
    """Path of the SVG; empty: there is none."""
    panels: Panels = NO_PANELS
    """Where the plots of the SVG lie, which a narrow page puts below each other."""


@dataclass(frozen=True)
class Facts:
    """What a reader wants to know next: questions in a few words, and their answers."""

    items: tuple[tuple[str, str], ...]
    lines: bool = False
    """A line each, where the page has much to say; else side by side."""


@dataclass(frozen=True)
class Beside:
    """A picture and what stands beside it where there is room."""

    picture: Picture
    other: TableBlock
    note: str = ""
    """Stands under the other."""


@dataclass(frozen=True)
class SmallText:
    """A paragraph that explains words, for whoever lacks them."""

    text: str


Block = Heading | Text | LeadText | SmallText | Facts | Tiles | Bullets | Code | TableBlock | Picture | Beside


def plain(text: object) -> str:
    """Return a string that comes from a run on one line, with nothing in it that could be taken for markup."""
    return _SIGNS.sub(lambda sign: "\\" + sign[0], " ".join(str(text).split()))


def nonempty(*blocks: Block | Sequence[Block] | None) -> list[Block]:
    """Return the blocks that show something, sequences laid flat: None, empty texts, lists and tables are left out."""
    flat: list[Block] = []
    for block in blocks:
        if isinstance(block, Sequence):
            flat += nonempty(*block)
        elif block is not None and next(iter(vars(block).values())):  # what a block shows is its first field
            flat.append(block)
    return flat

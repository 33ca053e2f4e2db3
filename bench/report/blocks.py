"""The blocks of a report. A section returns blocks; `markdown` and `html` render them, so that nothing is written
twice.

Texts carry a little markup, the same in both: `**strong**`, `*stressed*`, `` `code` ``, `[text](relative/path)`, and a
backslash before a literal sign. Text from runs (names, errors, warnings) goes through `plain` first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import get_args

from bench.base.panels import Panels
from bench.validate.verdicts.verdict import Name

NO_PANELS = Panels()
BADGE = " · "
"""Separator before a verdict at the end of a cell."""
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
    """A main sentence of page one."""

    text: str


@dataclass(frozen=True)
class Tile:
    """One number with its name and a note on what it belongs to."""

    label: str
    value: str
    note: str
    dim: bool = False
    """Whether the number is unreliable."""


@dataclass(frozen=True)
class Tiles:
    """Numbers side by side."""

    items: tuple[Tile, ...]
    slim: bool = False
    """Whether they are set small, on a long page."""


@dataclass(frozen=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True)
class Code:
    """Shell commands, verbatim."""

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
    """Text of such a cell -> the verdict whose style it gets."""
    marked: tuple[int, ...] = ()
    """Indices of the highlighted rows."""


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
    """Places of the plots in the SVG, which a narrow page puts below each other."""


@dataclass(frozen=True)
class Facts:
    """Short questions that a reader asks next, with their answers."""

    items: tuple[tuple[str, str], ...]
    lines: bool = False
    """Whether each is a line, on a long page; else they stand side by side."""


@dataclass(frozen=True)
class Beside:
    """A picture and the blocks beside it, if the page is wide enough."""

    picture: Picture
    other: TableBlock
    note: str = ""
    """Text below the blocks beside the picture."""


@dataclass(frozen=True)
class SmallText:
    """A small paragraph that explains terms."""

    text: str


Block = Heading | Text | LeadText | SmallText | Facts | Tiles | Bullets | Code | TableBlock | Picture | Beside


def plain(text: object) -> str:
    """Return a string from a run on one line, with markup characters escaped."""
    return _SIGNS.sub(lambda sign: "\\" + sign[0], " ".join(str(text).split()))


def nonempty(*blocks: Block | Sequence[Block] | None) -> list[Block]:
    """Return the blocks in one flat list, without None and empty texts, lists and tables."""
    flat: list[Block] = []
    for block in blocks:
        if isinstance(block, Sequence):
            flat += nonempty(*block)
        elif block is not None and next(iter(vars(block).values())):  # what a block shows is its first field
            flat.append(block)
    return flat

"""Writes measured tables and pictures into documents. A table stands between the marks `<!-- name -->` and
`<!-- /name -->` and is never edited by hand. A picture may have a dark twin, which a dark page shows."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import TypeVar

from PIL import Image

NEWLINE, QUOTE = "\n", '"'
DOCS = Path(__file__).resolve().parents[1] / "docs"
FREQUENT = 128
"""How many colours of a picture its palette has exactly."""
Address = TypeVar("Address", str, Path)


def dark_twin(picture: Address) -> Address:
    """Return the place of what a dark page shows instead of a picture."""
    if isinstance(picture, Path):
        return picture.with_name(dark_twin(picture.name))
    return f"{picture.removesuffix('.png').removesuffix('-light')}-dark.png"


def themed_picture(words: str, picture: str) -> str:
    """Return a picture and its dark twin as GitHub shows them, by the theme of the reader; `words` in place of both."""
    dark = f'<source media="(prefers-color-scheme: dark)" srcset="{dark_twin(picture)}">'
    return f'<picture>{dark}<img src="{picture}" alt="{escape(words, quote=False).replace(QUOTE, "&quot;")}"></picture>'


def paletted(picture: Image.Image) -> Image.Image:
    """Return a picture of a page with a palette of 256 colours, a third of the size: the most frequent ones as they are, so
    that faint backgrounds stay, and others that hold what is left."""
    frequent = sorted(picture.getcolors(1 << 24) or [], reverse=True)[:FREQUENT]
    rest = picture.quantize(256 - FREQUENT, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for _, colour in frequent for part in colour] + rest)  # type: ignore[union-attr]
    return picture.quantize(palette=palette, dither=Image.Dither.NONE)


def put(document: str, **tables: str) -> None:
    """Write each of `tables` (name of the marks -> text) into its place in docs/`document`. ValueError: no such place."""
    path = DOCS / document
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        first, last = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if text.count(first) != 1 or text.count(last) != 1:
            raise ValueError(f"{path} has no place for {name}: a line {first.strip()} and after it one {last}, once")
        text = re.sub(f"(?s)(?<={first}).*?(?={last})", lambda _, new=table: f"{new.strip(NEWLINE)}\n\n", text)
    path.write_text(text, encoding="utf-8")

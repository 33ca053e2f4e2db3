"""Renders blocks as Markdown (GitHub's flavour). Does not know what the blocks say."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bench.report.blocks import (
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
    Tiles,
)

WIDEST = 36
"""Most characters to which the cells of a column are padded; longer cells stick out."""
_MARKUP = re.compile(r"[\\`*<&\[\]]")
_TAG = re.compile(r"(`[^`]+`|\\.)|<(?=[A-Za-z/!?])")


def render(blocks: Iterable[Block]) -> str:
    """Return the blocks as one text that ends with a line feed."""
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_safe(text)}"
        case Text(text) | LeadText(text) | SmallText(text):
            return _safe(text)
        case Facts(items):
            return "\n".join(f"- **{question}** {_safe(text)}" for question, text in items)
        case Beside(picture, other, note):
            return "\n\n".join(filter(None, [_block(picture), _block(other), _safe(note)]))
        case Tiles(items):
            return _table(
                TableBlock(tuple({"": tile.label, "value": tile.value, "of": tile.note} for tile in items), 3)
            )
        case Bullets(items):
            return "\n".join(f"- {_safe(item)}" for item in items)
        case Code(text):
            return f"```sh\n{text}\n```"
        case Picture(file, alt, data):
            shown = f"![{_literal(alt)}]({file})"
            return f"{shown}\n\n[Data of this figure]({data})" if data else shown
        case TableBlock():
            return _table(block)


def _table(table: TableBlock) -> str:
    lines = [table.columns, *([row[column] for column in table.columns] for row in table.rows)]
    cells = [[_safe(cell).replace("|", "\\|") for cell in line] for line in lines]
    sides = ["<" if place < table.left else ">" for place in range(len(table.columns))]
    widths = [min(max(3, *map(len, column)), WIDEST) for column in zip(*cells, strict=True)]
    head, *body = (
        f"| {' | '.join(f'{cell:{side}{width}}' for cell, side, width in zip(line, sides, widths, strict=True))} |"
        for line in cells
    )
    dashes = ["-" * (width + 1) for width in widths]
    rule = [f":{dash}" if side == "<" else f"{dash}:" for dash, side in zip(dashes, sides, strict=True)]
    return "\n".join([head, f"|{'|'.join(rule)}|", *body])


def _safe(text: str) -> str:
    """Escape tags outside code, which Markdown readers would render as HTML."""
    return _TAG.sub(lambda match: match[1] or "\\<", text)


def _literal(text: str) -> str:
    """Escape all markup: the words beside a picture have none, and may hold names from runs."""
    return _MARKUP.sub(r"\\\g<0>", " ".join(text.split()))

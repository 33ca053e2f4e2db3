"""Blocks as Markdown (the flavour of GitHub). Knows nothing of what they say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from bench.report.blocks import Block, Bullets, Code, Heading, Picture, TableBlock, Text

WIDEST = 36
"""Columns are padded to this width, signs; longer cells stick out."""
_TAG = re.compile(r"(`[^`]+`|\\.)|<(?=[A-Za-z/!?])")


def render(blocks: Iterable[Block]) -> str:
    """The whole text, with a line end."""
    return "\n\n".join(_block(block) for block in blocks) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * level} {_safe(text)}"
        case Text(text):
            return _safe(text)
        case Bullets(items):
            return "\n".join(f"- {_safe(item)}" for item in items)
        case Code(text):
            return f"```sh\n{text}\n```"
        case Picture(file, alt, data):
            picture = f"![{_safe(alt)}]({file})"
            return f"{picture}\n\n[Data of this figure]({data})" if data else picture
        case TableBlock():
            return _table(block)


def _table(table: TableBlock) -> str:
    columns = table.columns
    body = [[_safe(row[column]).replace("|", "\\|") for column in columns] for row in table.rows]
    head = [_safe(column).replace("|", "\\|") for column in columns]
    widths = [min(max(3, *map(len, cells)), WIDEST) for cells in zip(head, *body, strict=True)]
    left = [place < table.left for place in range(len(columns))]
    rule = [
        ":" + "-" * (width + 1) if side else "-" * (width + 1) + ":" for width, side in zip(widths, left, strict=True)
    ]
    return "\n".join([_row(head, widths, left), f"|{'|'.join(rule)}|", *(_row(cells, widths, left) for cells in body)])


def _row(cells: Sequence[str], widths: Sequence[int], left: Sequence[bool]) -> str:
    shown = (
        cell.ljust(width) if side else cell.rjust(width) for cell, width, side in zip(cells, widths, left, strict=True)
    )
    return f"| {' | '.join(shown)} |"


def _safe(text: str) -> str:
    """No tag but what code shows: readers of Markdown take them for HTML."""
    return _TAG.sub(lambda found: found[1] or "\\<", text)

"""Tables in Markdown, for what is printed or written as text. Reports draw theirs from blocks (`bench.report.markdown`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table as lines of Markdown."""
    clean = ([text.replace("|", "\\|").replace("\n", " ") for text in row] for row in rows)
    return [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in clean)]

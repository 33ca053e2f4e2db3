"""Writes measured tables into documents. Each stands between the marks `<!-- name -->` and `<!-- /name -->` and is
never edited by hand."""

from __future__ import annotations

import re
from pathlib import Path

NEWLINE = "\n"
DOCS = Path(__file__).resolve().parents[1] / "docs"


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

"""The messages that docs/how-to/troubleshooting.md quotes are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
ANY = "…"
"""Stands for what differs from one message to the next, there and here."""


def quoted() -> list[str]:
    """Return the messages in the first columns of the tables."""
    rows = [line.partition(" | ")[0] for line in TEXT.splitlines() if " | " in line]
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row)]


@cache
def messages() -> str:
    """Return all texts of the code, one a line."""
    files = sorted(file for name in ("ddp", "bench") for file in (ROOT / name).rglob("*.py"))
    return "\n".join(text for file in files for text in texts(ast.parse(file.read_text(encoding="utf-8"))))


def texts(tree: ast.AST) -> Iterator[str]:
    """Yield the texts in a file, with `ANY` for what is computed."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split())
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else ANY for part in node.values)
            yield " ".join("".join(map(str, parts)).split())


def test_the_tables_are_read() -> None:
    assert len(quoted()) > 30
    assert "such links can be predicted only" in quoted()


@pytest.mark.parametrize("message", quoted())
def test_a_quoted_message_is_one_of_the_code(message: str) -> None:
    pattern = ".*".join(map(re.escape, message.split(ANY)))
    assert re.search(pattern, messages()), f"no text of the code has {message}"

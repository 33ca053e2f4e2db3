"""Verdicts as annotations and step summary of GitHub Actions, within GitHub's limits. Pure text.

GitHub shows 10 annotations of a kind per step, and a summary of at most 1 MiB. What exceeds that is cut, with a note.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.base.tables import markdown as table_of
from bench.validate import Judgement
from bench.validate.outputs.verdict_text import fields, summary
from bench.validate.verdicts.verdict import Verdict

SHOWN = 10
SUMMARY_BYTES = 1024 * 1024
MESSAGE, BRIEF = 2000, 160
"""Most characters of an annotation, and of a line of the summary."""
ERRORS = ("FAIL", "REFUSED", "EXPIRED", "NO_BASELINE")


def commands(judgement: Judgement) -> list[str]:
    """Return `::error` and `::warning` lines; the tenth of a kind stands for all further ones."""
    bad = [verdict for verdict in judgement.verdicts if verdict.name not in ("PASS", "XFAIL")]
    errors = _kind("error", [verdict for verdict in bad if verdict.name in ERRORS])
    return errors + _kind("warning", [verdict for verdict in bad if verdict.name not in ERRORS])


def _kind(kind: str, verdicts: Sequence[Verdict]) -> list[str]:
    if len(verdicts) <= SHOWN:
        return [_annotation(kind, f"{v.name} {v.cell} {v.check}", v.text) for v in verdicts]
    shown, rest = verdicts[: SHOWN - 1], verdicts[SHOWN - 1 :]
    more = "; ".join(f"{v.name} {v.cell} {v.check}" for v in rest)
    return [*_kind(kind, shown), _annotation(kind, f"{len(rest)} more", f"see the summary: {more}")]


def _annotation(kind: str, title: str, message: str) -> str:
    shown = message if len(message) <= MESSAGE else message[: MESSAGE - 3] + "..."
    return f"::{kind} title={_escape(title, (':', ','))}::{_escape(shown)}"


def _escape(text: str, beyond: Sequence[str] = ()) -> str:
    for character in ("%", "\r", "\n", *beyond):
        text = text.replace(character, f"%{ord(character):02X}")
    return text


def markdown(judgement: Judgement, room: int = SUMMARY_BYTES) -> str:
    """Return the summary, at most `room` bytes: first the verdicts that did not pass, then a folded table of all."""
    bad = [verdict for verdict in judgement.verdicts if verdict.name not in ("PASS", "XFAIL")]
    head = ["## Verdicts", "", f"**{summary(judgement)}**", "", *(f"- {line}" for line in judgement.footer[:SHOWN])]
    head += [f"- {verdict.name} {verdict.cell}, {verdict.check}: {_brief(verdict.why)}" for verdict in bad[:SHOWN]]
    head += [f"- and {len(bad) - SHOWN} more that did not pass"] if len(bad) > SHOWN else []
    rows = sorted(judgement.verdicts, key=lambda verdict: verdict.name == "PASS")
    fold = ["", f"<details><summary>All {len(rows)} verdicts</summary>", ""]
    cells = ((verdict.name, verdict.cell, verdict.check, verdict.text) for verdict in rows)
    table = table_of(("verdict", "cell", "check", "what"), cells)
    for verdict in judgement.verdicts:
        if verdict.fields:
            table += ["", f"{verdict.cell}, {verdict.check}:", "", "```", *fields(verdict), "```"]
    end = "\n</details>\n"
    text = _cut([*head, *fold, *table], room - len(end)) if rows else _cut(head, room)
    return text + end if "<details>" in text else text


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= BRIEF else f"{line[: BRIEF - 1]}…"


def _cut(lines: Sequence[str], room: int) -> str:
    note = "\n(cut: the rest is in the log of the step)\n"
    kept: list[str] = []
    size = len(note.encode())
    for line in lines:
        size += len(line.encode()) + 1
        if size > room:
            return ("\n".join(kept) + "\n" + note) if kept else ""
        kept.append(line)
    return "\n".join(kept) + "\n"

"""Known failures: people list them in `expected.yaml` in the folder of baselines, each with a reason and a last day.

    - {cell: mlp cpu_async ×2, data: digits, recipe: quick, check: quality, reason: "issue 12", until: 2026-12-31}

An expected failure becomes XFAIL. If the check passes nevertheless, it becomes XPASS. After its last day an entry has
no effect.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from io import StringIO
from pathlib import Path

from pydantic import Field, TypeAdapter, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from bench.results.runfolder import there
from bench.results.schema import Strict
from bench.validate.checks import CHECKS, OPTIONAL
from bench.validate.verdicts.verdict import EXITS, CellIdentity, Verdict
from ddp import regular_files
from ddp.suggest import unknown

FILE = "expected.yaml"


class Expected(Strict):
    """A known failure."""

    cell: str = Field(description="model and way of training, as verdicts print them")
    data: str
    recipe: str
    depth: int | None = None
    check: str
    reason: str = Field(min_length=1)
    until: date

    @property
    def identity(self) -> CellIdentity:
        """The identity of the cell."""
        return CellIdentity(self.cell, self.data, self.recipe, self.depth)


def load(*baselines: Path) -> list[Expected]:
    """Read the entries in folders of baselines, or beside a file of one; an earlier path's come last, as the last entry
    for a check holds. Raises ValueError that names what is wrong."""
    folders = [path if path.is_dir() else path.parent for path in reversed(baselines)]
    return [entry for folder in folders for entry in _entries(folder / FILE)]


def _entries(path: Path) -> list[Expected]:
    """Read the entries in a file; [] if it is not there."""
    if not there(path):
        return []
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        body = OmegaConf.to_container(OmegaConf.load(StringIO(regular_files.content(path).decode("utf-8"))))
        entries = TypeAdapter(list[Expected]).validate_python(body or [])
    except ValidationError as error:
        first = error.errors()[0]
        place = " ".join(["entry", *map(str, first["loc"])]) if first["loc"] else "file"
        raise ValueError(f"{path}: not a list of known failures: {place}: {first['msg']}") from None
    except (YAMLError, OmegaConfBaseException, OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: not a list of known failures: {str(error).splitlines()[0]}") from None
    for number, entry in enumerate(entries):
        if entry.check not in (names := (*CHECKS, *OPTIONAL)):
            raise ValueError(f"{path}: entry {number}: {unknown('check', entry.check, names)}")
    return entries


def apply(verdicts: Sequence[Verdict], expected: Sequence[Expected], today: date) -> list[Verdict]:
    """Return the verdicts, expected failures as XFAIL and unexpected passes as XPASS."""
    known: dict[tuple[CellIdentity | None, str], Expected] = {
        (entry.identity, entry.check): entry for entry in expected if today <= entry.until
    }
    return [_applied(verdict, known.get((verdict.identity, verdict.check))) for verdict in verdicts]


def _applied(verdict: Verdict, known: Expected | None) -> Verdict:
    if known is None or verdict.name not in ("FAIL", "PASS"):
        return verdict
    why = f"expected until {known.until}: {known.reason}"
    if verdict.name == "FAIL":
        return replace(verdict, name="XFAIL", exit_code=EXITS["XFAIL"], line=f"{verdict.line}; {why}")
    remedy = f"it passes, though a failure is {why}: remove the entry"
    return replace(verdict, name="XPASS", line=f"{verdict.line}; {remedy}")

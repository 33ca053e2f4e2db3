"""`audit.json`: the results of a run's audit. Its schema, and how it is read. Imports no torch.

The file names the records that it belongs to, by the digest of every file that ranks kept, and contains its own digest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from bench.base import canonical
from bench.base.writing import write_text
from bench.results.runfolder import check_keys, read_object
from bench.results.schema import Metrics, Strict

AUDIT, FOLDER = "audit.json", "audit"
"""The file; and the folder of the kept states that remain after an audit."""
UNAUDITED = "the run is not audited: "
"""Begin of the warning that says why a run is not audited."""
VERSION = 1
Outcome = Literal["equal", "different", "skipped"]


class AuditItem(Strict):
    """One thing that the audit compared."""

    what: Literal[
        "initial",
        "step",
        "positions",
        "chain",
        "average",
        "evaluation",
        "data",
        "report",
        "rate",
        "cost",
        "setup",
        "delivered",
    ]
    outcome: Outcome
    line: str = Field(default="", description="what differs, with both values; or why it was skipped")
    rank: int | None = None
    epoch: int | None = None
    step: int | None = Field(default=None, description="the rank's own number of the step, from 0")
    largest: float | None = Field(default=None, description="largest difference, in what roundings may make")
    files: list[str] = Field(default_factory=list, description="what it was read from")

    def __str__(self) -> str:
        known = [f"{name} {value}" for name in ("rank", "epoch", "step") if (value := getattr(self, name)) is not None]
        return f"{', '.join([self.what, *known])}: {self.line}"


class AuditReport(Strict):
    """The audit of a run."""

    version: int = VERSION
    run_id: str
    records_sha256: str | None = Field(default=None, description="of events.jsonl")
    params_sha256: str | None = Field(default=None, description="of the model at the end, as it was read here")
    seconds: float = Field(description="that the audit took")
    kept: list[tuple[str, int, str]] = Field(description="files that ranks recorded: name, bytes, sha256")
    items: list[AuditItem]
    sha256: str = Field(default="", description="of all the rest")

    def count(self, outcome: Outcome, what: str | None = None) -> int:
        """Return the number of items with this outcome, and of kind `what` if given."""
        return sum(item.outcome == outcome and what in (None, item.what) for item in self.items)


def digest(body: dict[str, Any]) -> str:
    """Return the sha256 of a report without its own digest."""
    return canonical.digest({key: value for key, value in body.items() if key != "sha256"})


def write_report(folder: Path, report: AuditReport, metrics: Metrics) -> None:
    """Write `audit.json`, with the digest of the result's records. Raises OSError."""
    bound = {"records_sha256": metrics.record.sha256 if metrics.record is not None else None}
    body = report.model_copy(update=bound).model_dump(mode="json")
    write_text(folder / AUDIT, json.dumps(body | {"sha256": digest(body)}, indent=1) + "\n")


def read(folder: Path) -> AuditReport:
    """Read `audit.json`. Raises ValueError, one line, if it is missing, damaged or was changed."""
    path = folder / AUDIT
    body = read_object(path)
    check_keys(path)
    try:
        report = AuditReport.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if report.sha256 != digest(body):
        raise ValueError(f"{path}: it was changed: its digest is not its content's")
    return report

"""A result of a version with seals that has none is refused, whatever lies beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bench.results import chain
from bench.results.runfolder import CONFIG, EVENTS, METRICS
from bench.validate import judge
from bench.validate.evidence import consistency
from tests.bench.validate.evidence.test_edited import LOST, refusal


@pytest.mark.parametrize("junk", [False, True])
@pytest.mark.parametrize("lacks", [(), (EVENTS,), (EVENTS, CONFIG)])
def test_a_result_without_a_seal_is_refused(
    junk: bool, lacks: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One byte in place of the records was enough to have it judged."""
    monkeypatch.setattr(consistency, "SEALED", 3)
    folder = Path(shutil.copytree(LOST, tmp_path / LOST.name))
    rows = [chain.unlinked(line) for line in (folder / EVENTS).read_bytes().splitlines()][1:-1]
    (folder / EVENTS).write_bytes(b"x" if junk else b"".join(b"%b\n" % row for row in rows))
    for name in lacks:
        (folder / name).unlink()
    body = json.loads((folder / METRICS).read_text()) | {"record": None, "schema_version": 8}
    (folder / METRICS).write_text(json.dumps(body))
    assert refusal(folder).endswith("record is missing, though every result of version 8 has one")
    judgement = judge([folder], tmp_path / "none")
    assert [line for line in judgement.footer if "unsealed" in line] == []

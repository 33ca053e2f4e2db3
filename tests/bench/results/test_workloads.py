"""Another code or data of the user's own is another workload."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report.sections.changes import Pair
from bench.results.cells import by_workload, cells, solo_of
from bench.results.runfolder import CONFIG, find_runs
from tests.bench.references import put
from tests.bench.streams import make_spec


@pytest.mark.parametrize("own", ["code", "data", "file"])
def test_another_code_or_data_of_the_user_is_another_workload(tmp_path: Path, own: str) -> None:
    """A wider model was compared with the solo run of the narrow one, although its own lay in the same tree."""

    def config(digest: str) -> dict[str, object]:
        if own == "file":
            return {"code": {"model": {"source": "net.py", "sha256": digest}, "policy": {"sha256": "of the mode"}}}
        return {"training": {"schedule": "constant", own: digest, "code" if own == "data" else "data": "common"}}

    for version in ("narrow", "wider!"):
        for mode in ("solo", "nccl_sync"):
            folder = put(tmp_path / version, make_spec(mode, config_hash=f"{mode} {version}"), 0.97)
            (folder / CONFIG).write_text(json.dumps(config(version)))
    every = cells(find_runs(tmp_path)[0])
    for alike in by_workload(every).values():
        solo, other = alike
        assert solo_of(alike) is solo
        assert solo.about.config_hash.split()[1] == other.about.config_hash.split()[1]
    named = {"code": "code", "data": "data", "file": "model's code"}[own]
    assert {one.name.partition("(")[2] for one in every} == {f"{named} narrow)", f"{named} wider!)"}
    pair = Pair(every[0], every[-1])
    assert pair.before.workload != pair.now.workload
    assert not pair.retrained, "`bench compare` measures the change of the code"


@pytest.mark.parametrize("training", [None, {"schedule": "cosine", "augment": False}, {"code": ["no text"]}, "none"])
def test_runs_without_digests_still_meet_their_partners(tmp_path: Path, training: object) -> None:
    for mode in ("solo", "nccl_sync"):
        folder = put(tmp_path, make_spec(mode), 0.97)
        if mode == "solo":
            (folder / CONFIG).write_text(json.dumps({"training": training, "code": training}))
    assert len(by_workload(cells(find_runs(tmp_path)[0]))) == 1

"""The golden digests that depend on no machine: `make golden` compares the bits of training as well."""

import json

import pytest

from bench.results.runfolder import find_runs
from bench.runner.replay import mislearnt
from bench.validate.consistency import legible
from benchmarks import golden


def test_results_still_follow_from_their_records():
    """Where this fails, the analysis makes something else of the same records: that is a new `SCHEMA_VERSION`."""
    for run in find_runs(golden.RUNS)[0]:
        legible(run)
        assert mislearnt(run) is None, run.path


@pytest.mark.parametrize("part", ["configurations", "replay"])
def test_digests_are_as_committed(part):
    committed = json.loads(golden.DIGESTS.read_text())
    assert golden.differences(committed[part], golden.PARTS[part]()) == []


def test_a_digest_that_differs_is_named():
    assert golden.differences({"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}) == [
        "b: 2 committed, 3 now",
        "c: nothing committed, 4 now",
    ]

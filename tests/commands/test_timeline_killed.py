"""The timeline of a run that was killed with all its processes."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

from bench.command.verbs.explain_command import explained_run
from bench.results.runfolder import EVENTS, find_runs
from bench.timeline import launched_at
from bench.timeline.rewrite import locate, rewrite
from tests.bench.timeline.trace_rules import violations
from tests.warm import PICTURES, Warm, wait_for


def trace(folder: Path) -> list[dict]:
    body = json.loads((folder / "timeline.json").read_text())
    assert violations(body) == []
    return body["traceEvents"]


def test_a_run_killed_with_all_its_processes_leaves_its_timeline(warm: Warm, tmp_path: Path) -> None:
    quiet = ("checkpoint.every=0", "report=false", "validate=false")
    words = ("model=mlp", "mode=nccl_cadence", "train.epochs=400", "profile.steps=2", *quiet)
    process = warm.start(tmp_path, "-m", "bench", *words, env={PICTURES: "none"})

    def trained() -> list[Path]:
        profiled = len(list(tmp_path.rglob("torch-[01].json"))) == 2
        return [path for path in tmp_path.rglob("slices-1.jsonl") if profiled and path.stat().st_size > 50_000]

    try:
        grown = wait_for(trained, process)
    finally:
        process.kill_all()
    assert process.returncode == -signal.SIGKILL
    hidden = grown[0].parent
    assert len(trace(hidden)) > 10, "what it had written of its own accord opens, too"
    place = hidden.with_name(hidden.name.removeprefix(".tmp-").rpartition("-")[0])
    assert locate(place) == hidden
    shutil.rmtree(hidden / "checkpoints", ignore_errors=True)
    assert rewrite(place) == hidden
    events = trace(hidden)
    assert {event["pid"] for event in events if event["name"] == "backward"} == {0, 1}
    assert {event["pid"] for event in events if event["name"] == "aten::linear" and event["cat"] == "torch"} == {0, 1}
    assert {"loss", "lr", "samples/s", "memory MB"} <= {event["name"] for event in events if event["ph"] == "C"}
    begun = min(event["ts"] for event in events if event["name"] == "step")
    assert 0 < begun < 60e6, "times are since launch"
    first = json.loads((hidden / EVENTS).read_text().partition("\n")[0])
    assert (first["type"], first["at"]) == ("RunHeader", launched_at(hidden)), "the zero of all who read the records"
    assert (hidden / "timeline.html").stat().st_size > 20_000
    assert find_runs(tmp_path)[0] == []
    run = explained_run(place)
    assert {cause.rank for cause in run.causes if cause.cause == "computing"} == {0, 1}, "its slices are read too"
    assert run.notes[0].startswith("these are its times so far: it was killed before its end")

"""Plans before, reruns and replays after: the verbs around a run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.base.exitcodes import Exit
from bench.base.writing import write_text
from bench.command import cli
from bench.command.verbs.plan_command import estimate
from bench.command.verbs.rerun import compare
from bench.results.cells import cells
from bench.results.runfolder import CONFIG, EVENTS, METRICS, Run, find_runs, read_records
from bench.runner.replay import Unfit, deviation
from bench.validate.checks import determinism
from bench.validate.checks.determinism import promised
from bench.validate.verdicts.findings import Case
from ddp.backends import world_of
from ddp.core.messages.commands import Abort
from ddp.core.policies import POLICIES, Policy
from ddp.core.policies.sync import Sync
from ddp.core.settings.faults import Fault
from ddp.core.settings.world import World
from ddp.process.codec import encode
from ddp.sim import Costs, simulate
from tests.bench.streams import make_metrics, make_spec, write_run

SOLO = ("model=mlp", "mode=solo", "train.epochs=2")


def simulated(folder: Path, policy: str = "cadence", backend: str = "nccl") -> Run:
    """A run folder with the records of the simulator, numbered as the journal does."""
    world = World(2, 200, 10, 3, blocking=backend == "nccl", in_step=False, deadline_s=60.0, tolerate_loss=True)
    return recorded(folder, world, f"{backend}_{policy}", POLICIES[policy]())


def recorded(
    folder: Path, world: World, mode: str, made: Policy, faults: tuple[Fault, ...] = (), **changed: Any
) -> Run:
    costs = Costs(lambda rank, step: 0.01 * (1 + rank), latency_s=1e-4, wire_s=0.002, reduce_s=0.002, report_s=0.02)
    played = simulate(made, world, costs=costs, faults=faults)
    spec = replace(make_spec(mode, epochs=3, batch_size=10), **changed)
    metrics = make_metrics(spec).model_copy(update={"epochs_planned": 3, "batch_size": 10})
    path = write_run(folder, spec, metrics)
    policy = {"name": spec.policy} | vars(made)
    config = {
        **{"model": "mlp", "engine": spec.engine, "policy": policy, "backend": spec.backend},
        **{"averaging": None, "world_size": 2, "seed": 0, "recipe": "quick", "train": {}, "data": {}},
        **{"cluster": {}, "checkpoint": {"every": 0}},
    }
    (path / CONFIG).write_text(json.dumps(config))
    lines = [b'{"n":%d,' % n + encode(record, at)[1:] for n, (at, record) in enumerate(played.records)]
    (path / EVENTS).write_bytes(b"\n".join(reversed(lines)) + b"\n")
    return find_runs(path)[0][0]


@pytest.mark.parametrize(("policy", "backend"), [("cadence", "nccl"), ("async", "cpu"), ("sync", "cpu")])
def test_a_recorded_run_replays_whatever_the_order_of_its_lines(tmp_path: Path, policy: str, backend: str) -> None:
    checked, found = deviation(simulated(tmp_path, policy, backend))
    assert found is None
    assert checked > 20


def test_a_run_that_could_not_go_on_without_a_rank_replays(tmp_path: Path) -> None:
    world = world_of("zero2", 2, 200, 10, 3, deadline_s=60.0)
    run = recorded(tmp_path, world, "nccl_sync", Sync(), (Fault(1, 5, "crash"),), engine="zero2")
    given = [record for record in read_records(run.path) if isinstance(record, Abort)]
    assert [record.reason.count("zero2 cannot go on without a rank") for record in given] == [1]
    checked, found = deviation(replace(run, metrics=run.metrics.model_copy(update={"status": "failed"})))
    assert found is None
    assert checked > 3


def edited(run: Run, kind: str, change: dict[str, Any]) -> Run:
    path = run.path / EVENTS
    lines = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    wanted = sorted((line for line in lines if line["type"] == kind), key=lambda line: int(line["n"]))[2]
    wanted.update(change)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    return run


@pytest.mark.parametrize(
    ("kind", "change", "says"),
    [
        ("Train", {"pace": 9.0}, "recorded is Train"),
        ("Merged", {"rank": 0, "spans": [[0, 1]]}, "recorded is Merged"),
        ("Progress", {"steps": 999, "samples": 9990}, "record "),
    ],
)
def test_a_record_that_the_core_would_not_give_is_named(
    tmp_path: Path, kind: str, change: dict[str, Any], says: str
) -> None:
    _, found = deviation(edited(simulated(tmp_path), kind, change))
    assert found is not None
    assert says in found


def test_a_record_that_is_missing_is_found(tmp_path: Path) -> None:
    run = simulated(tmp_path)
    lines = (run.path / EVENTS).read_bytes().splitlines(keepends=True)
    dropped = next(i for i, line in enumerate(lines) if b'"Train"' in line)
    (run.path / EVENTS).write_bytes(b"".join(lines[:dropped] + lines[dropped + 1 :]))
    assert deviation(run)[1] is not None


@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.9])
def test_records_that_end_before_the_run_does_are_not_equal(tmp_path: Path, part: float) -> None:
    """What is left of them replays well: a file of three lines was EQUAL."""
    run = simulated(tmp_path)
    assert deviation(run)[1] is None
    lines = sorted((run.path / EVENTS).read_bytes().splitlines(keepends=True), key=lambda line: json.loads(line)["n"])
    kept = lines[: max(1, int(part * len(lines)))]
    while b'"type":"Progress"' not in kept[-1] and len(kept) > 1:
        kept.pop()
    (run.path / EVENTS).write_bytes(b"".join(kept))
    with pytest.raises(Unfit, match="cut off"):
        deviation(run)


def test_a_deviation_says_whose_core_recorded_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A run of another version may well be decided otherwise: its reader is told of both versions."""
    run = edited(simulated(tmp_path), "Train", {"pace": 9.0})
    write_text(run.path / METRICS, run.metrics.model_copy(update={"git": {"sha": "abc"}}).model_dump_json())
    assert cli.dispatch(["replay", str(run.path)]) == 1
    assert "sha: abc then" in capsys.readouterr().out


def test_what_cannot_be_replayed_says_why(tmp_path: Path) -> None:
    solo = write_run(tmp_path / "a", make_spec("solo"))
    with pytest.raises(Unfit, match="no coordinator"):
        deviation(find_runs(solo)[0][0])
    old = write_run(tmp_path / "b", make_spec("nccl_cadence"))
    with pytest.raises(Unfit, match="earlier version"):
        deviation(find_runs(old)[0][0])


def test_runs_are_compared_to_the_last_bit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = make_metrics(make_spec("solo"))
    assert compare(Run(tmp_path, one), one) is Exit.OK
    rows = list(one.epochs)
    loss = rows[1].eval_loss
    assert loss is not None
    rows[1] = rows[1].model_copy(update={"eval_loss": loss * (1 + 2**-52)})
    other = one.model_copy(update={"epochs": rows})
    assert compare(Run(tmp_path, one), other) is Exit.REGRESSION
    assert "epoch 1 eval_loss" in capsys.readouterr().out
    free = [m.model_copy(update={"mode": "nccl_async", "engine": "elche", "policy": "async"}) for m in (one, other)]
    assert compare(Run(tmp_path, free[0]), free[1]) is Exit.INCONCLUSIVE
    assert "does not promise equal bits" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "loss", "code"), [({}, 1.0, 1), ({"script": "a.py"}, 1.0, 0), ({"script": "a.py"}, 2.0, 1)]
)
def test_a_script_may_record_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: dict[str, Any], loss: float, code: int
) -> None:
    """A script that recorded how long its steps took was DIFFERENT, and failed `determinism`."""
    spec = make_spec("solo")
    one = make_metrics(spec).model_copy(update={"params_sha256": "one"})
    *rows, last = one.epochs
    more = {"scalars": {"ms": 1.3}, "scalars_per_rank": [{"ms": 1.3}], "train_loss": (last.train_loss or 0.0) * loss}
    other = one.model_copy(update={"epochs": [*rows, last.model_copy(update=more)]})
    assert compare(Run(tmp_path, one, config), other).value == code
    said = capsys.readouterr().out
    assert ("EQUAL" in said) is (code == 0)
    assert "scalars: {} and {'ms': 1.3}" in said or loss != 1.0
    for name, metrics in (("a", one), ("b", other)):
        path = write_run(tmp_path / "runs" / name, spec, metrics)
        (path / CONFIG).write_text(json.dumps(json.loads((path / CONFIG).read_text()) | config))
    (cell,) = cells(find_runs(tmp_path / "runs")[0])
    found = determinism.check(Case(cell, None))
    assert found is not None
    assert (found.name, "'ms': 1.3" in found.line) == ("FAIL" if code else "PASS", loss == 1.0)


@pytest.mark.parametrize(("mode", "bits"), [("solo", True), ("nccl_sync", True), ("nccl_cadence", False)])
def test_bits_are_promised_where_no_speed_has_a_say(mode: str, bits: bool) -> None:
    run = make_metrics(make_spec(mode))
    assert promised(run, {}) is bits
    assert not promised(run.model_copy(update={"engine": "graph", "world_size": 2}), {})


def test_rerun_trains_again_and_leaves_the_folder(
    quiet: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet(*SOLO)
    (run,) = find_runs(tmp_path / "runs")[0]
    before = {file.name: file.read_bytes() for file in run.path.iterdir()}
    assert cli.dispatch(["rerun", str(run.path)]) == 0
    assert "EQUAL" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in run.path.iterdir()} == before
    monkeypatch.setenv("BENCH_FAKE", "other bits")
    assert cli.dispatch(["rerun", str(run.path)]) == 1
    assert "params_sha256: d1 of seed 0 and d2 of seed 0" in capsys.readouterr().out
    monkeypatch.delenv("BENCH_FAKE")
    body = json.loads(before["metrics.json"]) | {"params_sha256": "another"}
    (run.path / "metrics.json").write_text(json.dumps(body))
    for verb in ("rerun", "replay"):
        assert cli.dispatch([verb, str(run.path)]) == 4
        assert "REFUSED" in (line := capsys.readouterr().out)
        assert "params_sha256 is another, but events.jsonl gives d1 of seed 0" in line
    assert cli.dispatch(["rerun", str(tmp_path / "runs")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_a_plan_trains_nothing_and_knows_what_is_there(
    quiet: Any, bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("plan", "-m", *SOLO, "seed=0,1,2") == 0
    said = capsys.readouterr().out
    assert "planned: 3 runs of 1 cell, 0 finished, 3 to train: about 30 s" in said, (
        "half as many epochs as the recipe has"
    )
    assert not Path("runs").exists()
    quiet("-m", *SOLO, "seed=0,1")
    capsys.readouterr()
    assert bench("plan", "-m", *SOLO, "seed=0,1,2") == 0
    said = capsys.readouterr().out
    assert "2 finished, 1 to train" in said
    assert "this cell, 2 runs" in said
    assert bench("plan", *SOLO, "seed=0") == 0
    assert "0 finished, 1 to train" in capsys.readouterr().out  # as `run` has it: what is asked for alone is made anew
    assert bench("plan", "model=mlp", "mode=solo", "world_size=2") == 2
    assert "impossible: world_size=2" in capsys.readouterr().out


def test_an_experiment_is_chosen_with_and_without_a_plus(quiet: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for word in ("experiment=smoke", "+experiment=smoke"):
        assert quiet(word, "--cfg", "job") == 0
        assert "output: runs/smoke" in capsys.readouterr().out


def test_estimates_take_the_best_that_is_known() -> None:
    spec = make_spec("nccl_cadence")
    run = make_metrics(spec)
    other = run.model_copy(update={"config_hash": "other", "mode": "solo"})
    assert estimate(spec, []).source == "a usual run"
    assert estimate(replace(spec, epochs=3000), []).seconds > 1000, "it was as long as one of 3 epochs"
    assert estimate(spec, [run.model_copy(update={"status": "failed"})]).source == "a usual run"
    assert estimate(spec, [other]).source == "this model, 1 run"
    found = estimate(spec, [other, run])
    assert (found.source, found.seconds) == ("this cell, 1 run", pytest.approx(run.time_s.total))
    longer = estimate(replace(spec, epochs=6), [run])
    assert run.time_s.total < longer.seconds < 2 * run.time_s.total

"""Predictions: what is calibrated is what was measured, cells cost what closed forms say, folders read like a run's."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.command.verbs.predict_command import DOUBT
from bench.predict.calibration import Calibration, calibrated
from bench.predict.cells import predict
from bench.predict.evidence import CalibratedCell, CalibratedRun, metrics_of, own_cell, rate_of
from bench.predict.folder import write_run
from bench.predict.grid import anchored, faster, grid, what_if
from bench.predict.play import bytes_of, play
from bench.predict.predicted_cell import speeds_of
from bench.predict.spec import predicted_spec
from bench.predict.steptimes import WARM, asleep, autocorrelation, resampled, shape
from bench.results.analysis.stream import Slices, sort
from bench.results.analysis.syncing import exits
from bench.results.recompute import result
from bench.results.runfolder import EVENTS, find_runs, read_records
from bench.validate.evidence.consistency import legible
from ddp.core.messages.events import Slice
from ddp.core.network.link_costs import collective_s
from ddp.core.network.links import parse
from ddp.sim.distributions import distribution
from tests.bench.streams import LAUNCHED, make_records, make_spec
from tests.predict.measured import run_of

CONFIG = {"policy": {"name": "sync"}, "cluster": {"speeds": []}, "world_size": 2, "model": "mlp"}


def calibration(step_s: tuple[float, ...] = (0.01, 0.03), mode: str = "nccl_sync", **changes: Any) -> Calibration:
    spec = make_spec(mode, len(step_s), config=CONFIG | {"policy": {"name": mode.split("_")[1]}}, **changes)
    return calibrated(sort(make_records(spec, step_s=step_s), LAUNCHED), spec, LAUNCHED)


def constant(own: Calibration, *step_s: float) -> Calibration:
    """The same without any randomness or side cost: what closed forms are of."""
    nothing: dict[str, Any] = {"first_s": (0.0,) * len(step_s), "gaps_s": (0.0,) * len(step_s)}
    nothing |= {
        "wires": np.zeros(9),
        "exits": np.zeros((9, 2)),
        "rounds": np.zeros(0),
        "steps": tuple(np.full(100, each) for each in step_s),
    }
    names = ("beside_s", "reduce_s", "copy_s", "latency_s", "evaluate_s", "save_s", "start_s")
    return replace(own, **nothing | dict.fromkeys(names, 0.0))


def repeated(own: Calibration, *errors: float) -> CalibratedCell:
    """Runs of which the model is off by `errors`, relative; one that it gets right if there are none."""
    rate = rate_of(own_cell(own), own, 0)
    return CalibratedCell(tuple(CalibratedRun(own, rate / (1 + error)) for error in errors or (0.0,)))


def test_what_is_calibrated_is_what_was_measured() -> None:
    own = calibration()
    for series, mean in zip(own.steps, (0.01, 0.03), strict=True):
        assert series.size == 90 - WARM
        assert float(series.mean()) == pytest.approx(mean, rel=0.03)
        assert 0.9 * mean <= series.min() <= series.max() <= 1.1 * mean
    assert own.wires == pytest.approx(np.full(own.wires.size, 0.004))
    assert dict(own.parts) == pytest.approx({"data": 0.1, "forward": 0.3, "backward": 0.5, "optimizer": 0.1})
    assert own.per_step == pytest.approx(1.0)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.005, 0.05), min_size=2, max_size=5), st.sampled_from(["wan_1g_30ms", "ib", "5ms/10mbit"]))
def test_synchronous_training_takes_the_slowest_step_and_the_link(step_s: list[float], link: str) -> None:
    """By hand: each step lasts as long as the slowest rank's and the collective's."""
    own = constant(calibration((0.01,) * len(step_s)), *step_s)
    links = parse(link, len(step_s))
    assert links is not None
    cell = replace(own_cell(own), links=links)
    metrics = metrics_of(cell, own, play(cell, own, 0))
    wire = collective_s(links, tuple(range(len(step_s))), bytes_of(cell, own))
    batch = own.spec.batch_size * len(step_s)
    seconds, longest = 90 * (max(step_s) + wire), 3 * (6 * links.rules[0].link.latency_s + wire)
    rate = metrics.throughput.samples_per_s
    assert rate is not None
    assert 90 * batch / (seconds + longest) <= rate <= 90 * batch / seconds * 1.001  # messages at the ends of epochs
    assert metrics.throughput.efficiency is not None
    alone = sum(own.spec.batch_size / each for each in step_s)
    assert metrics.throughput.efficiency == pytest.approx(rate / alone, rel=0.01)


def test_a_collective_holds_a_rank_until_it_leaves_and_no_longer() -> None:
    """By hand: who waits leaves 4 ms after the last to arrive. That counts only where both are as fast."""
    own = calibration()
    left = np.zeros((9, 2))
    left[:, 1] = 0.004
    for step_s, seconds in (((0.01, 0.01), 0.014), ((0.01, 0.03), 0.03)):
        cell = replace(constant(own, *step_s), exits=left)
        rate = rate_of(own_cell(cell), cell, 0)
        assert rate == pytest.approx(2 * own.spec.batch_size / seconds, rel=0.02)


def test_exits_by_hand() -> None:
    rows = [(0, 1.0, 3.0, 7), (1, 2.0, 2.5, 7), (0, 4.0, 4.5, 8), (1, 4.0, 4.5, 8)]
    slices = Slices.of([Slice(at, rank, "exchange", stop - at, seq) for rank, at, stop, seq in rows])
    wires, left = exits(slices)
    assert wires.tolist() == [0.5, 0.5]
    assert left.tolist() == [[0.0, 0.5], [0.0, 0.0]]


@given(st.integers(0, 99), st.floats(0.02, 0.4))
def test_resampling_keeps_mean_spread_and_neighbourhood(seed: int, spread: float) -> None:
    dice = np.random.default_rng(seed)
    noise = dice.normal(0, 1, 600)
    for place in range(1, 600):
        noise[place] = 0.8 * noise[place - 1] + 0.6 * noise[place]
    series = 0.01 * np.exp(spread * noise)
    drawn = resampled(series, 20_000, dice)
    assert set(drawn.tolist()) <= set(series.tolist())
    assert float(drawn.mean()) == pytest.approx(float(series.mean()), rel=0.15)
    assert shape(drawn).spread == pytest.approx(shape(series).spread, rel=0.25)
    assert autocorrelation(drawn, 1) > 0.4
    assert np.median(series) + asleep(series, 0.5)[0] == pytest.approx(2 * np.median(series))
    assert series + asleep(series, 0.5, 0.01) == pytest.approx(series.clip(0.02))


@pytest.mark.parametrize("text", ["lognormal:0.3", "exponential:0.5", "pareto:3.5", "onoff:4:0.2"])
def test_distributions_have_mean_one_and_their_own_spread(text: str) -> None:
    drawn = distribution(text).draw(400_000, np.random.default_rng(1))
    assert float(drawn.mean()) == pytest.approx(1.0, rel=0.05)
    assert drawn.min() > 0
    variance = {
        "lognormal:0.3": math.exp(0.09) - 1,
        "exponential:0.5": 0.25,
        "pareto:3.5": 3.5 / (2.5**2 * 1.5) * (2.5 / 3.5) ** 2,
        "onoff:4:0.2": 0.16 * 9 / 1.6**2,
    }[text]
    assert float(drawn.var()) == pytest.approx(variance, rel=0.3)


@pytest.mark.parametrize("text", ["normal:1", "lognormal", "lognormal:x", "pareto:1.0", "onoff:2:0.95", "onoff:2"])
def test_a_distribution_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--steps"):
        distribution(text)


def test_a_healed_rank_and_a_faster_link_do_what_they_must() -> None:
    own = constant(calibration(speeds=(1.0, 0.5)), 0.01, 0.01)
    links = parse("1ms/100mbit", 2)
    assert links is not None
    cell = replace(own_cell(own), links=links)
    source = repeated(own)
    base, _ = predict(cell, source, "")
    others = {name: predict(other, source, name)[0] for name, other in what_if(cell, own)}
    wire = collective_s(links, (0, 1), bytes_of(cell, own))
    assert {"rank 1 healed", "twice the bandwidth", "policy cadence", "policy async"} <= set(others)
    healed = others["rank 1 healed"].samples_per_s / base.samples_per_s
    assert healed == pytest.approx((0.02 + wire) / (0.01 + wire), rel=0.02)
    twice = collective_s(faster(links, 2.0), (0, 1), bytes_of(cell, own))
    assert others["twice the bandwidth"].samples_per_s / base.samples_per_s == pytest.approx(
        (0.02 + wire) / (0.02 + twice), rel=0.02
    )
    assert base.limit.startswith("waiting for rank 1")


def test_steps_of_a_given_time_are_predicted_at_it() -> None:
    """By hand: steps of 10 ms at speed 1 last 20 ms at speed 0.5, whether they need 2 or 4 ms."""
    own = constant(calibration(speeds=(1.0, 0.5)), 0.002, 0.004)
    given = CONFIG | {"cluster": {"speeds": [1.0, 0.5], "step_s": 0.01}}
    held = replace(own, spec=replace(own.spec, config=given))
    assert rate_of(own_cell(held), held, 0) == pytest.approx(2 * own.spec.batch_size / 0.02, rel=0.02)


def test_speeds_are_tiled_and_cells_come_from_the_run_of_their_policy() -> None:
    sync, cadence = calibration(), calibration(mode="nccl_cadence")
    sources = [repeated(sync, 0.0, 0.1), repeated(cadence)]
    cells = list(grid(sources, [2, 3], [None], ["sync", "cadence"], speeds=(1.0, 0.5)))
    assert [source is sources[1] for _, source in cells] == [False, False, True, True]
    assert speeds_of(cells[1][0], sync) == (1.0, 0.5, 1.0)
    assert speeds_of(replace(cells[1][0], healed=(1,)), sync) == (1.0, 1.0, 1.0)
    windows = dict(anchored(cells[2][0], 7).settings)
    assert [windows[name] for name in ("anchor", "min_anchor", "max_anchor")] == [7, 7, 7]
    with pytest.raises(ValueError, match="no anchor"):
        anchored(cells[0][0], 7)


@pytest.mark.parametrize("mode", ["nccl_sync", "nccl_cadence", "cpu_async"])
def test_a_predicted_folder_reads_like_one_of_a_run(mode: str, tmp_path: Path) -> None:
    own = calibration(mode=mode)
    cell = replace(own_cell(own), ranks=3)
    played = play(cell, own, 0)
    folder = write_run(cell, own, played, tmp_path)
    (run,), problems = find_runs(tmp_path)
    assert problems == []
    assert run.path == folder
    legible(run)
    assert run.metrics.source == "predicted"
    assert {row.eval for row in run.metrics.epochs} == {None}
    again = result(list(read_records(folder)))
    assert again.throughput == run.metrics.throughput == metrics_of(cell, own, played).throughput
    assert again.ledger is not None
    assert again.ledger.exactly_once
    names = {"metrics.json", "events.jsonl", "config.json", "timeline.json", "timeline.html", "timeline.csv"}
    assert names <= {path.name for path in folder.iterdir()}
    assert json.loads((folder / "timeline.json").read_text())["otherData"]["started"] is None
    assert predicted_spec(cell, own).config_hash != own.spec.config_hash


def test_the_verb(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, made: Path, again: Path
) -> None:
    monkeypatch.setattr("bench.timeline.draw", lambda *picture: None)
    tree, file = tmp_path / "predicted", tmp_path / "predicted.json"
    words = ["--ranks", "2,5", "--policies", "sync,cadence", "--links", "same,ib", "--json", str(file)]
    assert dispatch(["predict", str(made), str(again), "--output", str(tree), *words]) == Exit.OK
    said, body = capsys.readouterr().out, json.loads(file.read_text())
    assert len(body["predictions"]) == 8
    assert len(find_runs(tree)[0]) == 8
    for row in body["predictions"]:
        doubt = "" if row["trusted"] else " (?)"
        assert f"{row['samples_per_s']:,.0f} | {row['low']:,.0f} to {row['high']:,.0f}{doubt} |" in said
        assert bool(row["beyond"]) == (row["ranks"] > 2 or row["links"] == "ib" or row["mode"] != "nccl_sync")
        assert row["trusted"] == (row["links"] != "ib" and row["mode"] == "nccl_sync")
    assert "2 runs of this cell: a wide interval" in said
    assert DOUBT in said
    assert dispatch(["report", str(tree), "--out", str(tmp_path / "report")]) == Exit.OK
    assert "(predicted)" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["--ranks", "1"],
        ["--ranks", "many"],
        ["--policies", "cadenze"],
        ["--links", "wam"],
        ["--links", "tree"],
        ["--speeds", "2.0"],
        ["--bandwidth", "2"],
        ["--heal", "2"],
        ["--anchor", "5"],
        ["--cores", "0"],
        ["--cores", "99999999999999999999"],
        ["--policies", "cadence", "--anchor", "0"],
        ["--policies", "cadence", "--anchor", "99999999999999999999"],
        ["--steps", "lognormal"],
    ],
)
def test_what_cannot_be_predicted_is_said(words: list[str], tmp_path: Path, made: Path) -> None:
    assert dispatch(["predict", str(made), "--output", "none", *words]) == Exit.USAGE


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("policy", "mine", "unknown policy 'mine'"),
        ("backend", "mine", "unknown backend 'mine'"),
        ("speeds", [0.5], "1 speeds of 2 ranks"),
        ("speeds", [0, 0], "records were changed"),
        ("batch_size", 0, "records were changed"),
        ("batch_size", -8, "records were changed"),
        ("epochs", -1, "records were changed"),
        ("world_size", 10**12, "1000000000000 ranks"),
        (None, None, "no sample as trained"),
    ],
)
def test_a_run_that_cannot_be_played_is_one_line(
    key: str | None, value: object, complaint: str, tmp_path: Path, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A part that is not installed here, changed records, and a run that was killed before any report."""
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    header, *records = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    if key is None:
        records = [record | {"samples": 0} if record["type"] == "Progress" else record for record in records]
    else:
        header["spec"][key] = value
    (folder / EVENTS).write_text("".join(json.dumps(record) + "\n" for record in (header, *records)))
    assert dispatch(["predict", str(folder), "--output", "none"]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert complaint in error


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(calibration(), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def again(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the same cell with another seed, on a machine that was a little slower."""
    own = calibration(seed=1)
    return run_of(replace(own, steps=tuple(series * 1.01 for series in own.steps)), tmp_path_factory.mktemp("again"))

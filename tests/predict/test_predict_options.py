"""What options of `bench predict` do and say: drawn step times, links, speeds."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.predict.evidence import own_cell, rate_of
from bench.predict.grid import what_if
from bench.predict.play import costs_of
from bench.predict.predicted_cell import speeds_of
from bench.predict.spec import otherwise
from bench.predict.traces import TracedSteps
from bench.results.runfolder import EVENTS
from ddp.core.network.links import parse
from ddp.sim.distributions import distribution
from tests.predict.measured import run_of
from tests.predict.test_predict import CONFIG, calibration, constant


def test_drawn_steps_scatter_around_the_emulated_step() -> None:
    """They scaled the work beneath it, so that a given time of a step hid them."""
    plain = constant(calibration(), 0.01, 0.01)
    config = CONFIG | {"cluster": {"speeds": [1.0, 1.0], "step_s": 0.01}}
    work = constant(calibration(speeds=(1.0, 1.0)), 0.001, 0.002)
    held = replace(work, spec=replace(work.spec, config=config))
    drawn = distribution("lognormal:1")
    rates = [rate_of(replace(own_cell(own), steps=drawn), own, 0) for own in (plain, held)]
    assert rates[1] == pytest.approx(rates[0], rel=0.01)
    assert rates[1] < 0.7 * rate_of(own_cell(held), held, 0)
    assert otherwise(replace(own_cell(held), steps=drawn), held) == [
        "step times scatter as drawn from a distribution, around the emulated 10 ms a step, by speed"
    ]


@pytest.mark.parametrize("text", ["pareto:1.05", "lognormal:3", "onoff:1000:0.001", "exponential:0.5"])
def test_drawn_steps_keep_the_mean_of_the_run(text: str) -> None:
    """Draws of a heavy tail are mostly below its mean, so that a run was predicted at 1.5 times its speed."""
    own = constant(calibration(), 0.01, 0.01)
    for seed in range(3):
        costs = costs_of(replace(own_cell(own), steps=distribution(text)), own, seed)
        times = [costs.step_s(rank, step) for rank in range(2) for step in range(90)]
        assert sum(times) == pytest.approx(2 * 90 * 0.01)


def test_a_rank_that_is_healed_stays_so_in_variants() -> None:
    """The next one was healed in its place."""
    own = calibration((0.01,) * 3, speeds=(1.0, 0.5, 0.25))
    variants = dict(what_if(replace(own_cell(own), healed=(1,)), own))
    assert "rank 1 healed" not in variants
    assert speeds_of(variants["rank 2 healed"], own) == (1.0, 1.0, 1.0)


def test_of_a_trace_only_the_shape_counts_and_is_said() -> None:
    own = constant(calibration(), 0.01, 0.01)
    slow, fast = (TracedSteps("job.json", (np.array([1.0, 2.0, 3.0]) * scale,)) for scale in (1.0, 1e-3))
    assert len({rate_of(replace(own_cell(own), steps=each), own, 0) for each in (slow, fast)}) == 1
    said = "step times scatter as in job.json, around the calibrated mean of a step"
    assert otherwise(replace(own_cell(own), steps=slow), own) == [said]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_of(calibration(), tmp_path_factory.mktemp("runs"))


def test_what_is_given_twice_is_predicted_once(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ranks", "2,2", "--links", "ib,same,ib ring,ib tree", "--policies", "sync,sync", "--output", "none"]
    assert dispatch(["predict", str(made), *words]) == Exit.OK
    said = capsys.readouterr().out
    assert "left out --links ib ring: the same as ib\n" in said
    rows = [line.split(" | ")[0] for line in said.splitlines() if line.startswith("| nccl")]
    assert rows == [f"| nccl_sync ×2 over {links}" for links in ("ib", "as calibrated", "ib tree")]


def test_speeds_that_no_rank_has_are_said(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--ranks", "2,3", "--speeds", "1,0.5,0.25", "--cores", "1", "--output", "none"]
    assert dispatch(["predict", str(made), *words]) == Exit.OK
    said = capsys.readouterr().out
    assert said.count("--speeds") == 1
    assert "×2 takes only the first 2 of 3 --speeds\n" in said
    assert "3 ranks share 1 core:" in said


@pytest.mark.parametrize("links", ["1:ib", "0+0:ib", "ring tree", "", "same,"])
def test_links_without_effect_are_refused(made: Path, links: str) -> None:
    """An empty entry was no links, and called "as calibrated" of a run that has some."""
    assert dispatch(["predict", str(made), "--output", "none", "--links", links]) == Exit.USAGE


@pytest.mark.parametrize(("gbit", "doubled"), [(40_000, True), (40_001, False)])
def test_links_that_cannot_be_twice_as_fast_have_other_variants(gbit: int, doubled: bool) -> None:
    """They had none: the bandwidth was refused."""
    own = calibration()
    names = [name for name, _ in what_if(replace(own_cell(own), links=parse(f"1ms/{gbit}gbit")), own)]
    assert ("twice the bandwidth" in names) == doubled
    assert "policy cadence" in names


@pytest.mark.parametrize("verb", ["predict", "explain", "goodput"])
def test_a_result_that_could_not_be_written_is_refused_first(
    verb: str, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was found after all had been computed."""
    file = tmp_path / "no" / "such.json"
    paths = [str(made)] if verb != "goodput" else []
    assert dispatch([verb, *paths, "--json", str(file)]) == Exit.USAGE
    out, error = capsys.readouterr()
    assert out == ""
    assert f"there is no folder {file.parent}" in error
    assert list(tmp_path.iterdir()) == []


def test_bytes_that_are_no_record_are_shown_in_short(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    (folder / EVENTS).write_bytes(bytes(range(128, 256)) * 8)
    assert dispatch(["predict", str(folder), "--output", "none"]) == Exit.USAGE
    said = capsys.readouterr().err.partition(EVENTS)[2]
    assert "\\x" not in said
    assert len(said) < 250


@pytest.mark.parametrize("verb", ["predict", "explain"])
@pytest.mark.parametrize(("key", "value"), [("bytes", 10**30), ("rank", 2**63), ("kind", "x")])
def test_a_record_out_of_range_is_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str, key: str, value: object
) -> None:
    """It was a traceback."""
    folder = Path(shutil.copytree(made, tmp_path / "run"))
    records = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    changed = next(record for record in records if record["type"] == "Slice")
    changed[key] = value
    (folder / EVENTS).write_text("".join(json.dumps(record) + "\n" for record in records))
    assert dispatch([verb, str(folder), *(["--output", "none"] if verb == "predict" else [])]) == Exit.USAGE
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "not the records of a run" in error

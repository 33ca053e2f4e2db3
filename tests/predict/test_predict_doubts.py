"""What a prediction must not be sure of: cores, links, healed ranks, learning rates and runs unlike the calibrated ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.command.verbs.predict_command import _cells
from bench.predict.calibration import calibrated
from bench.predict.cells import distance, near, predict
from bench.predict.evidence import CalibratedCell, CalibratedRun, off_by, own_cell, rate_of, shows_error
from bench.predict.grid import grid
from bench.predict.play import costs_of
from bench.predict.spec import beyond, otherwise, predicted_spec
from bench.results.analysis.stream import sort
from ddp.core.messages.commands import Drop
from ddp.core.messages.events import Lost
from ddp.core.messages.join_events import Joined
from ddp.core.network.links import parse
from tests.bench.streams import LAUNCHED, make_records, make_spec
from tests.predict.measured import run_of
from tests.predict.test_predict import CONFIG, calibration, constant, repeated


def test_fewer_cores_than_the_run_had_make_it_slower() -> None:
    """The run itself was played on them, too, so that its measured speed was predicted for any number of cores."""
    own = constant(replace(calibration((0.01,) * 4), cores=16), *(0.01,) * 4)
    alone = own_cell(own)
    prediction, _ = predict(replace(alone, cores=1), repeated(own), "")
    assert prediction.samples_per_s == pytest.approx(rate_of(alone, own, 0) / 4, rel=0.05)
    assert not near(replace(alone, cores=1), repeated(own, 0.0, 0.0))
    assert [line for line in beyond(replace(alone, cores=1), own) if line.startswith("4 ranks share 1 core")]
    assert beyond(replace(alone, cores=8), own) == []


def test_the_cores_that_a_run_had_are_no_doubt() -> None:
    own = constant(replace(calibration((0.01,) * 4), cores=2), *(0.01,) * 4)
    cell, runs = replace(own_cell(own), cores=2), repeated(own, 0.0, 0.0)
    assert (near(cell, runs), beyond(cell, own)) == (True, [])
    assert predict(cell, runs, "")[0].samples_per_s == pytest.approx(runs.rates[0])


def test_ranks_of_a_run_that_shared_cores_share_them_in_other_numbers_too() -> None:
    """Four of eight ranks on two cores were predicted at half their speed, as if they waited for a core as long as eight
    do; and that was trusted. By hand: two cores do what two cores do."""
    eight = replace(constant(calibration((0.04,) * 8), *(0.04,) * 8), cores=2)
    source = repeated(eight, 0.0, 0.0)
    cells = {cell.ranks: cell for cell, _ in grid([source], [3, 4, 8, 16], [None], [])}
    assert {ranks: cell.cores for ranks, cell in cells.items()} == {3: 2, 4: 2, 8: None, 16: 2}
    for ranks, cell in cells.items():
        prediction, _ = predict(cell, source, "")
        assert prediction.samples_per_s == pytest.approx(source.rates[0], rel=0.02)
        assert prediction.trusted == (ranks == 8)
        assert bool(prediction.beyond) == (ranks != 8)
        assert not any(line.startswith("each rank has") for line in prediction.beyond)
        assert prediction.high is not None
        assert prediction.high < 4 * source.rates[0], "two cores do not do four times as much, whatever is assumed"


def test_ranks_that_no_longer_share_cores_are_doubted() -> None:
    eight = replace(constant(calibration((0.04,) * 8), *(0.04,) * 8), cores=2)
    for changes, line in (
        ({"ranks": 4}, "each rank waits for a core as when 8 shared 2"),
        ({"ranks": 16}, "each rank waits for a core as when 8 shared 2"),
        ({"ranks": 3, "cores": 3}, "each rank has a core of its own, where 8 shared 2"),
        ({"cores": 8}, "each rank has a core of its own, where 8 shared 2"),
    ):
        cell = replace(own_cell(eight), **changes)
        assert not near(cell, repeated(eight, 0.0, 0.0))
        assert line in "; ".join(beyond(cell, eight))
    on_gpus = replace(eight, device="cuda:0")
    assert near(replace(own_cell(on_gpus), ranks=4), repeated(on_gpus, 0.0, 0.0))


def test_runs_that_share_cores_show_the_error_of_predictions_on_these_cores() -> None:
    two, eight = (
        replace(constant(calibration((each,) * n), *(each,) * n), cores=2) for n, each in ((2, 0.01), (8, 0.04))
    )
    measured = [CalibratedCell((CalibratedRun(own, 2 * own.spec.batch_size / 0.01),)) for own in (two, eight)]
    for source, other in (measured, measured[::-1]):
        assert off_by(source, [other], None) == (pytest.approx(0.0, abs=0.01), True)


def test_a_run_over_several_hosts_has_no_number_of_cores() -> None:
    spec = make_spec("nccl_sync", 2, config=CONFIG)
    stream = sort(make_records(spec, step_s=(0.01, 0.01)), LAUNCHED)
    assert calibrated(stream, spec, LAUNCHED, 2).cores == 2
    stream.ready[1] = replace(stream.ready[1], host=1)
    assert calibrated(stream, spec, LAUNCHED, 2).cores is None


def test_links_of_the_run_are_checked_for_other_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Links between groups were taken over to two ranks, between which there was none."""
    words = ["0-1+2-3:wan_1g_30ms"]
    config = CONFIG | {"world_size": 4, "cluster": {"speeds": [], "links": words}}
    spec = make_spec("nccl_sync", 4, config=config)
    own = calibrated(sort(make_records(spec, step_s=(0.01,) * 4), LAUNCHED), spec, LAUNCHED)
    run = run_of(own, tmp_path)
    assert dispatch(["predict", str(run), "--ranks", "2", "--output", "none"]) == Exit.USAGE
    assert "rank 3" in capsys.readouterr().err
    more = replace(own_cell(own), ranks=8)
    assert not near(more, repeated(own, 0.0, 0.0))
    assert "ranks 4 to 7 have no link, so messages of theirs take no time" in beyond(more, own)
    assert near(replace(own_cell(own), ranks=4), repeated(own, 0.0, 0.0))


def test_links_of_other_seeds_are_the_same_links() -> None:
    """Runs of other numbers of ranks were left out as evidence if their first seed was another."""
    two, three = (
        repeated(replace(calibration((0.01,) * ranks), links=parse(["wan_1g_30ms"], ranks, seed)))
        for ranks, seed in ((2, 0), (3, 5))
    )
    assert shows_error(two, three)


def test_a_healed_rank_without_emulated_speeds_is_doubted() -> None:
    own = calibration((0.01, 0.03))
    healed = replace(own_cell(own), healed=(1,))
    assert beyond(healed, own) == ["healed: step times of the fastest rank"]
    assert not near(healed, repeated(own, 0.0, 0.1))
    assert distance(healed, repeated(own, 0.0, 0.1)) >= 1


def test_more_ranks_have_the_learning_rate_of_their_number() -> None:
    """Windows that follow the rate were those of the calibrated ranks."""
    own = calibration(mode="nccl_cadence", lr_scale=2.0)
    cell = replace(own_cell(own), ranks=4)
    assert predicted_spec(cell, own).lr_scale == 4.0
    rate = costs_of(cell, own, 0).rate
    assert rate is not None
    assert rate(0.5) == pytest.approx(2 * own.rate(0.5))


def test_a_run_whose_rank_came_back_is_not_whole() -> None:
    spec = make_spec("nccl_cadence", 2, config=CONFIG)
    records = list(make_records(spec))
    cut = len(records) // 2
    at = max(record.at for record in records[:cut] if hasattr(record, "at"))
    back = [Lost(at, 1, "gone"), Drop(1, "gone"), Joined(at, 1, 0)]
    with pytest.raises(ValueError, match="lost ranks"):
        calibrated(sort([*records[:cut], *back, *records[cut:]], LAUNCHED), spec, LAUNCHED)


def test_a_run_with_scripted_faults_is_not_calibrated_on() -> None:
    with pytest.raises(ValueError, match="faults were scripted"):
        calibration(faults=("1@3:slow",))


def test_another_policy_has_the_settings_of_its_own_runs() -> None:
    """It had the defaults, and its own runs' settings were called others."""
    from argparse import Namespace

    settings = {"name": "cadence", "anchor": 40, "max_anchor": 200}
    spec = make_spec("nccl_cadence", 2, config=CONFIG | {"policy": settings})
    cadence = calibrated(sort(make_records(spec, step_s=(0.01, 0.01)), LAUNCHED), spec, LAUNCHED)
    sources = [repeated(calibration((0.01, 0.01))), repeated(cadence)]
    options = dict.fromkeys(("ranks", "policies", "speeds", "steps", "heal", "cores", "anchor"))
    order = Namespace(**options, links="same", bandwidth=1.0, what_if=True)
    cells = {name: (cell, source) for name, cell, source in _cells(order, sources)}
    cell, source = cells["policy cadence"]
    assert dict(cell.settings)["anchor"] == 40
    assert otherwise(cell, source.calibration) == []

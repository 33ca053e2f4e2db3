"""What limits a cell, what a healed rank changes, and which runs say nothing of their end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.predict import cells
from bench.predict.evidence import metrics_of, own_cell, rate_of
from bench.predict.play import play
from bench.predict.spec import predicted_spec
from bench.predict.traces import TracedSteps
from bench.results.analysis.stream import sort
from bench.results.runfolder import EVENTS
from ddp.core.network.links import parse
from tests.predict.measured import run_of
from tests.predict.test_predict import calibration, constant


def limit_of(shares: Sequence[tuple[str, float]], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the limit of a run whose causes have these shares."""
    causes = [SimpleNamespace(cause=cause, share=share) for cause, share in shares]
    monkeypatch.setattr(cells, "explained", lambda *of: SimpleNamespace(causes=causes))
    return cells.limit(sort([], 0.0), 4, 0.0, 1.0)


def test_waiting_for_many_ranks_is_one_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each wait was compared for itself, so communicating was the limit, though ranks waited for twice as long."""
    many = [(f"waiting for rank {rank}", 0.1) for rank in range(4)]
    assert limit_of([("computing", 0.4), ("communicating", 0.2), *many], monkeypatch) == "waiting (40 %)"
    one = [("waiting for rank 2", 0.3), ("waiting for rank 1", 0.1)]
    assert limit_of([("communicating", 0.2), *one], monkeypatch) == "waiting for rank 2 (30 %)"
    assert limit_of([("other", 0.57), ("computing", 0.43)], monkeypatch) == "between steps (57 %)"
    assert limit_of([("computing", 1.0)], monkeypatch) == "computing"


def test_a_rank_that_is_slow_in_a_trace_can_be_healed() -> None:
    own = constant(calibration((0.01, 0.01)), 0.01, 0.01)
    traced = TracedSteps("trace", (np.full(50, 1.0), np.full(50, 3.0)))
    cell = replace(own_cell(own), steps=traced)
    slow, healed = (rate_of(each, own, 0) for each in (cell, replace(cell, healed=(1,))))
    assert healed == pytest.approx(3 * slow, rel=0.05)


def test_a_cell_without_links_has_a_folder_of_its_own() -> None:
    """The configuration kept the links of the run, so that the second cell overwrote the folder of the first."""
    links = parse("wan_1g_30ms", 2)
    own = calibration()
    assert links is not None
    config = own.spec.config | {"cluster": {"links": links.words}}
    linked = replace(own, links=links, spec=replace(own.spec, config=config))
    with_links, without = (predicted_spec(replace(own_cell(own), links=each), linked) for each in (links, None))
    assert with_links.run_id != without.run_id
    assert without.config["cluster"]["links"] == []
    assert "links" not in predicted_spec(own_cell(own), own).config["cluster"]


def test_the_efficiency_of_synchronous_training_counts_what_lies_between_steps() -> None:
    """As in a real run, where a rank reports its step with the time before it."""
    own = calibration((0.01, 0.01))
    own = replace(own, gaps_s=(0.01, 0.01), wires=own.wires * 0)
    efficiency = metrics_of(own_cell(own), own, play(own_cell(own), own, 0)).throughput.efficiency
    assert efficiency is not None
    assert efficiency > 0.9


def test_a_run_that_was_cut_short_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its learning rate would be that of a whole run."""
    folder = run_of(calibration(), tmp_path)
    lines = (folder / EVENTS).read_text().splitlines()
    end = json.loads(lines[-1]) | {"status": "killed"}
    (folder / EVENTS).write_text("".join(f"{line}\n" for line in (*lines[:-1], json.dumps(end))))
    assert dispatch(["predict", str(folder), "--output", "none"]) == Exit.USAGE
    assert "its status is killed: calibrate on a run that trained to its end" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--ranks", "--policies", "--steps", "--speeds", "--links"])
def test_an_empty_option_is_refused(option: str, tmp_path: Path) -> None:
    folder = run_of(calibration(), tmp_path)
    assert dispatch(["predict", str(folder), "--output", "none", option, ""]) == Exit.USAGE

"""What failures cost by each way of going on, in virtual time: against closed forms, and as a command."""

from __future__ import annotations

import json
import math
from itertools import accumulate
from pathlib import Path
from random import Random

import numpy as np
import pytest

from bench.base.exitcodes import Exit
from bench.command.cli import dispatch
from bench.command.verbs import goodput_command
from bench.goodput.closed_forms import daly, expected_ettr
from bench.goodput.outages import Outage, drawn, with_spares
from bench.goodput.replay import ReplayCosts, replay, ways

FAILURE_S, SAVE_S, RESTART_S = 8000.0, 40.0, 100.0
GAPS = 80
WITHIN = 0.05


def test_restart_is_as_closed_forms_say() -> None:
    """Meta's expected ETTR, and Daly's interval as the one that loses least: both within 5 % where losses are small."""
    best = daly(SAVE_S, FAILURE_S)
    free = {"jitter": 0.0, "wire_s": 0.0, "regroup_s": 0.0}
    costs = ReplayCosts(2, GAPS * FAILURE_S / 3600, best / 4, 1, save_s=SAVE_S, restart_s=RESTART_S, **free)
    gaps = [-FAILURE_S * math.log(1 - (n + 0.5) / GAPS) for n in range(GAPS)]  # exponential, evenly drawn
    Random(0).shuffle(gaps)
    outages = [Outage(at, at, n % 2) for n, at in enumerate(accumulate(gaps * 2))]
    intervals, overheads = [best / 2, best, 2 * best], []
    for interval in intervals:
        played = replay("restart", costs, outages, interval)
        assert played.checkpoint_s == pytest.approx(interval)
        expected = expected_ettr(FAILURE_S, RESTART_S, interval, SAVE_S)
        assert played.goodput.ettr == pytest.approx(expected, rel=WITHIN)
        overheads.append(1 / played.goodput.ettr - 1)
    rows = np.array([[1 / interval, interval, 1.0] for interval in intervals])
    saving, lost, _ = np.linalg.solve(rows, overheads)
    assert (saving / lost) ** 0.5 == pytest.approx(best, rel=WITHIN)


@pytest.mark.parametrize("words", ["--hours 1", "--hours 0.001 --step 0.001 --wire 0"])
def test_checkpoints_as_rare_as_can_be_are_none(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It was a traceback: more steps or seconds between two than a run can ask for."""
    rare = ["--ranks", "4", "--checkpoint", "1e9", "--policies", "restart,cadence,qsr"]
    assert dispatch(["goodput", *words.split(), *rare]) in (Exit.OK, Exit.INCONCLUSIVE)
    assert "| qsr |" in capsys.readouterr().out


def test_what_is_lost_by_each_way() -> None:
    """A failure throws away a restart's training since its checkpoint, a step of all ranks, or a window of one rank."""
    costs = ReplayCosts(4, 2.0, jitter=0.0, save_s=1.0)
    outages = with_spares([Outage(1000.0 * n + 705.0, 1000.0 * n + 706.0, n % 4) for n in range(20)], 1, 30.0)
    played = {way: replay(way, costs, outages, 600.0) for way in ways()}
    assert all(each.finished for each in played.values())
    discarded = {
        way: each.goodput.parts.discarded * each.goodput.rank_seconds / each.failures for way, each in played.items()
    }
    assert discarded["restart"] > 2 * discarded["sync"]
    assert 0 < discarded["sync"] <= 4 * costs.step_s * 1.1
    assert 0 < discarded["cadence"] <= 1.1 * costs.window * costs.step_s
    hours = {way: each.hours for way, each in played.items()}
    assert hours["restart"] == max(hours.values())
    for each in played.values():
        assert each.goodput.parts.discarded == pytest.approx(each.goodput.parts.repeated)
        assert each.goodput.rank_seconds == pytest.approx(4 * 3600 * each.hours, rel=1e-6)


@pytest.mark.parametrize("way", ways())
def test_ranks_that_are_all_lost_begin_again_from_the_last_checkpoint(way: str) -> None:
    """The run of a strategy that goes on without lost ranks ended there, as one that takes over the time it was given."""
    costs = ReplayCosts(2, 1.0, jitter=0.0, save_s=1.0)
    outages = [Outage(1510.0, 1600.0, 0), Outage(1520.0, 1590.0, 1), Outage(1595.0, 1620.0, 1)]
    played = replay(way, costs, outages, 400.0)
    assert (played.finished, played.failures) == (True, 3)
    assert played.hours * 3600 == pytest.approx(3600 + 300 + 400, abs=300)
    parts, seconds = played.goodput.parts, played.goodput.rank_seconds
    assert seconds == pytest.approx(2 * 3600 * played.hours, rel=1e-6)
    assert (parts.kept + parts.repeated) * seconds == pytest.approx(2 * 3600, rel=0.02)
    assert parts.absent * seconds == pytest.approx(90 + 70 + 25, abs=1)
    assert parts.starting * seconds >= 2 * 300
    assert 0 < parts.discarded * seconds <= 2 * (400 + costs.window * costs.step_s), "what the checkpoint has is kept"


@pytest.mark.parametrize("way", ways())
def test_a_rank_may_be_without_a_machine_from_the_start(way: str) -> None:
    """Strategies that go on without lost ranks had it all the time."""
    costs = ReplayCosts(4, 1.0, jitter=0.0, save_s=1.0)
    played = replay(way, costs, [Outage(0.0, 900.0, 1)], 1800.0)
    assert (played.finished, played.failures) == (True, 1)
    assert played.goodput.parts.absent * played.goodput.rank_seconds == pytest.approx(900.0, abs=1)


def test_a_history_that_none_survives_is_given_up() -> None:
    costs = ReplayCosts(2, 0.2, step_s=10.0)
    played = replay("restart", costs, drawn("meta", 2, costs.horizon_s, 100_000.0, 0), 600.0)
    assert not played.finished
    assert played.hours >= 10 * 0.2 - 0.01


def test_a_policy_whose_windows_grow_saves_as_often_as_others() -> None:
    """It counted windows, and saved ever less often."""
    costs = ReplayCosts(4, 24.0)
    saving = {way: replay(way, costs, [], 1200.0).goodput.parts.saving for way in ("cadence", "qsr")}
    assert saving["qsr"] > 0.8 * saving["cadence"]


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table, JSON with the same figures, and an exit code."""
    file = tmp_path / "goodput.json"
    words = ["goodput", "--ranks", "4", "--hours", "2", "--compress", "5000", "--json", str(file), "--trace", "bursts"]
    assert dispatch(words) == Exit.OK
    text, body = capsys.readouterr().out, json.loads(file.read_text(encoding="utf-8"))
    assert [each["way"] for each in body["replays"]] == list(ways())
    for each in body["replays"]:
        row = next(line for line in text.splitlines() if line.startswith(f"| {each['way']} |"))
        assert f"| {100 * each['goodput']['goodput']:.1f} % |" in row
        assert sum(each["goodput"]["parts"].values()) == pytest.approx(1)
        assert each["failures"] > 0
    assert dispatch(words) == Exit.OK
    assert json.loads(file.read_text(encoding="utf-8")) == body, "the same seed, the same history"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--trace", "meat"], "did you mean 'meta'"),
        (["--trace", "no/such.json"], "no/such.json"),
        (["--ranks", "1"], "--ranks 1: give a number from 2"),
        (["--ranks", "1" * 400], "give a number from 2"),
        (
            ["--ranks", "4", "--hours", "1", "--step", "7200"],
            "a window of 10 steps of 7200 s takes 20 h; give more hours",
        ),
        (["--policies", "cadense"], "did you mean 'cadence'"),
        (["--compress", "1e-310"], "give a number from 1e-9"),
        (["--hour", "3"], "did you mean --hours"),
    ],
)
def test_mistakes_get_one_line(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["goodput", *words]) == Exit.USAGE
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1


def test_a_restarted_run_that_does_not_end_is_said_to_be_unfinished() -> None:
    """Collectives that take twenty times as long as steps, and no failure in between."""
    costs = ReplayCosts(2, 0.1, 1.0, 1, wire_s=20.0)
    for way in ("restart", "sync"):
        played = replay(way, costs, [], 600.0)
        assert not played.finished
        assert played.hours == pytest.approx(1.0, rel=0.1)


def test_hours_are_those_of_whole_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They were those given, whatever was simulated."""
    file = tmp_path / "goodput.json"
    words = ["--ranks", "2", "--hours", "1.4", "--step", "360", "--policies", "sync", "--json", str(file)]
    assert dispatch(["goodput", *words]) == Exit.OK
    assert "1 h of training in 1 window of 10 steps" in capsys.readouterr().out
    assert json.loads(file.read_text())["costs"]["hours"] == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["t1.txt", "t4"])
def test_a_file_is_a_trace_whatever_its_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its name was called an unknown trace."""
    monkeypatch.chdir(tmp_path)
    kinds = ((0.1, "fault_start"), (0.2, "fault_end"))
    events = [{"node_id": "a", "event_time": at, "event_type": kind} for at, kind in kinds]
    Path(name).write_text(json.dumps(events), encoding="utf-8")
    assert dispatch(["goodput", "--trace", name, "--ranks", "2", "--hours", "1", "--policies", "sync"]) == Exit.OK
    assert f"{name}, " in capsys.readouterr().out


def test_a_long_replay_tells_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing was shown for minutes."""
    monkeypatch.setattr(goodput_command, "TOLD_S", 0.0)
    assert dispatch(["goodput", "--ranks", "2", "--hours", "2", "--policies", "restart"]) == Exit.OK
    lines = [line for line in capsys.readouterr().err.splitlines() if "without failures 2 h" in line]
    hours = [float(line.split(" at ")[1].split(" h;")[0]) for line in lines]
    assert hours == sorted(hours)
    assert 1.5 < hours[-1] < 4

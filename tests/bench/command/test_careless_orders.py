"""Careless orders: another number of ranks beside what counts ranks, an interrupt while a run is repeated, what the system
refuses to a command."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bench.base import interrupts
from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command import cli
from bench.command.printed.summary import Summary
from bench.command.sweeps import ray_sweep
from bench.command.verbs import join_command, rerun
from bench.command.verbs.explain_command import records_in
from bench.config import overrides, user_parts
from bench.config.config import ClusterConfig
from bench.faults import played
from bench.results.runfolder import EVENTS, LOG, find_runs
from bench.results.writer import Unwritten
from bench.runner.resized import SIZED_KEYS, sized
from bench.runner.resume import locate
from bench.validate import expected
from ddp.core.errors import OutOfResources, RankFailed
from ddp.settings import path
from tests.bench.planned import BASE


def test_what_counts_ranks_may_be_set_with_their_number() -> None:
    """It was of the old number and could not be set: nothing led out of there."""
    own = replace(BASE, world_size=3, cluster=ClusterConfig(absent=2, faults=["2@4:crash"]))
    own = replace(own, policy={"name": "cadence", "partition_ratios": [0.5, 0.3, 0.2]})
    settings: dict[str, Any] = {"world_size": 2, "cluster.absent": 0, "cluster.faults": []}
    command = replace(BASE, world_size=2)
    with pytest.raises(ValueError, match=r"give policy\.partition_ratios beside world_size"):
        sized(settings, command, own)
    with pytest.raises(ValueError, match=r"policy\.speed_hint=2 is not of 2 ranks"):
        sized(settings | {"policy.partition_ratios": None, "policy.speed_hint": 2}, command, own)
    for given in (None, [0.6, 0.4]):
        gone_on = sized(settings | {"policy.partition_ratios": given}, command, own)
        assert (gone_on.policy["partition_ratios"], gone_on.cluster) == (given, ClusterConfig())
    assert settings.keys() < set(SIZED_KEYS)


@pytest.mark.parametrize(("status", "code"), [("failed", Exit.FAILED), ("diverged", Exit.REGRESSION), ("killed", None)])
def test_a_rerun_that_is_interrupted_has_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], status: str, code: Exit | None
) -> None:
    run = SimpleNamespace(config={}, metrics=SimpleNamespace(status="ok"))
    monkeypatch.setattr(rerun, "run_in", lambda folder: run)
    monkeypatch.setattr(rerun, "_refused", lambda run: None)
    monkeypatch.setattr(rerun, "_trained_again", lambda run, output: SimpleNamespace(status=status))
    if code is None:
        with pytest.raises(KeyboardInterrupt):
            rerun.rerun(Path("run"))
    else:
        assert rerun.rerun(Path("run")) is code
    said = capsys.readouterr().out
    assert said.startswith({"failed": "FAILED", "diverged": "DIFFERENT"}.get(status, ""))
    assert bool(said) is (code is not None)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "x"), Exit.USAGE),
        (OSError(errno.ENOSPC, "No space left on device"), Exit.FAILED),
        (Unwritten("No space left on device; nothing is kept"), Exit.FAILED),
        (OutOfResources("no shared memory"), Exit.FAILED),
    ],
)
def test_what_the_system_refuses_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, code: Exit
) -> None:
    def refused(arguments: list[str]) -> int:
        raise error

    monkeypatch.setitem(cli.VERBS, "rerun", refused)
    assert cli.dispatch(["rerun"]) is code
    assert capsys.readouterr().err.startswith("bench: ")
    monkeypatch.setattr(interrupts, "_seen", [2])
    with pytest.raises(KeyboardInterrupt):
        cli.dispatch(["rerun"])


@pytest.mark.parametrize(
    ("text", "most"), [("nan", 0), ("-1", 0), ("x", 0), ("2.5", 2.5), ("inf", 1e10), ("1e300", 1e10)]
)
def test_the_time_for_a_checkpoint_is_one_that_can_be_waited(
    monkeypatch: pytest.MonkeyPatch, text: str, most: float
) -> None:
    monkeypatch.setenv(interrupts.SAVE, text)
    assert min(most, 2.5) <= interrupts._patience_s() <= most


@pytest.mark.parametrize("verb", ["prove", "goodput", "explain run", "predict run", "faults", "dashboard export run"])
def test_a_folder_is_no_file_to_write(capsys: pytest.CaptureFixture[str], tmp_path: Path, verb: str) -> None:
    """It was found out behind minutes of work, and nothing was printed of that."""
    option = "--out" if verb.startswith("dashboard") else "--json"
    for word, why in ((str(tmp_path), "is a folder; give a file"), ("", "it is empty")):
        with pytest.raises((SystemExit, UsageError)) as caught:
            cli.VERBS[verb.partition(" ")[0]]([*verb.split()[1:], option, word])
        assert why in capsys.readouterr().err + str(caught.value)


def test_a_link_out_of_a_tree_is_named(tmp_path: Path) -> None:
    """Runs behind it were left out without a word, and a tree with fewer cells passed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "runs" / "mlp").mkdir(parents=True)
    (tmp_path / "runs" / "latest").symlink_to("mlp")
    (tmp_path / "runs" / "mlp" / "solo").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs" / "mlp" / "run").mkdir()
    (tmp_path / "runs" / "mlp" / "run" / "metrics.json").write_text("{}")
    (tmp_path / "runs" / "mlp" / "run" / "checkpoints").symlink_to(
        tmp_path / "elsewhere"
    )  # nobody looks for runs there
    _, (_, *problems) = find_runs(tmp_path / "runs")
    assert problems == [f"{tmp_path}/runs/mlp/solo: a link out of the tree; give what it leads to"]


def test_names_that_no_record_can_hold_are_refused_at_once(tmp_path: Path) -> None:
    """A run ended with the traceback of its log, and one whose data lay there with that of its first record."""
    odd = os.fsdecode(b"caf\xe9")
    with pytest.raises(ValueError, match="is not UTF-8"):
        path("output", odd)
    (tmp_path / LOG).touch()
    Summary.log([tmp_path], [odd])
    assert (tmp_path / LOG).read_bytes() == b"caf\\udce9\n"
    assert RankFailed(0, f"no file {odd}", odd).traceback == r"caf\udce9"
    str(RankFailed(0, f"no file {odd}", odd)).encode()


@pytest.mark.parametrize(("option", "value"), [("--wait", "nan"), ("--wait", "-1"), ("--ranks", "1000000")])
def test_an_offer_has_bounds(capsys: pytest.CaptureFixture[str], option: str, value: str) -> None:
    assert cli.dispatch(["join", "runs", option, value]) is Exit.USAGE
    assert f"{option} " in capsys.readouterr().err


def test_a_line_that_is_no_record_names_its_file(tmp_path: Path) -> None:
    (tmp_path / EVENTS).touch()
    records = join_command._RecordTail(tmp_path / EVENTS)
    (tmp_path / EVENTS).write_bytes(b"{}\n")
    with pytest.raises(UsageError, match=str(tmp_path / EVENTS)):
        list(records.new())
    records._file.close()


def test_models_by_files_may_be_in_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_parts, "own_model", lambda word: word.removesuffix(".py"))
    assert user_parts.enrolled("model='a.py','b.py'") == "model=a,b"
    for word in ("model='mlp'", "model=glob('ml*')", "model='a"):
        assert user_parts.enrolled(word) == word
    assert user_parts.enrolled("model='a,b.py',c.py") == "model=a,b,c", "a comma in quotes separates nothing"


def test_a_process_of_a_launcher_with_a_strange_path_is_given_it_in_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_parts, "MODELS", {"touch": "/co,mma d/touch.py"})
    word = user_parts.in_new_process("model=touch")
    assert word == "model='/co,mma d/touch.py'"
    assert overrides.texts(word) == ["/co,mma d/touch.py"]


def test_what_is_no_run_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run folder; give one"):
        locate(tmp_path)
    (tmp_path / EVENTS).touch()
    with pytest.raises(ValueError, match=f"{tmp_path / EVENTS}: its first line"):
        records_in(tmp_path)
    (tmp_path / expected.FILE).write_text(f"- depth: {'1' * 5000}")
    with pytest.raises(ValueError, match=f"{tmp_path / expected.FILE}: not a list of known failures"):
        expected.load(tmp_path)


def test_a_sweep_whose_command_was_killed_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(ray_sweep, "LOOK_S", 1e9)
    monkeypatch.setattr(ray_sweep, "live", lambda folder: False)
    assert "it was killed" in ray_sweep.cancel(tmp_path)


def test_combinations_that_are_played_end_with_the_command() -> None:
    each = played.results(time.sleep, [(0,), (60,), (60,)], 2)  # type: ignore[arg-type, list-item]
    next(each)
    began = time.monotonic()
    each.close()
    assert time.monotonic() - began < 20
    with pytest.raises(OutOfResources, match="was killed; run this again"):
        list(played.results(os._exit, [(9,), (9,)], 2))  # type: ignore[arg-type, list-item]

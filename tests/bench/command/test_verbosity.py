"""How much a command prints: `-v`, `-vv`, `-vvv`, `--quiet`, and the variable that says the same."""

from __future__ import annotations

import pytest

from bench.base.console import VERBOSITY
from bench.base.usage import UsageError
from bench.config.flags import read
from bench.results.live.run import RunFigures
from bench.runner.live_view import record_line
from ddp.core.messages.commands import Plan
from ddp.core.messages.events import Alive, GuardVerdict, RoundClosed
from tests.bench.conftest import Bench


@pytest.mark.parametrize(
    ("flags", "verbosity"),
    [([], None), (["-v"], 1), (["-vv"], 2), (["-v", "-vv"], 3), (["-vvvv"], 3), (["--quiet"], -1)],
)
def test_flags_say_how_much_is_printed_and_hydra_does_not_see_them(flags: list[str], verbosity: int | None) -> None:
    options, words = read([*flags, "model=mlp", "-m"])
    assert options.verbosity == verbosity
    assert words == ["--multirun"]


def test_loud_and_quiet_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="only one of --verbose, --quiet"):
        read(["-v", "--quiet", "model=mlp"])


def test_a_louder_run_tells_of_its_records_and_a_quiet_one_of_little(
    quiet: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for flags in (["--quiet"], [], ["-vvv"]):
        monkeypatch.setenv(VERBOSITY, "0")
        quiet(*flags, "model=mlp", "mode=nccl_cadence")
        printed["".join(flags)] = capsys.readouterr().out
    assert "Progress(" in printed["-vvv"]
    assert "Progress(" not in printed[""]
    assert "2 ranks on cpu" in printed[""]
    assert "2 ranks on cpu" not in printed["--quiet"]


def test_what_is_told_of_a_record() -> None:
    run = RunFigures()
    closed = RoundClosed(1.0, 3, (4, 2), (0.1, 0.1), 0.002, (0.0, 0.0), (0.1, 0.3), (False, False))
    assert record_line(closed, run, every=False) == "    0.00 s  round 3: steps 4/2, divergence 0.3, 2.0 ms"
    verdict = GuardVerdict(1.0, 3, "trend", "nudge", 0.1, 0.2, 0.1, 0.5)
    assert "guard trend: nudge" in (record_line(verdict, run, every=False) or "")
    plan = Plan((10, 5), (0, 0), overlap=False, lookahead=0, in_step=False, anchor=10, reason="slower")
    assert "anchor 10, steps 10/5: slower" in (record_line(plan, run, every=False) or "")
    assert record_line(Alive(1.0, 0), run, every=False) is None
    assert "Alive(" in (record_line(Alive(1.0, 0), run, every=True) or "")


def test_all_models_are_a_sweep(capsys: pytest.CaptureFixture[str]) -> None:
    from bench.command.cli import dispatch
    from bench.models import MODELS

    assert dispatch(["plan", "model=all", "mode=solo"]) == 0
    out = capsys.readouterr().out
    assert all(any(line.startswith(f"{name} ") for line in out.splitlines()) for name in MODELS)
    assert f"planned: {len(MODELS)} runs" in out

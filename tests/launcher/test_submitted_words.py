"""Which words of a command line come to a scheduler. No scheduler."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.command import cli
from bench.command.sweeps import submitted
from bench.config.compose import composing
from bench.config.composed import typed
from bench.config.launch_settings import SlurmSettings


def test_a_cell_is_sent_without_the_settings_of_other_policies(
    tmp_path: Path, sent: list[dict[str, list[str]]]
) -> None:
    """Alone, as it is run there, it was refused for them."""
    words = ["-m", "model=mlp", "mode=nccl_sync,nccl_cadence", "policy.anchor=20", f"output={tmp_path}"]
    submitted.submit(words, (), SlurmSettings())
    (cells,) = sent
    with composing() as composed:
        policies = [typed(composed(words)).policy for words in cells.values()]
    assert policies[0] == {"name": "sync"}
    assert (policies[1]["name"], policies[1]["anchor"]) == ("cadence", 20)


def test_a_scheduler_and_a_supervisor_are_not_both_asked(
    sent: list[dict[str, list[str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """There was none, without a word."""
    assert cli.dispatch(["-m", "model=mlp", "mode=solo,nccl_sync", "launch=slurm", "supervise=true"]) == 2
    assert "supervise=true watches runs of this host, and launch=... submits them" in capsys.readouterr().err
    assert sent == []

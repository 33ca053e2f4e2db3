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


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("cluster.restart=always", "for ranks that the command starts itself, and launch.nodes=2 launch.ranks=1 start"),
        ("cluster.transport=memory", "needs all ranks on one host, there are 2: leave it out"),
        ("resume=runs/mlp/nccl_sync/w2-s0-12345678", "is as it was begun; leave out launch"),
    ],
)
def test_what_every_task_would_refuse_is_refused_at_submission(
    sent: list[dict[str, list[str]]], capsys: pytest.CaptureFixture[str], word: str, why: str
) -> None:
    """Each task refused it after it had queued."""
    assert cli.dispatch(["model=mlp", "mode=nccl_sync", "launch=slurm", "launch.nodes=2", word]) == 2
    assert why in capsys.readouterr().err
    assert sent == []


@pytest.mark.parametrize("word", ["launch=slurm", "launch=ray"])
def test_a_plan_shows_the_cells_that_are_submitted(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It showed the mode's own number of ranks."""
    words = [word, "launch.nodes=2", "launch.ranks=4", "model=mlp"]
    assert cli.dispatch(["plan", *words, "mode=nccl_sync"]) == 0
    assert capsys.readouterr().out.splitlines()[2].split()[:3] == ["mlp", "nccl_sync", "8"]
    assert cli.dispatch(["plan", *words, "mode=nccl_sync", "world_size=2"]) == 2
    assert "impossible: world_size=2, but launch.nodes=2 launch.ranks=4 start 8" in capsys.readouterr().out
    assert cli.dispatch(["plan", *words, "resume=runs/x"]) == 2
    assert "leave out plan" in capsys.readouterr().out

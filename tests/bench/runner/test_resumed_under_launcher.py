"""What a run takes from its folder, and what from the launcher that resumes it; and why a finished one is not resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.base.usage import UsageError
from bench.config.config import Choice, ClusterConfig, Config
from bench.results.runfolder import find_runs
from bench.runner.machines import Machines
from bench.runner.resume import ResumeSource, configured
from ddp.remote import head
from ddp.remote.launched_process import LaunchedProcess
from tests.bench.conftest import Bench
from tests.bench.planned import BASE, planned

ALONE = ClusterConfig(restart="always", spares=1)
COMMAND = replace(BASE, cluster=ClusterConfig(bind="lo"))


def resumed(settings: dict[str, Any], ranks: int | None, cluster: ClusterConfig = ALONE, **changes: Any) -> Config:
    saved = planned(cluster=cluster, **changes).spec.config
    command = replace(COMMAND, world_size=settings.get("world_size"))
    source = ResumeSource(Path("runs/x"), saved, None)  # type: ignore[arg-type]  # no checkpoint is read here
    return configured(command, settings, source, ranks)


def test_a_launcher_says_how_many_ranks_a_resumed_run_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's own number counted, and was refused as one that the user had given; and so was what ranks of the
    command's own need."""
    config = resumed({"cluster.bind": "lo"}, 4)
    assert (config.world_size, config.cluster) == (4, ClusterConfig(bind="lo"))
    monkeypatch.setattr(Machines, "listen", lambda self, bind: None)
    assert Machines(LaunchedProcess(0, 4, 0, 1, 4, "127.0.0.1:1", "machines/0")).settle(config) == config


def test_a_run_that_is_resumed_alone_keeps_all() -> None:
    assert resumed({}, None).cluster == ALONE
    assert resumed({}, None).world_size == 2
    assert resumed({"cluster.bind": "lo"}, None).cluster == replace(ALONE, bind="lo")
    assert resumed({}, 2, ClusterConfig(absent=1)).cluster == ClusterConfig()


def test_another_number_than_the_launchers_is_still_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "open_store", lambda place: None)
    there = Machines(LaunchedProcess(0, 4, 0, 1, 4, "127.0.0.1:1", "machines/0"))
    with pytest.raises(UsageError, match="world_size=3, but torchrun has started 4 processes: leave it out"):
        there.settle(resumed({"world_size": 3}, 4))
    with pytest.raises(UsageError, match="mode=solo trains in one process: start it without torchrun"):
        there.settle(resumed({}, 4, ClusterConfig(), engine=Choice("solo")))


def test_a_finished_run_says_why_other_ranks_cannot_resume_it(quiet: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """It said that the number contradicts the run, as if a resumed run could have no other."""
    assert quiet("model=mlp", "mode=nccl_sync", "train.epochs=1") == 0
    (run,) = find_runs(Path("runs"))[0]
    assert quiet(f"resume={run.path}", "world_size=3") == 2
    assert "that run has finished and keeps no checkpoint for 3 ranks to go on from" in capsys.readouterr().err
    assert quiet(f"resume={run.path}", "world_size=3", "seed=4") == 2
    assert "seed=4 contradicts the run, which has 0" in capsys.readouterr().err
    assert quiet(f"resume={run.path}", "world_size=2") == 0

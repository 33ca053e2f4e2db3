"""A command line in this process, with an engine that trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from bench.base import environment
from bench.command import cli
from bench.config import plan
from bench.runner import launch
from ddp.engine import ENGINES
from ddp.process import forkserver
from tests.bench import fake_engine

Bench = Callable[..., int]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Bench:
    """Runs `python -m bench ...` in an empty folder; the exit code."""
    return faked(monkeypatch, tmp_path)


def faked(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Bench:
    """The same in `folder`, for fixtures of a wider scope."""
    for name, spec in list(ENGINES.items()):
        monkeypatch.setitem(ENGINES, name, replace(spec, module=fake_engine.__name__))
    resolve = plan.resolve
    monkeypatch.setattr(plan, "resolve", lambda *parts: resolve(*parts) | {"audit": False})
    monkeypatch.setattr(forkserver, "warm", lambda preload=(): None)
    monkeypatch.setattr(launch, "short_collections", nullcontext)  # it ends what tests keep from the collector
    monkeypatch.setattr(environment, "disturbed", lambda *usage: None)
    monkeypatch.delenv("BENCH_FAKE", raising=False)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it: put it back
    monkeypatch.chdir(folder)
    fake_engine.runs.clear()
    fake_engine.watched.clear()

    return lambda *arguments: int(cli.dispatch(list(arguments)))


@pytest.fixture
def quiet(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """The same without report, verdict and pictures."""
    monkeypatch.setattr("bench.timeline.draw", lambda *picture: None)
    return lambda *arguments: bench(*arguments, "report=false", "validate=false")

"""The additions of docs/how-to/extend.md do what it says, as printed."""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ddp.backends
import ddp.engine
from bench.loggers.recorded import recorded
from bench.report.blocks import Bullets, Heading
from bench.report.page import Page
from bench.results.cells import cells
from bench.results.runfolder import find_runs
from bench.validate.findings import Case
from bench.validate.verdict import Verdict
from ddp.core.guard import Report
from ddp.core.world import World
from ddp.sim.simulator import Costs, simulate
from tests.bench.streams import make_spec, write_run
from tests.runtime import toy
from tests.runtime.conftest import Play

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "extend.md").read_text()
FOUND = re.findall(r"```python\n(.*?)```\n\n`([\w/]+)\.py`; in `(\w+)`: `([^`]+)`", PAGE, re.DOTALL)
CODE = {registry: code for code, _, registry, _ in FOUND}
LINES = {registry: line for *_, registry, line in FOUND}


Module = Callable[[str], Any]


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Module:
    """The printed code for a registry, as a module."""

    def run(registry: str) -> ModuleType:
        made = ModuleType(f"own_{registry.lower()}")
        monkeypatch.setitem(sys.modules, made.__name__, made)  # where dataclasses look
        exec(CODE[registry], made.__dict__)
        return made

    return run


def spec(registry: str, home: ModuleType) -> object:
    """What the printed line puts into a registry."""
    (value,) = eval("{" + LINES[registry] + "}", dict(vars(home))).values()
    return value


def test_every_addition_is_there() -> None:
    assert set(CODE) == {"POLICIES", "GUARDS", "BACKENDS", "ENGINES", "SECTIONS", "CHECKS", "LOGGERS"}


@pytest.mark.parametrize("blocking", [True, False])
def test_the_policy_trains_every_sample_in_its_windows(module: Module, blocking: bool) -> None:
    world = World(size=2, samples=80, batch=1, epochs=2, blocking=blocking, in_step=False)
    played = simulate(module("POLICIES").Fixed(steps=5), world, costs=Costs(lambda rank, step: 0.01))
    assert played.status == "ok"
    assert sum(entry.batch.stop - entry.batch.start for entry in played.trained) == 160


def test_the_guard_shortens_windows_beyond_its_threshold(module: Module) -> None:
    guard = module("GUARDS").CeilingGuard(0.1)
    kinds = [guard.update(guard.start(), Report(divergence, steps=4))[1].kind for divergence in (0.05, 0.2)]
    assert kinds == ["stable", "nudge"]


def test_the_engine_trains_and_leaves_its_profile(
    module: Module, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec("ENGINES", ddp.engine) == ddp.engine.EngineSpec("ddp.engine.profiled", one_rank=True, one_process=True)
    play("sync", "nccl", toy.task, engine=module("ENGINES"), world_size=1)
    assert (tmp_path / "profile.pstats").stat().st_size


def test_the_backend_goes_with_every_policy(module: Module) -> None:
    found = spec("BACKENDS", ddp.backends)
    assert found == ddp.backends.BackendSpec("ddp.backends.bf16", ddp.backends.Acts.COLLECTIVE)
    assert isinstance(found, ddp.backends.BackendSpec)
    assert found.averages
    assert "average" in vars(module("BACKENDS").Backend)


def test_section_check_and_logger_read_a_run(module: Module, tmp_path: Path) -> None:
    run = write_run(tmp_path, make_spec("nccl_cadence"))
    (cell,) = cells(find_runs(run)[0])
    heading, bullets = module("SECTIONS").section(Page(tmp_path, tmp_path, (cell,), (), ()))
    assert isinstance(heading, Heading)
    assert isinstance(bullets, Bullets)
    verdict = module("CHECKS").check(Case(cell, None))
    assert isinstance(verdict, Verdict)
    assert verdict.name == "PASS"
    logged = recorded(run)
    path = module("LOGGERS").write(logged, tmp_path)
    assert len(list(csv.reader(path.read_text().splitlines()))) == 1 + len(logged.scalars)

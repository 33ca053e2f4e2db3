"""The additions of docs/how-to/extend.md do what it says, as printed."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
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
from bench.validate.verdicts.findings import Case
from bench.validate.verdicts.verdict import Verdict
from ddp.core.guard import Report
from ddp.core.settings.world import World
from ddp.sim.simulator import Costs, simulate
from tests.bench.streams import make_spec, write_run
from tests.runtime import toy
from tests.runtime.conftest import Play

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/how-to/extend.md").read_text()
FOUND = re.findall(r"```python\n(.*?)```\n\n`([\w/]+)\.py`; in `(\w+)`: `([^`]+)`", PAGE, re.DOTALL)
CODE = {registry: code for code, _, registry, _ in FOUND}
LINES = {registry: line for *_, registry, line in FOUND}
MEMBERS = ("periodic", "nccl_periodic", "ceiling", "traced", "traced_cadence", "profiled", "csv")
END = "=== the end of a list ==="
LISTING = """
import sys
from bench.command.cli import dispatch
for words in sys.argv[2:]:
    assert dispatch(["list", *words.split()]) == 0
    print(sys.argv[1])
"""
"""One process, which imports the packages once for all lists."""
READ: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 100}


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


def test_one_file_and_one_line_of_each_are_all_that_the_command_needs(tmp_path: Path) -> None:
    """Classes are imported, too: a second line. Everything is added to one copy of the packages, which lists it."""
    for name in ("bench", "ddp", "models", "conf", "baselines"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)
    for code, path, registry, line in FOUND:
        (tmp_path / f"{path}.py").write_text(code)
        home = (tmp_path / path).parent / "__init__.py"
        (made,) = re.findall(r"^class (\w+Guard|Periodic)\b", code, re.MULTILINE) or ("",)
        needed = f"from {path.replace('/', '.')} import {made}\n" if made else ""
        opened = re.compile(r"^(_OURS\b.*[{(]\n(?:    name: .*\n    for name in \(\n)?)", re.MULTILINE)
        text, count = opened.subn(rf"\g<1>{line}\n", home.read_text())
        assert count == 1, registry
        home.write_text(text.replace("from ddp.registry", f"{needed}from ddp.registry", 1))
    names = {"": MEMBERS, "sections": ("memory",), "checks": ("memory",)}
    command = [sys.executable, "-c", LISTING, END, *names]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(tmp_path)}, **READ)
    assert (done.returncode, done.stderr) == (0, "")
    for expected, shown in zip(names.values(), done.stdout.split(END), strict=False):
        assert [name for name in expected if not re.search(rf"^{name}  ", shown, re.MULTILINE)] == []


@pytest.mark.parametrize("blocking", [True, False])
def test_the_policy_trains_every_sample_in_its_windows(module: Module, blocking: bool) -> None:
    world = World(size=2, samples=80, batch=1, epochs=2, blocking=blocking, in_step=False)
    played = simulate(module("POLICIES").Periodic(steps=5), world, costs=Costs(lambda rank, step: 0.01))
    assert played.status == "ok"
    assert sum(entry.batch.stop - entry.batch.start for entry in played.trained) == 160


def test_the_guard_shortens_windows_on_a_rise_beyond_its_threshold(module: Module) -> None:
    guard = module("GUARDS").CeilingGuard(0.1)
    state, kinds = guard.start(), []
    for divergence in (0.3, 0.2, 0.05, 0.2):
        state, decision = guard.update(state, Report(divergence, steps=4))
        kinds.append(decision.kind)
    assert kinds == ["stable", "stable", "stable", "nudge"]


def test_the_engine_trains_and_leaves_its_profile(
    module: Module, play: Play, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert spec("ENGINES", ddp.engine) == ddp.engine.EngineSpec("ddp.engine.profiled", one_rank=True, one_process=True)
    play("sync", "nccl", toy.task, engine=module("ENGINES"), world_size=1)
    assert (tmp_path / "profile.pstats").stat().st_size


def test_the_backend_goes_with_every_policy(module: Module) -> None:
    found = spec("BACKENDS", ddp.backends)
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

"""The suite of seeded bugs itself: what it names is there, and its patches fit the modules that they break."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from operator import is_
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from bench.validate.checks import CHECKS
from benchmarks.bugs.bug import EVERY, FAMILIES, MODELS, in_place_of, once_made
from benchmarks.bugs.hooks import Finder
from benchmarks.bugs.registry import BUGS, LISTED
from benchmarks.bugs.unseen import UNSEEN

CI = OmegaConf.load(Path(__file__).parents[3] / "conf" / "experiment" / "ci.yaml").hydra.sweeper.params


CATALOGUE = re.compile(r"[A-D]\d\d|B\d\.\d\d|issue|own|\w+/\w+#\d+")
"""Forms of the ids of historical defects."""


def test_there_are_enough_and_they_name_what_is_there() -> None:
    own = {name: bug for name, bug in BUGS.items() if bug.family != "unseen"}
    assert len(own) >= 90
    lots = *(family.bugs for family in LISTED), UNSEEN
    assert len(BUGS) == sum(map(len, lots)), "a name is there twice"
    assert {bug.family for bug in own.values()} == set(FAMILIES)
    assert set(MODELS) == set(CI.model.split(","))
    assert set(EVERY) == set(CI.mode.split(","))
    for name, bug in own.items():
        assert bug.check in {*CHECKS, "readable"}, name
        assert bug.cells, name
        assert set(bug.models) <= set(MODELS), name
        assert set(bug.modes) <= set(EVERY), name
        assert CATALOGUE.fullmatch(bug.source), name
    for name, bug in BUGS.items():
        assert bug.check in {*CHECKS, "readable", "any"}, name


def names_of_modules() -> dict[str, dict[str, Any]]:
    """Return what stands behind each name of each module of the product that is imported."""
    return {name: dict(vars(module)) for name, module in sys.modules.items() if name.split(".")[0] in {"ddp", "bench"}}


def stands(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether the same objects still stand behind all names."""
    return before.keys() <= now.keys() and all(map(is_, before.values(), map(now.__getitem__, before)))


@pytest.mark.parametrize("name", BUGS)
def test_a_patch_breaks_what_is_there(name: str) -> None:
    """Fresh copies of the modules, which nobody else sees."""
    for module, patch in BUGS[name].patches.items():
        whole = importlib.import_module(module)
        spec = importlib.util.find_spec(module)
        assert spec is not None
        assert spec.loader is not None
        copy = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(copy)
        names = {key: set(vars(value)) for key, value in vars(copy).items() if isinstance(value, type)}
        theirs = [value for value in vars(copy).values() if isinstance(value, type) and value.__module__ != module]
        before = [dict(vars(value)) for value in theirs]
        loaded = names_of_modules()
        patch(copy)
        patched = [name for name, names_before in loaded.items() if not stands(names_before, vars(sys.modules[name]))]
        assert patched == [], "other modules are patched there"
        assert [dict(vars(value)) for value in theirs] == before, "classes of other modules are patched there"
        after = {key: set(vars(value)) for key, value in vars(copy).items() if isinstance(value, type)}
        assert names == after, "it replaces something that is there, and adds nothing"
        assert vars(whole).keys() == vars(copy).keys()


def test_modules_are_broken_as_they_are_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some_engine.py").write_text("def one():\n    return 1\n")
    (tmp_path / "some_user.py").write_text("from some_engine import one\nRESULT = one()\n")
    monkeypatch.syspath_prepend(tmp_path)
    sign = tmp_path / "sign"
    finder = Finder({"some_engine": lambda module: setattr(module, "one", lambda: 2)}, str(sign))
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    assert importlib.import_module("some_user").RESULT == 2
    assert sign.read_text() == "some_engine\n"
    for name in ("some_user", "some_engine"):
        monkeypatch.delitem(sys.modules, name)


def test_a_function_stands_in_for_a_method_a_function_and_the_end_of_a_beginning() -> None:
    class Clock:
        def __init__(self, at: float) -> None:
            self.at = at

        def after(self, seconds: float) -> float:
            return self.at + seconds

    @in_place_of("Clock.after")
    def late(after: Any, self: Any, seconds: float) -> Any:
        """Say a second more."""
        return after(seconds) + 1

    @in_place_of("total")
    def doubled(total: Any, values: list[int]) -> Any:
        return 2 * total(values)

    @once_made("Clock")
    def turned_on(self: Any) -> None:
        self.at += 10

    module = SimpleNamespace(Clock=Clock, total=sum)
    assert (late.__name__, late.__doc__) == ("late", "Say a second more.")
    for patch in (late, doubled, turned_on):
        patch(module)
    assert (module.Clock(1.0).after(2.0), module.total([1, 2])) == (14.0, 6)


def test_what_a_bug_breaks_is_the_first_sentence_of_its_patch() -> None:
    assert BUGS["average_by_nominal_batch"].breaks.startswith("average: ")
    assert all(bug.breaks.strip() and not bug.breaks.endswith(".") for bug in UNSEEN.values())

"""The figures and the picture at the head of README.md are those of recorded runs, and these of the recipe of today."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from omegaconf import DictConfig

from bench.base import environment
from bench.config.compose import compose, composing
from bench.config.composed import typed
from bench.config.config_checks import Machine
from bench.config.plan import plan
from bench.models import load
from bench.models.data import DATA
from bench.runner.live_view import announced_line
from benchmarks import page_one, readme
from benchmarks.documents import dark_twin
from ddp.engine.modes import modes

TEXT = (readme.ROOT / "README.md").read_text(encoding="utf-8")
HOUR = (readme.ROOT / "docs" / readme.HOUR).read_text(encoding="utf-8")
REMEDY = "run on a quiet machine: python -m benchmarks.readme --write"


def block(name: str) -> str:
    found = re.search(rf"(?s)<!-- {name} -->\n(.*?)\n\n<!-- /{name} -->", TEXT)
    assert found, f"README.md has no place for {name}"
    return found[1]


def test_the_figures_are_those_of_the_recorded_runs() -> None:
    run, sweep = readme.recorded()
    assert block("run") == readme.ending(run).rstrip(), REMEDY
    assert block("unequal") == readme.claim(sweep), REMEDY


def test_the_picture_is_drawn_from_the_recorded_runs(tmp_path: Path) -> None:
    """Pixels, not bytes: another zlib packs them otherwise."""
    from PIL import Image

    _, sweep = readme.recorded()
    made = readme.picture(sweep, tmp_path)
    for new, kept in ((made, readme.PICTURE), (dark_twin(made), dark_twin(readme.PICTURE))):
        with Image.open(new) as drawn, Image.open(kept) as shown:
            assert drawn.size == shown.size
            assert drawn.convert("RGB").tobytes() == shown.convert("RGB").tobytes(), REMEDY


def test_page_one_is_of_the_recorded_sweep(tmp_path: Path) -> None:
    """The picture bears the digest of the text that it shows; pixels are the browser's own."""
    from PIL import Image

    shown = page_one.blocks(tmp_path)
    with Image.open(page_one.PICTURE) as picture:
        assert picture.info[page_one.FIGURES] == page_one.digest(shown), REMEDY
        assert all(side <= most for side, most in zip(picture.size, page_one.SIZE, strict=True)), "one page"
    assert block("page") == readme.front(tmp_path).rstrip(), REMEDY
    results, verdicts = page_one.recorded()
    assert len(verdicts) > len(results)
    assert {verdict.check for verdict in verdicts} >= {"quality", "audit"}


def test_a_stranger_reads_it_in_three_minutes() -> None:
    assert len(TEXT.splitlines()) <= 120
    assert len(TEXT.split()) <= 1200


def test_every_mode_is_in_the_table() -> None:
    table = TEXT.partition("## What to expect")[2].partition("## Where")[0]
    named = re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|")))
    known = modes()
    shown = [known[name] for name in named]
    # A member of a registry that the table does not name, such as a new policy, need not be in it.
    parts = [{getattr(mode, part) for mode in shown} for part in ("engine", "policy", "backend")]
    least = ({"solo", "elche", "graph"}, {"sync", "cadence", "async", "qsr"}, {"nccl", "cpu", "zero3", "torch_ddp"})
    assert all(some <= part for some, part in zip(least, parts, strict=True))
    expected = [
        name
        for name, mode in known.items()
        if mode.engine in parts[0] and mode.policy in parts[1] and mode.backend in parts[2]
    ]
    assert sorted(named) == sorted(expected)


def test_the_model_of_ones_own_is_short() -> None:
    (script,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert len([line for line in script.splitlines() if line]) <= 10


@pytest.mark.parametrize("command", [readme.RUN, readme.SWEEP, readme.PAGE])
def test_the_record_is_of_what_the_commands_mean_today(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"    python -m bench {command}" in TEXT or f"`python -m bench {command}`" in TEXT
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it: put it back
    monkeypatch.setattr(environment, "cores", lambda: 2)
    meant = set()

    def note(composed: DictConfig) -> None:
        config = typed(composed)
        spec = plan(config, load(config.model.name), DATA, Machine(2, 0)).spec
        meant.add((spec.mode, spec.run_id))

    compose(shlex.split(command), (), note, lambda line: None)
    run, sweep = readme.recorded()
    results = {readme.RUN: [run], readme.SWEEP: sweep, readme.PAGE: page_one.recorded()[0]}[command]
    assert {(m.mode, m.run_id) for m in results} == meant, REMEDY
    assert all(m.status == "ok" for m in results)


def test_the_first_hour_prints_what_its_commands_mean_today(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "cores", lambda: 2)
    assert all(f"    python -m bench {words}\n" in HOUR for words in readme.LESSONS.values())
    with composing() as composed:
        config = typed(composed(shlex.split(readme.LESSONS["trained"])))
    made = plan(config, load(config.model.name), DATA, Machine(2, 0))
    assert f"    {announced_line(made.spec)}\n" in HOUR, REMEDY

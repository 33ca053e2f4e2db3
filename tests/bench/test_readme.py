"""The figures and the picture at the head of README.md are those of recorded runs, and these of the recipe of today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from omegaconf import DictConfig

from bench.base import environment
from bench.config.compose import compose
from bench.config.config import typed
from bench.config.config_checks import Machine
from bench.config.plan import plan
from bench.models import load
from bench.models.data import DATA
from benchmarks import readme

TEXT = (readme.ROOT / "README.md").read_text(encoding="utf-8")
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
    drawn, shown = Image.open(readme.picture(sweep, tmp_path)), Image.open(readme.PICTURE)
    assert drawn.size == shown.size
    assert drawn.convert("RGB").tobytes() == shown.convert("RGB").tobytes(), REMEDY


@pytest.mark.parametrize("command", [readme.RUN, readme.SWEEP])
def test_the_record_is_of_what_the_commands_mean_today(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert f"    python -m bench {command}" in TEXT or f"`python -m bench {command}`" in TEXT
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it: put it back
    monkeypatch.setattr(environment, "cores", lambda: 2)
    meant = set()

    def note(composed: DictConfig) -> None:
        config = typed(composed)
        spec = plan(config, load(config.model.name), DATA, Machine(2, 0)).spec
        meant.add((spec.mode, spec.run_id))

    compose(command.split(), (), note, lambda line: None)
    run, sweep = readme.recorded()
    recorded = {(m.mode, m.run_id) for m in ([run] if command == readme.RUN else sweep)}
    assert recorded == meant, REMEDY
    assert all(m.status == "ok" for m in (run, *sweep))

"""What `list` says of a choice is whole; a sweep over nothing is no sweep."""

from __future__ import annotations

from dataclasses import fields

import pytest

from bench.command.verbs.listing import GROUPS
from bench.config.launch_settings import LAUNCHERS
from tests.bench.conftest import Bench


@pytest.mark.parametrize("group", [name for name in GROUPS if name not in ("recipes", "policies", "launch")])
def test_no_summary_is_cut(group: str) -> None:
    for name, text in GROUPS[group]().items():
        assert text.endswith((".", "!", "?")), f"{name}: {text}"
        assert "\n" not in text


@pytest.mark.parametrize("group", ["policies", "launch"])
def test_what_has_settings_ends_with_them(group: str) -> None:
    for text in GROUPS[group]().values():
        assert text.endswith((".", "]"))


def test_launchers_and_their_settings_are_listed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    """`list launch` was an unknown group, and --help named none of them."""
    assert bench("list", "launch") == 0
    listed = capsys.readouterr().out
    assert bench("--help") == 0
    page = capsys.readouterr().out
    for name, kind in LAUNCHERS.items():
        assert f"{name} " in listed
        for field in fields(kind):
            assert f"{field.name}={str(field.default).lower()}" in listed
            assert f"launch.{field.name}=" in page
    assert "launch: ray, slurm" in page


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_a_sweep_over_nothing_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    for verb in ([], ["plan"]):
        assert bench(*verb, flag) == 2
        assert "-m alone varies nothing: say what to vary" in capsys.readouterr().err
    assert bench("plan", flag, "mode=solo") == 0

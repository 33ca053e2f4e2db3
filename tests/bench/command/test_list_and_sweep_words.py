"""What `list` says of a choice is whole; a sweep over nothing is no sweep."""

from __future__ import annotations

import pytest

from bench.command.verbs.listing import GROUPS
from tests.bench.conftest import Bench


@pytest.mark.parametrize("group", [name for name in GROUPS if name not in ("recipes", "policies")])
def test_no_summary_is_cut(group: str) -> None:
    for name, text in GROUPS[group]().items():
        assert text.endswith((".", "!", "?")), f"{name}: {text}"
        assert "\n" not in text


def test_policies_end_with_their_settings() -> None:
    for text in GROUPS["policies"]().values():
        assert text.endswith((".", "]"))


@pytest.mark.parametrize("flag", ["-m", "--multirun"])
def test_a_sweep_over_nothing_is_refused(bench: Bench, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    for verb in ([], ["plan"]):
        assert bench(*verb, flag) == 2
        assert "-m alone varies nothing: say what to vary" in capsys.readouterr().err
    assert bench("plan", flag, "mode=solo") == 0

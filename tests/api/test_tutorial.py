"""The tutorial's script as it is printed; `tests/bench/repository/test_wheel.py` takes it to its verdict."""

from __future__ import annotations

import re

import pytest

from tests.warm import ROOT

PAGE = (ROOT / "docs/tutorial/own-script.md").read_text()
PLAIN, HEAD, BODY = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
CUT = "model = make_model()"


def changed() -> str:
    kept, found, _ = PLAIN.partition(CUT)
    assert found
    return HEAD + kept + BODY


def test_it_is_nine_lines_of_change() -> None:
    assert len((HEAD + BODY).splitlines()) == 9
    assert set(changed().splitlines()) - set(PLAIN.splitlines()) == set((HEAD + BODY).splitlines())


def test_the_plain_script_trains(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PLAIN, "touch.py", "exec"), {"__name__": "__main__"})
    assert float(capsys.readouterr().out) > 0.9

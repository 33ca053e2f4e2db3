"""The example of docs/how-to/graph.md works as printed, and unchanged on one device."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "how-to" / "graph.md").read_text()


@pytest.mark.parametrize("devices", ['["cpu", "cpu"]', '["cpu"]'])
def test_the_example(devices: str, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    assert '["cpu", "cpu"]' in code
    exec(code.replace('["cpu", "cpu"]', devices), {})
    *epochs, accuracy = capsys.readouterr().out.splitlines()
    assert len(epochs) == 4
    assert float(accuracy) > 0.9

"""The script of docs/how-to/own-loop.md trains on two ranks, as printed."""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path

from ddp.parallel.group import current
from tests.parallel.test_group import run

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "own-loop.md"


def script(folder: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code, {"__name__": "__main__"})
    (folder / os.environ["RANK"]).write_text(printed.getvalue())
    current().close()


def test_the_script_of_a_loop_of_ones_own(tmp_path: Path) -> None:
    assert run(script, tmp_path, 2) == [0, 0]
    assert float((tmp_path / "0").read_text()) > 0.9
    assert (tmp_path / "1").read_text() == ""

"""The tutorial's script, from plain PyTorch to a verdict, as it is printed."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from bench.command import cli
from bench.timeline import FILES
from tests.bench.scripts import in_threads
from tests.warm import ROOT, Warm

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


def here(script: Path, *words: str) -> None:
    """Run the script in this process."""
    with pytest.MonkeyPatch.context() as patch, in_threads():
        patch.setattr(sys, "argv", [str(script), *words])
        patch.setattr("bench.runner.script.write_report", lambda *paths: None)
        runpy.run_path(str(script), run_name="__main__")


def test_from_training_to_the_verdict(
    warm: Warm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "touch.py"
    script.write_text(changed())
    for seed in range(5):
        here(script, "solo", "1", str(seed))
    for line in ("propose runs/touch --mode solo", "accept --baseline baselines"):
        assert f"python -m bench baseline {line}" in PAGE
        dirty = ["--dirty"] * line.startswith("propose")
        assert cli.dispatch(["baseline", *line.split(), *dirty]) == 0
    capsys.readouterr()
    assert "python touch.py nccl_sync 2 0" in PAGE
    code, out, err = warm.start(tmp_path, "touch.py", "nccl_sync", "2", "0").result()
    assert (code, err) == (0, "")
    assert f"    {out.splitlines()[0]}\n" in PAGE
    verdicts = re.findall(r"^([A-Z_]+) +touch nccl_sync ×2  (.*?):", out, re.MULTILINE)
    assert {name for name, _ in verdicts} == {"PASS", "INCONCLUSIVE"}
    assert [check for name, check in verdicts if name == "INCONCLUSIVE"] == ["quality"]
    assert {"ledger", "audit"} <= {check for _, check in verdicts}
    (folder,) = (tmp_path / "runs" / "touch" / "nccl_sync").iterdir()
    assert {path.name for path in folder.iterdir()} >= {*FILES, "report.html", "metrics.json", "audit.json"}
    assert cli.dispatch(["validate", "runs/touch", "--baseline", "baselines"]) == 3
    capsys.readouterr()
    script.write_text(changed().replace("batch[1])\n\n\ndef acc", "batch[1], label_smoothing=0.1)\n\n\ndef acc"))
    here(script, "solo", "1", "0")
    assert re.search(r"REFUSED .*not comparable .*training\.code", capsys.readouterr().out)

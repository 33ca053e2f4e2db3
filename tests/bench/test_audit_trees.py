"""`bench audit TREE`: each run by itself, the worst exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.base.exitcodes import Exit
from bench.base.usage import UsageError
from bench.command import audit_command, cli
from tests.bench.streams import make_spec, write_run


def test_each_run_of_a_tree_is_audited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tree = tmp_path / "runs"
    equal, failed, different = (write_run(tree, make_spec("solo", seed=seed)) for seed in range(3))
    seen: list[Path] = []

    def audited(folder: Path) -> Exit:
        seen.append(folder)
        if folder == failed:
            raise UsageError(f"{folder}: it ended failed, and only finished runs are audited")
        return Exit.REGRESSION if folder == different else Exit.OK

    monkeypatch.setattr(audit_command, "_audit", audited)
    assert cli.dispatch(["audit", str(tree)]) == Exit.REGRESSION
    assert sorted(seen) == sorted([equal, failed, different])
    assert capsys.readouterr().out == f"REFUSED    {failed}: it ended failed, and only finished runs are audited\n"
    seen.clear()
    assert cli.dispatch(["audit", str(equal)]) == Exit.OK
    assert seen == [equal]
    (different / "metrics.json").write_text("{}")
    assert cli.dispatch(["audit", str(tree)]) == Exit.REFUSED
    assert "schema_version" in capsys.readouterr().out


def test_a_tree_without_runs_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["audit", str(tmp_path)]) == Exit.USAGE
    assert "is not a run folder" in capsys.readouterr().err

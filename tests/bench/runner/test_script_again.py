"""A recorded run is made again, and audited, through the script that made it; and only by that."""

from __future__ import annotations

import json
import os
import re
import runpy
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench import judge
from bench.command import cli
from bench.results.rerun_command import command
from bench.results.runfolder import CONFIG, find_runs
from bench.runner.script import script
from bench.runner.script_again import rerun_script
from tests.bench.runner.scripts import in_threads, step, trainer
from tests.runtime import toy

SCRIPT = """
import sys
from tests.bench.runner.scripts import trainer
handle = trainer("runs", audit=True, mode="solo", world_size=None, seed=int(sys.argv[1])).run()
handle.join()
"""


def start(words: list[str], folder: str | Path, variables: Mapping[str, str]) -> int:
    """Run a script in this process, in place of one of its own; its exit code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr("bench.runner.script.STARTED_IN", str(folder))
        patch.setattr(sys, "argv", words[1:])
        for name, value in variables.items():
            patch.setenv(name, value)
        try:
            runpy.run_path(words[1], run_name="__main__")
        except SystemExit as end:
            return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a run that a script made, beside the script."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "touch.py").write_text(SCRIPT)
    with in_threads() as patch:
        patch.setattr("bench.runner.script_again.run_process", start)
        start(["python", str(folder / "touch.py"), "5"], folder, os.environ)
        (run,), _ = find_runs(folder / "runs")
        yield run.path


def test_the_run_names_its_script(made: Path) -> None:
    (run,), _ = find_runs(made)
    script = run.config["script"]
    assert (script["path"], script["arguments"]) == (str(made.parents[3] / "touch.py"), ["5"])
    assert (run.metrics.seed, run.metrics.mode) == (5, "solo")
    assert "tests.bench.runner.scripts" in run.config["training"]["dependencies"]


def test_rerun_gives_the_same_bits(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["rerun", str(made)]) == 0
    assert capsys.readouterr().out.startswith(f"EQUAL      {made}: the same bits")
    assert len(find_runs(made.parents[2])[0]) == 1, "nothing else came into the tree"


def test_audit_does_its_steps_again(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (made / "audit.json").read_bytes()
    (made / "audit.json").unlink()
    assert cli.dispatch(["audit", str(made)]) == 0
    assert "steps and the evaluation are as they were" in capsys.readouterr().out
    assert (made / "audit.json").exists()
    (made / "audit.json").write_bytes(before)


def test_prove_compares_its_mode_with_plain_pytorch(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.dispatch(["prove", str(made), "--steps", "2"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^touch +solo +1 +exact +- +0 +0 +equal", out, re.MULTILINE), out
    assert cli.dispatch(["prove", str(made.parents[3] / "touch.py")]) == 2
    assert "is a file: prove a run that it made" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda script: script.write_text(SCRIPT + "# changed\n"), "was changed since"),
        (lambda script: script.unlink(), "is not there"),
    ],
)
def test_another_script_is_not_run(
    change: Callable[[Path], object], reason: str, made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = made.parents[3] / "touch.py"
    change(script)
    try:
        for verb in ("rerun", "audit"):
            assert cli.dispatch([verb, str(made)]) == 2
            err = capsys.readouterr().err
            assert reason in err
            assert len(err.splitlines()) == 1
    finally:
        script.write_text(SCRIPT)


@pytest.mark.parametrize("script", ["touch.py", ["touch.py"], 5, {"path": "touch.py", "pythonpath": 5}])
def test_a_script_that_was_changed_in_the_records_is_one_line(
    script: object, made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(made, tmp_path / made.name))
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps(config | {"script": script}))
    for verb in ("audit", "prove"):
        assert cli.dispatch([verb, str(folder)]) == 2
        err = capsys.readouterr().err
        assert "script is not what a script notes of itself" in err
        assert len(err.splitlines()) == 1


def solo(output: Path, seed: int, **more: Any) -> Any:
    handle = trainer(output, mode="solo", world_size=None, seed=seed, **more).run()
    handle.join()
    return handle


def halved(model: Any, batch: Any) -> Any:
    return step(model, batch) * 0.5


def test_no_baseline_judges_another_step_or_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.runner.script.write_report", lambda *paths, **more: None)
    with in_threads():
        for seed in range(5):
            solo(tmp_path / "runs", seed)
        runs, _ = find_runs(tmp_path / "runs")
        assert len({run.metrics.config_hash for run in runs}) == 1, "the seeds of one cell"
        words = ["--mode", "solo", "--dirty", "--out", str(tmp_path / "proposed")]
        assert cli.dispatch(["baseline", "propose", str(tmp_path / "runs"), *words]) == 0
        folders = [str(tmp_path / name) for name in ("proposed", "baselines")]
        assert cli.dispatch(["baseline", "accept", folders[0], "--baseline", folders[1]]) == 0
        same = trainer(tmp_path / "more", mode="nccl_sync").run()
        checked = {verdict.check for verdict in judge(same, tmp_path / "baselines").verdicts}
        assert {"quality", "status"} <= checked
        less = tuple(part[:200] for part in toy.data())
        for changed in ({"train_step": halved}, {"dataset": less}):
            handle = trainer(tmp_path / "other", mode="nccl_sync", **changed).run()
            other = judge(handle, tmp_path / "baselines")
            (refused,) = [verdict for verdict in other.verdicts if verdict.name == "REFUSED"]
            assert "not comparable" in refused.text
            field = "training.code" if "train_step" in changed else "training.data"
            assert field in refused.text
            assert not {"quality"} & {verdict.check for verdict in other.verdicts}


@pytest.mark.parametrize(("processes", "hosts"), [(1, 1), (2, 1), (4, 2)])
def test_processes_of_a_launcher_are_started_again(processes: int, hosts: int, made: Path) -> None:
    """On one host by torchrun; those on several hosts are refused."""
    launched = {"TORCHELASTIC_RUN_ID": "none", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    counts = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes // hosts, "GROUP_WORLD_SIZE": hosts}
    ranks = dict.fromkeys(("RANK", "LOCAL_RANK", "GROUP_RANK"), "0")
    started: list[list[str]] = []
    (run,), _ = find_runs(made)
    path = run.config["script"]["path"]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**launched, **counts, **ranks}.items():
            patch.setenv(name, str(value))
        about = script()
    assert (about.processes, about.hosts) == (processes, hosts)
    as_launched = {**run.config["script"], "processes": about.processes, "hosts": about.hosts}
    run = replace(run, config=run.config | {"script": as_launched})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bench.runner.script_again.run_process", lambda words, *more: started.append(words) or 1)
        why = "did not make this run" if hosts == 1 else "by its launcher: it started 4 processes on 2 hosts"
        with pytest.raises(ValueError, match=why):
            rerun_script(run, made / "elsewhere")
    if hosts > 1:
        assert not started
        assert command([run]) == f"run {path} again by its launcher: it started 4 processes on 2 hosts"
        return
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if processes > 1 else []
    assert started == [[sys.executable, *launcher, path, "5"]]
    assert command([run]) == f"cd {Path(path).parent} && {shlex.join(['python', *launcher, path, '5'])}"


PACKAGE = """
import sys
import os
from helper import SEED
os.makedirs("elsewhere")
os.chdir("elsewhere")
from tests.bench.runner.scripts import trainer
trainer("../runs", audit=False, mode="solo", world_size=None, seed=SEED).run().join()
"""


def test_what_pythonpath_named_is_found_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the shell that runs it again knows nothing of it, and the script went elsewhere."""
    for name in ("lib", "here"):
        (tmp_path / name).mkdir()
    (tmp_path / "lib/helper.py").write_text("SEED = 7\n")
    script = tmp_path / "here/touch.py"
    script.write_text(PACKAGE)
    started: list[str] = []

    def note(words: list[str], folder: str, variables: Mapping[str, str]) -> int:
        started.append(variables["PYTHONPATH"].split(os.pathsep)[0])
        return 1

    with in_threads() as patch:
        patch.setattr("bench.runner.script.write_report", lambda *paths, **more: None)
        patch.syspath_prepend(tmp_path / "lib")
        assert start(["python", str(script)], script.parent, {"PYTHONPATH": "../lib"}) == 0
        patch.setattr("bench.runner.script_again.run_process", note)
        (run,), _ = find_runs(script.parent / "runs")
        assert cli.dispatch(["rerun", str(run.path)]) == 2
    capsys.readouterr()
    assert started == [str(tmp_path / "lib")]
    assert command([run]) == f"cd {script.parent} && PYTHONPATH={tmp_path / 'lib'} python {script}"

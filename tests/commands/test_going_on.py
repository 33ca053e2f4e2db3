"""A run that ended before its end prints the command that goes on with it, and that command does."""

from __future__ import annotations

import os
import re
import shlex
import signal
from pathlib import Path

from bench.results.runfolder import find_runs
from tests.warm import PICTURES, Warm, wait_for

QUIET = ("report=false", "validate=false")
WORDS = ("model=mlp", "mode=nccl_sync", "data.name=digits", "train.batch_size=32", "train.epochs=20", *QUIET)
FEW = """
import os, resource, runpy, sys
held = len(os.listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (held + 12, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
runpy.run_module("bench", run_name="__main__", alter_sys=True)
"""


def printed(out: str) -> list[str]:
    """The words of the command behind `python` that goes on with the run."""
    found = re.search(r"continue:? +python (-m bench .*)", out)
    assert found, out
    return shlex.split(found[1])


def test_what_was_interrupted_and_what_failed_say_how_to_go_on(warm: Warm, tmp_path: Path) -> None:
    folder = tmp_path / "runs, [of] {mine} ${x}"
    folder.mkdir()
    process = warm.start(folder, "-m", "bench", *WORDS, "checkpoint.spacing_s=0", env={PICTURES: "none"})
    try:
        wait_for(lambda: list(folder.glob("runs/*/*/.tmp-*/checkpoints/0000[0-9][1-9]/books")), process)
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == 130
        words = printed(process.printed())
    finally:
        process.kill_all()
    (folder / "few.py").write_text(FEW)
    code, out, err = warm.start(folder, "few.py", *words[2:], *QUIET, env={PICTURES: "none"}).result()
    assert code == 5, out + err
    assert re.search(r"failed: 2 ranks cannot be started: Too many open files.*ulimit -n", err)
    assert printed(out) == words
    code, out, err = warm.start(folder, *words, *QUIET, env={PICTURES: "none"}).result()
    assert (code, err) == (0, "")
    assert "continue" not in out
    (run,), _ = find_runs(folder)
    assert (run.metrics.status, len(run.metrics.epochs)) == ("ok", 20)

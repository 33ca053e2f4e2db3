"""Scripts as users write them, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
HEAD = """
import torch
from torch import nn
from ddp import Trainer

print("top level", flush=True)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, inputs):
        return self.layer(inputs)

def step(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])

data = torch.randn(400, 4), torch.randint(2, (400,))

def trainer(**more):
    return Trainer(Net, lambda p: torch.optim.SGD(p, lr=0.1), step, data, batch_size=8, world_size=2, **more)
"""


def begin(folder: Path, code: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, str(script)], cwd=folder, env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float = 90) -> tuple[int, str, str]:
    """Its exit code, output and errors; nothing of it may be left afterwards."""
    session = process.pid
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(session, signal.SIGKILL)
    deadline = time.monotonic() + 10  # the fork server notices the end of its parent by itself
    while (left := members(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left
    assert not list(Path("/dev/shm").glob(f"ddp-run-{session}-*"))
    return process.returncode, out, err


def members(session: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == session and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def test_a_script_needs_no_guard_and_takes_its_runs_along(tmp_path: Path) -> None:
    """Its ranks do not run it again; a run that is still going when it ends, ends."""
    code = (
        HEAD
        + """
state = trainer(epochs=2).run().join()
print(sorted(state.params), state.params["layer.weight"].shape)
dropped = trainer(epochs=10**6).run()
dropped.next_metrics()
"""
    )
    status, out, err = finish(begin(tmp_path, code))
    assert (status, err) == (0, "")
    assert out.splitlines() == ["top level", "['layer.bias', 'layer.weight'] torch.Size([2, 4])"]


def test_a_module_that_trains_when_imported_gets_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + "trainer(epochs=2).run().join()\n")
    status, out, err = finish(begin(tmp_path, "import mine\n"))
    assert status == 1
    assert "starts training when it is imported" in err
    assert out.count("top level") <= 3, "each rank has tried once"


@pytest.mark.parametrize("where", ["handle.join()", "import time; time.sleep(60)"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, where: str) -> None:
    code = HEAD + f"handle = trainer(epochs=10**6).run()\nhandle.next_metrics()\nprint('go', flush=True)\n{where}\n"
    process = begin(tmp_path, code)
    assert process.stdout is not None
    while process.stdout.readline() not in ("go\n", ""):
        pass
    time.sleep(0.3)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    status, _, err = finish(process, 30)
    assert time.monotonic() - began < 20
    assert status == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")


def test_a_killed_script_leaves_no_process(tmp_path: Path) -> None:
    process = begin(
        tmp_path, HEAD + "h = trainer(epochs=10**6).run()\nh.next_metrics()\nprint('go', flush=True)\nh.join()\n"
    )
    assert process.stdout is not None
    while process.stdout.readline() not in ("go\n", ""):
        pass
    process.kill()
    process.communicate(timeout=30)
    deadline = time.monotonic() + 15
    while (left := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left


def test_the_example_of_the_manual_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code, *_) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    exec(code, {"__name__": "__main__"})
    *epochs, accuracy = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in epochs] == ["0", "1", "2", "3", "4", "5"]
    assert float(accuracy) > 0.9

"""Scripts as users write them, each in a process of its own. Where imports are the point, from nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from ddp import Trainer
from ddp.core.errors import RankFailed
from tests.held_up import in_time
from tests.runtime import toy
from tests.warm import ROOT, Process, Warm, wait_for

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

GOING = "handle = trainer(epochs=10**6).run()\nhandle.next_metrics()\nprint('go', flush=True)\n"


def begin(warm: Warm, folder: Path, code: str) -> Process:
    (folder / "script.py").write_text(code)
    return warm.start(folder, "script.py")


def cold(folder: Path, code: str) -> tuple[subprocess.Popen[str], str, str]:
    """A script in an interpreter that starts from nothing: its process, which has ended, output and errors."""
    (folder / "script.py").write_text(code)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "script.py"], cwd=folder, env=environment, text=True, **pipes)
    try:
        out, err = process.communicate(timeout=90)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
    return process, out, err


def gone(session: int, scratch: bool = True) -> bool:
    """Whether nothing is left of a session, within the time that the fork server needs to notice the end of its parent.

    `scratch`: of its files neither, which a script that is killed cannot remove.
    """
    deadline = time.monotonic() + 15
    while (left := members(session)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left and not (scratch and list(Path("/dev/shm").glob(f"ddp-run-{session}-*")))


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
    """Its ranks do not run it again; objects of its own classes come back; a run that is still going when it ends, ends."""
    code = (
        HEAD
        + """
state = trainer(epochs=2).run().join()
print(sorted(state.params), state.params["layer.weight"].shape)

class Mark:
    pass

class Marked(Net):
    def get_extra_state(self):
        return Mark()

    def set_extra_state(self, state):
        assert isinstance(state, Mark)

Net = Marked
print(isinstance(trainer(epochs=1).run().join().extra["_extra_state"], Mark))
dropped = trainer(epochs=10**6).run()
dropped.next_metrics()
"""
    )
    process, out, err = cold(tmp_path, code)
    assert (process.returncode, err) == (0, "")
    assert out.splitlines() == ["top level", "['layer.bias', 'layer.weight'] torch.Size([2, 4])", "True"]
    assert gone(process.pid)


def training() -> nn.Module:
    """A model that comes with a run of its own."""
    Trainer(lambda: nn.Linear(6, 2), _descent, _step, toy.data(), batch_size=8, world_size=2, epochs=1).run()
    return nn.Linear(6, 2)


def _descent(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def _step(model: nn.Module, batch: Any) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def test_what_trains_inside_a_rank_is_told_what_to_do() -> None:
    handle = Trainer(training, _descent, _step, toy.data(), batch_size=8, world_size=2, epochs=1).run()
    with pytest.raises(RankFailed, match="starts training when it is imported; put that under `if __name__"):
        handle.join()


@pytest.mark.slow
def test_a_module_that_trains_when_imported_gets_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(HEAD + "trainer(epochs=2).run().join()\n")
    process, out, err = cold(tmp_path, "import mine\n")
    assert process.returncode == 1
    assert "starts training when it is imported" in err
    assert out.count("top level") <= 3, "each rank has tried once"
    assert gone(process.pid)


@pytest.mark.parametrize("where", ["handle.join()", "import time; time.sleep(60)"])
def test_an_interrupt_leaves_nothing(warm: Warm, tmp_path: Path, where: str) -> None:
    process = begin(warm, tmp_path, HEAD + f"{GOING}{where}\n")
    assert wait_for(lambda: "go\n" in process.printed(), process)
    time.sleep(0.3)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    status, _, err = process.result(30)
    assert in_time(began, 20.0)
    assert status == -signal.SIGINT
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert gone(process.pid)


def test_a_killed_script_leaves_no_process(warm: Warm, tmp_path: Path) -> None:
    process = begin(warm, tmp_path, f"{HEAD}{GOING}handle.join()\n")
    assert wait_for(lambda: "go\n" in process.printed(), process)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    assert gone(process.pid, scratch=False)
    process.kill_all()

"""A `Trainer` script in workers of Ray Train, imitated: a function in a thread, in a process that stays."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from ddp.launcher.environment import Placement
from ddp.trainer import ray_train
from tests.api.test_launched import free_port
from tests.api.test_script import HEAD
from tests.warm import Warm

WORKER = HEAD.replace("world_size=2, ", "") + (
    """
import os, queue, sys, threading, time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from ddp.trainer.ray_train import CONTEXT

errors = queue.SimpleQueue()
runner = SimpleNamespace(get_exception_queue=lambda: errors)
sys.modules["ray.train"] = ModuleType("ray.train")
sys.modules[CONTEXT] = ModuleType(CONTEXT)
sys.modules[CONTEXT].get_train_context = lambda: SimpleNamespace(
    execution_context=SimpleNamespace(training_thread_runner=runner)
)

def body():
    try:
        trainer(epochs=1, policy="sync").run().join()
        errors.put(None)
    except BaseException as error:
        errors.put(error)

thread = threading.Thread(target=body, daemon=True)
thread.start()
print(errors.get(timeout=60.0))
thread.join(10.0)
rank = int(os.environ["RANK"])
Path(f"ended-{rank}").touch()
until = time.monotonic() + 30.0
while not Path(f"ended-{1 - rank}").exists() and time.monotonic() < until:
    time.sleep(0.05)
print("both ended" if Path(f"ended-{1 - rank}").exists() else "the other one stays", flush=True)
"""
)


def worker(rank: int, port: int) -> dict[str, str]:
    """The variables of one of two workers on a host."""
    return {
        "RAY_JOB_ID": "01000000", "RAY_RAYLET_PID": "1", "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
        "DDP_KEY": "k" * 32,
    }  # fmt: skip


def test_all_workers_end_without_an_error_while_their_processes_stay(warm: Warm, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(WORKER)
    port = free_port()
    processes = [warm.start(tmp_path, "script.py", env=worker(rank, port)) for rank in range(2)]
    try:
        for code, out, err in [process.result() for process in processes]:
            assert (code, out.splitlines()) == (0, ["top level", "None", "both ended"]), err
    finally:
        for process in processes:
            process.kill_all()


def test_a_ray_train_that_would_wait_for_ever_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not ray_train.within(Placement("ray", 1, 2))  # an actor of a user's own
    monkeypatch.setitem(sys.modules, "ray.train", ModuleType("ray.train"))
    assert ray_train.within(Placement("ray", 1, 2))
    with pytest.raises(ValueError, match="this version of Ray Train does not let a worker end"):
        ray_train.quiet_end()

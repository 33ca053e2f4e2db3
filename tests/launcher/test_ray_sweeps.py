"""A sweep of Ray's with a module in the place of Ray: what is said where there is no room, and lost attempts."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bench.command.sweeps import ray_sweep
from bench.config.launch_settings import RaySettings
from bench.runner import ray_cell
from bench.runner.ray_cell import RayCell, RaySweep
from bench.runner.ray_rank import ActorPlace


class FakeGroup:
    """A placement group that is there at once, or never."""

    def __init__(self, ready: bool) -> None:
        self._ready = ready

    def wait(self, timeout_s: float) -> bool:
        return self._ready


class FakeActor:
    """An actor whose command ends with one code after the other."""

    def __init__(self, codes: list[int]) -> None:
        here = ActorPlace("n1", "n1", "10.0.0.1", 7000, doomed=False)
        self.place = SimpleNamespace(remote=lambda: here)
        self.train = SimpleNamespace(remote=lambda *words: codes.pop(0))
        self.end = SimpleNamespace(remote=lambda attempt: None)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Ray with one host of four cores, where what is called is done at once."""
    made: Any = ModuleType("ray")
    made.ready = True
    made.nodes = lambda: [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"GPU": 9.0}}]
    made.wait = lambda calls, timeout: (calls, [])
    made.get = lambda calls, timeout=0.0: calls
    made.kill = lambda actor: None
    error = type("RayError", (Exception,), {})
    kinds = (*ray_sweep.OF_ACTORS, "ActorUnavailableError", "RaySystemError")
    errors = {"RayError": error} | {name: type(name, (error,), {}) for name in kinds}
    groups = {
        "placement_group": lambda bundles, strategy: FakeGroup(made.ready),
        "remove_placement_group": lambda group: None,
    }
    for name, parts in (("ray", {}), ("ray.exceptions", errors), ("ray.util.placement_group", groups)):
        module = made if name == "ray" else ModuleType(name)
        vars(module).update(parts)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "ray.util", ModuleType("ray.util"))
    monkeypatch.setattr(ray_cell, "LOOK_S", 0.01)
    return made  # type: ignore[no-any-return]


def sweep(folder: Path, settings: RaySettings) -> RaySweep:
    return RaySweep(settings, folder, str(folder), "ray-1", "k" * 32, threading.Event())


def test_a_command_that_a_signal_killed_is_begun_again(
    ray: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = [-9, -11, 0]
    monkeypatch.setattr(RayCell, "_actor", lambda self, group, rank: FakeActor(codes))
    assert RayCell(sweep(tmp_path, RaySettings()), 0, []).train() == 0
    codes += [-9, -9]
    assert RayCell(sweep(tmp_path, RaySettings(restarts=1)), 0, []).train() == 5
    assert codes == []


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (RaySettings(gpus=1), "needs 1 host with CPU 1, GPU 1, and Ray has 0"),
        (RaySettings(nodes=2), "needs 2 hosts with CPU 1, and Ray has 1"),
        (RaySettings(cpus=4), "waits for room: 1 host with CPU 4"),
    ],
)
def test_a_sweep_without_room_says_so(
    ray: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    settings: RaySettings,
    why: str,
) -> None:
    ray.ready = False
    monkeypatch.setattr(ray_sweep, "ROOM_S", 0.0)
    monkeypatch.setattr(ray_sweep, "LOOK_S", 0.05)
    threading.Timer(0.5, (tmp_path / "stop").touch).start()
    ray_sweep._train(sweep(tmp_path, settings), {"w1-s0": ["seed=0"], "w1-s1": ["seed=1"]})
    assert capsys.readouterr().out.count(why) == 1


def test_a_cell_whose_host_lacks_something_fails_alone(
    ray: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the folder that a command starts in: what an actor raises comes as an error of Ray's."""
    from ray.exceptions import RayTaskError

    def train(cell: RayCell) -> int:
        if cell._number == 0:
            raise RayTaskError("ray::RayRank.train()\nFileNotFoundError: No such file or directory: '/home/\x1b'\n")
        return 0

    monkeypatch.setattr(RayCell, "train", train)
    ray_sweep._train(sweep(tmp_path, RaySettings()), {"w1-s0": ["seed=0"], "w1-s1": ["seed=1"]})
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    assert (first["code"], first["why"]) == (5, "FileNotFoundError: No such file or directory: '/home/\ufffd'")
    assert second["code"] == 0


def test_a_cell_of_a_stopped_sweep_has_no_result_and_a_lost_cluster_is_no_failure_of_a_cell(
    ray: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both may be submitted again."""
    from ray.exceptions import RayActorError, RaySystemError

    def stopped(cell: RayCell) -> int:
        cell._sweep.stop.set()
        raise RayActorError("the actor was killed")

    def lost(cell: RayCell) -> int:
        raise RaySystemError("no connection to the cluster")

    monkeypatch.setattr(RayCell, "train", stopped)
    ray_sweep._train(sweep(tmp_path, RaySettings()), {"w1-s0": ["seed=0"]})
    monkeypatch.setattr(RayCell, "train", lost)
    with pytest.raises(RaySystemError, match="no connection"):
        ray_sweep._train(sweep(tmp_path, RaySettings()), {"w1-s0": ["seed=0"]})
    assert not list(tmp_path.iterdir())

"""A `Trainer` script in the processes of a launcher: the same bits as with ranks that it forks, one goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn

from ddp import Trainer
from ddp.launcher.environment import Placement
from ddp.launcher.interfaces import interfaces, is_loopback
from ddp.launcher.rank0_address import Unreachable
from ddp.trainer import launched
from ddp.trainer.task import PackedTask, Parts
from tests.api.test_script import HEAD
from tests.warm import Process, Warm

SCRIPT = HEAD.replace("world_size=2, ", "") + (
    "torch.manual_seed(3)\ndata = torch.randn(400, 4), torch.randint(2, (400,))\n"
    "state = trainer(epochs=2, policy='sync', output='runs', name='net', audit=False).run().join()\n"
    "print(sum(float(value.double().sum()) for value in state.params.values()).hex())\n"
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def srun(rank: int, port: int, nodes: int) -> dict[str, str]:
    """The variables that srun gives one of two tasks."""
    local, beside = (rank, 2) if nodes == 1 else (0, 1)
    names = "n1" if nodes == 1 else "n[1-2]"
    return {
        "SLURM_JOB_ID": "41", "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_LOCALID": str(local), "SLURM_NODEID": str(rank if nodes == 2 else 0), "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NODELIST": names, "SLURM_STEP_TASKS_PER_NODE": f"{beside}(x{nodes})",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "DDP_KEY": "k" * 32,
        "SLURM_RESTART_COUNT": "1", "WARM_PICTURES": "none",
    }  # fmt: skip


@contextmanager
def tasks(warm: Warm, folder: Path, code: str, nodes: int, **more: str) -> Iterator[list[Process]]:
    """The script in two processes of srun, on so many hosts that are this one."""
    (folder / "script.py").write_text(code)
    port = free_port()
    processes = [warm.start(folder, "script.py", env=srun(rank, port, nodes) | more) for rank in range(2)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill_all()


def unlaunched(warm: Warm, folder: Path, script: str) -> str:
    """What a script prints that starts its two ranks itself."""
    alone = folder / "alone"
    alone.mkdir()
    (alone / "script.py").write_text(script.replace("batch_size=8,", "batch_size=8, world_size=2,"))
    code, out, err = warm.start(alone, "script.py", env={"WARM_PICTURES": "none"}).result()
    assert code == 0, err
    return out


def test_a_script_trains_the_same_bits_and_its_other_process_ends_where_it_begins_to_train(
    warm: Warm, tmp_path: Path
) -> None:
    """On two hosts, which share neither memory nor scratch folder."""
    with tasks(warm, tmp_path, SCRIPT, nodes=2) as processes:
        first, second = (process.result() for process in processes)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    (folder,) = tmp_path.glob("runs/net/nccl_sync/w2-*")
    assert json.loads((folder / "metrics.json").read_text())["restarts"] == 1
    assert second[1] == "top level\n"
    assert first[1] == unlaunched(warm, tmp_path, SCRIPT)


LINK = next((each for each in interfaces() if ":" not in each.address and not is_loopback(each.address)), None)


@pytest.mark.skipif(LINK is None, reason="this host has loopback alone")
def test_ranks_of_several_hosts_use_the_interface_of_the_bound_address(warm: Warm, tmp_path: Path) -> None:
    """Gloo would find no other host on loopback, which is for ranks of one host."""
    assert LINK is not None
    told = "import os; open('gloo-' + os.environ['SLURM_PROCID'], 'w').write(os.environ['GLOO_SOCKET_IFNAME'])"
    script = SCRIPT.replace("state = trainer(", f"state = trainer(epoch_callback=lambda *_: exec({told!r}), ")
    with tasks(warm, tmp_path, script, nodes=2, DDP_BIND=LINK.address) as processes:
        results = [process.result() for process in processes]
    assert [result[0] for result in results] == [0, 0], results
    assert [(tmp_path / f"gloo-{rank}").read_text() for rank in range(2)] == [LINK.name] * 2


def test_an_error_of_rank_0s_script_ends_all(warm: Warm, tmp_path: Path) -> None:
    """Before it trains: the other process is told, and does not wait for minutes."""
    check = "import os\nif os.environ['SLURM_PROCID'] == '0':\n    raise OSError('no data')\n"
    broken = SCRIPT.replace("state = trainer(", f"made = trainer(epochs=2)\n{check}state = trainer(")
    with tasks(warm, tmp_path, broken, nodes=1) as processes:
        first, second = (process.result() for process in processes)
    assert (first[0], second[0]) == (1, 1)
    assert "no data" in first[2]


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> launched.Party:
    """Two processes of srun, of which this is rank 0's."""
    party = launched.Party(Placement("slurm", 0, 2, 0, 2))
    monkeypatch.setattr(launched, "party", lambda: party)
    return party


def made(**more: object) -> Trainer:
    import torch

    data = torch.zeros(8, 2), torch.zeros(8, dtype=torch.int64)
    return Trainer(
        lambda: nn.Linear(2, 2),
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
        data,
        batch_size=2,
        epochs=1,
        **more,  # type: ignore[arg-type]
    )


def test_the_launcher_says_how_many_ranks_there_are(two: launched.Party) -> None:
    assert made()._job.world_size == 2
    with pytest.raises(ValueError, match="world_size=3, but slurm has started 2 processes: leave it out"):
        made(world_size=3)
    with pytest.raises(ValueError, match="mode='solo' trains in one process: start the script without slurm"):
        made(mode="solo")


def test_a_trainer_made_after_the_first_run_is_refused(two: launched.Party, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other processes are still in that `run`, and know those made before."""
    monkeypatch.setattr(launched.HeadNode, "listen", lambda head, bind: setattr(head, "_rendezvous", object()))
    monkeypatch.setattr(launched, "process_of", lambda *_: SimpleNamespace(restarts=0))
    first, second = made(), made()
    assert two.provide(second._parts).task == (1, 8, 0)
    assert two.provide(first._parts).task == (0, 8, 0)
    with pytest.raises(ValueError, match="made after the first run under slurm, where the other processes still are"):
        two.provide(made()._parts)


def test_a_trainer_that_rank_0_alone_refuses_has_no_number(two: launched.Party, tmp_path: Path) -> None:
    """It alone looks for the checkpoint: its next Trainer is the first of the other processes."""
    with pytest.raises(ValueError, match="resume"):
        made(resume=tmp_path / "none")
    trainer = made()
    assert two._made[0] is trainer._parts


def served(monkeypatch: pytest.MonkeyPatch, trainers: list[Trainer], *orders: int) -> list[Trainer]:
    """Serve rank 0's runs of the trainers with these numbers; return the trainers whose parts were packed, in order."""
    packed: list[Trainer] = []
    pack = launched.pack

    def noted(parts: Parts) -> PackedTask:
        packed.append(next(each for each in trainers if each._parts is parts))
        return pack(parts)

    def serve(*about: Any) -> int:
        for number in orders:
            about[-1](replace(trainers[0]._job, task=partial(launched.script_task, number, 8, 0)))
        return 0

    party = launched.Party(Placement("slurm", 1, 2, 1, 2))
    for each in trainers:
        party.number(each._parts)
    monkeypatch.setattr(launched, "pack", noted)
    monkeypatch.setattr(launched, "serve_rank0", serve)
    monkeypatch.setattr(launched, "process_of", lambda *_: SimpleNamespace(rank=1, key=lambda: b"k"))
    with pytest.raises(SystemExit) as ended:
        party.serve(trainers[0]._parts)
    return [*packed, *([ended.value.code] if ended.value.code else [])]


def test_what_is_sent_to_the_first_run_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = made(), made()
    assert served(monkeypatch, [first, second], 0) == [first]
    assert served(monkeypatch, [first, second], 1, 0, 0) == [first, second, first]


def test_a_trainer_that_this_process_does_not_have_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert served(monkeypatch, [trainer := made()], 1) == [trainer, launched.FAILED]
    err = capsys.readouterr().err
    assert err.startswith("ddp: rank 1 ends: rank 0 runs Trainer 1 (the first is 0), which this process does not have")
    assert "is the data the same" not in err


def test_two_trainers_made_before_the_first_run_train_one_after_the_other(warm: Warm, tmp_path: Path) -> None:
    """The second one first, and the first one twice: the same bits as with ranks that the script forks."""
    runs = (
        "    state = {}.run().join()\n"
        "    print(sum(float(value.double().sum()) for value in state.params.values()).hex())\n"
    )
    several = HEAD.replace("world_size=2, ", "") + (
        "torch.manual_seed(3)\ndata = torch.randn(400, 4), torch.randint(2, (400,))\n"
        "one = trainer(epochs=1, policy='sync')\ndata = tuple(part[:200] for part in data)\n"
        "other = trainer(epochs=2, policy='sync')\nif True:\n"
        + "".join(runs.format(name) for name in ("other", "one", "one"))
    )
    with tasks(warm, tmp_path, several, nodes=1) as processes:
        first, second = (process.result() for process in processes)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert second[1] == "top level\n"
    assert first[1] == unlaunched(warm, tmp_path, several)
    _, other, one, again = first[1].splitlines()
    assert other != one == again


def test_a_host_that_is_not_found_is_said_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the other processes: rank 0's caller gets the error."""

    def lost(*_: object) -> None:
        raise Unreachable("rank 0's host is not reached within 60 s")

    monkeypatch.setattr(launched, "process_of", lost)
    with pytest.raises(SystemExit) as ended:
        launched.Party(Placement("slurm", 1, 2, 1, 2)).serve(made()._parts)
    assert ended.value.code == launched.FAILED
    assert capsys.readouterr().err == "ddp: rank 1 ends: rank 0's host is not reached within 60 s\n"

"""Ranks that meet in real processes, as torchrun starts them, and what they reduce with."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed import HashStore

import ddp
from ddp.parallel.group import make
from tests.held_up import in_time
from tests.parallel.conftest import Together, run_together
from tests.parallel.test_module import batch, loss, net, replay, same, train
from tests.processes import exit_codes
from tests.slow import slow
from tests.threads import no_thread_left

GROUP_TIMEOUT_S = 20.0


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def run(act: Callable[..., None], folder: Path, world: int, *more: object) -> list[int | None]:
    """Exit codes of ranks that act, with the environment that torchrun gives them."""
    port = free_port()
    return exit_codes(rank_main, [(act, folder, rank, world, port, more) for rank in range(world)])


def rank_main(
    act: Callable[..., None], folder: Path, rank: int, world: int, port: int, more: tuple[object, ...]
) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    act(folder, *more)


def trains(folder: Path, transport: str, borrowed: bool) -> None:
    if borrowed:
        dist.init_process_group("gloo")
    group = ddp.init(transport=transport, timeout_s=GROUP_TIMEOUT_S)
    assert (ddp.get_rank(), ddp.get_world_size()) == (group.rank, group.world_size) == (int(os.environ["RANK"]), 2)
    with pytest.raises(ValueError, match=r"ddp\.init was called before"):
        ddp.init()
    listening = [c.laddr.ip for c in psutil.Process().net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert borrowed or set(listening) <= {"127.0.0.1", "::1"}
    found = train(group, bucket_cap_mb=0.0002)
    torch.save([*found, group.transport], folder / f"{transport}-{group.rank}.pt")
    group.close()
    if borrowed:
        dist.barrier()  # it is not ours to end
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("transport", "borrowed", "name"),
    [("auto", False, "memory"), ("gloo", True, "gloo"), *slow(("gloo", False, "gloo"), ("auto", True, "memory"))],
)
def test_processes_train_as_a_replay_in_one(transport: str, borrowed: bool, name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    truth = replay(2)
    assert run(trains, tmp_path, 2, transport, borrowed) == [0, 0]
    for rank in range(2):
        *found, used = torch.load(tmp_path / f"{transport}-{rank}.pt")
        assert used == name
        assert same(found, truth)
    assert not list(Path("/dev/shm").glob(f"ddp-run-{os.getpid()}-*"))


def dies(folder: Path, transport: str) -> None:
    group = ddp.init(transport=transport, timeout_s=GROUP_TIMEOUT_S)
    wrapped = ddp.DistributedDataParallel(net())
    for step in range(3):
        if group.rank == 1 and step == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        began = time.monotonic()
        if step < 2:
            loss(wrapped, batch(group.rank, step)).backward()
        else:
            with pytest.raises(ddp.RankLost, match="rank 0 cannot go on: rank 1 is gone"):
                loss(wrapped, batch(group.rank, step)).backward()
            assert in_time(began, GROUP_TIMEOUT_S / 2)


@pytest.mark.parametrize("transport", ["memory", "gloo"])
def test_a_rank_that_is_killed_is_an_error_on_the_others(transport: str, tmp_path: Path) -> None:
    assert run(dies, tmp_path, 2, transport) == [0, -signal.SIGKILL]


def never_comes(folder: Path) -> None:
    if int(os.environ["RANK"]) == 0:
        with pytest.raises(ddp.RankLost, match="rank 1 did not come within 1 s"):
            ddp.init(timeout_s=1.0)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf")])
def test_a_timeout_that_no_rank_can_meet_is_refused(timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_s=.* must be a finite number from 0\.001 to 86400"):
        ddp.init(0, 1, timeout_s=timeout_s)


def test_a_rank_that_never_comes_is_named(tmp_path: Path) -> None:
    assert run(never_comes, tmp_path, 2) == [0, 0]


def test_broadcast_keeps_every_bit(together: Together) -> None:
    odd = [
        torch.tensor([-0.0, float("nan"), float("-inf")]),
        torch.tensor([True, False, True]),
        torch.tensor(3.5).bfloat16(),
    ]
    odd.append(torch.arange(7, dtype=torch.int16))

    def act(group: ddp.Group) -> list[torch.Tensor]:
        own = [each.clone() if group.rank == 0 else torch.ones_like(each) for each in odd]
        group.broadcast(own)
        return own

    for found in together(3, act):
        assert [f.view(-1).view(torch.uint8).tolist() for f in found] == [
            o.view(-1).view(torch.uint8).tolist() for o in odd
        ]


def test_products_and_gathered_parts_are_in_the_order_of_ranks(together: Together) -> None:
    values = torch.rand(3, 5, generator=torch.Generator().manual_seed(0))

    def act(group: ddp.Group) -> list[torch.Tensor]:
        product, least = values[group.rank].clone(), values[group.rank].clone()
        group.all_reduce(product, "prod")
        group.all_reduce(least, "min")
        mean = torch.complex(values[group.rank], -values[group.rank])
        group.all_reduce(mean, "mean")
        assert torch.allclose(mean, torch.complex(values.mean(0), -values.mean(0)))
        return [product, least, group.all_gather(values[group.rank] > 0.5), group.all_gather(torch.zeros(0, 2))]

    for product, least, larger, nothing in together(3, act):
        assert torch.equal(product, values[0] * values[1] * values[2])
        assert torch.equal(least, values.min(0).values)
        assert torch.equal(larger, values > 0.5)
        assert nothing.shape == (3, 0, 2)


def reduces(folder: Path, transport: str) -> None:
    group = ddp.init(transport=transport, timeout_s=GROUP_TIMEOUT_S)
    loss = torch.tensor(1.0 + group.rank, requires_grad=True)
    group.all_reduce(loss, "mean")
    assert loss.item() == 1.5
    for tensor, op, said in (
        (torch.ones(2), "median", "op must be one of sum, max, mean, min, prod, not 'median'"),
        (torch.ones(2, 3).t(), "sum", r"reduce tensor\.contiguous"),
        (torch.ones(2, dtype=torch.int64), "mean", r"reduce tensor\.double"),
    ):
        with pytest.raises(ValueError, match=said):
            group.all_reduce(tensor, op)
    for op, result in (("avg", 3.0), ("min", 2.0), ("prod", 8.0), ("sum", 6.0), ("max", 4.0)):
        for dtype in (torch.float32, torch.float16, torch.int64):
            own = torch.full((3,), 2.0 + 2 * group.rank, dtype=dtype)
            if op != "avg" or dtype.is_floating_point:
                group.all_reduce(own, op)
                assert own.tolist() == [result] * 3
    odd = torch.tensor([-0.0, float("nan"), 1.0 + group.rank])
    every = group.all_gather(odd)
    assert every.shape == (2, 3)
    assert every[:, 2].tolist() == [1.0, 2.0]
    assert torch.signbit(every[:, 0]).all()
    group.broadcast(odd, src=1)
    assert odd[2] == 2.0
    with pytest.raises(ValueError, match=r"src=2 must be a rank from 0 to 1"):
        group.broadcast([odd], src=2)
    assert ddp.get_local_rank() == int(os.environ["LOCAL_RANK"])
    del os.environ["LOCAL_RANK"]
    assert ddp.get_local_rank() == group.rank
    group.barrier()


@pytest.mark.parametrize("transport", ["memory", "gloo"])
def test_any_tensor_is_reduced_or_refused_with_what_to_do(transport: str, tmp_path: Path) -> None:
    assert run(reduces, tmp_path, 2, transport) == [0, 0]


def test_one_process_alone_is_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="nothing says which rank this is: start the script with torchrun"):
        ddp.DistributedDataParallel(net())
    with pytest.raises(ValueError, match="give both rank and world_size"):
        ddp.init(0)
    with pytest.raises(ValueError, match="MASTER_PORT is not set"):
        ddp.init(0, 2)
    for rank, world_size in ((2, 2), (5, 2), (0, 0)):
        with pytest.raises(ValueError, match=rf"rank must be in 0\.\.{world_size - 1}"):
            ddp.init(rank, world_size)  # at once, and not when nobody has come
    for wrong in ("0", "99999", "\u00b2"):
        monkeypatch.setenv("MASTER_PORT", wrong)
        with pytest.raises(ValueError, match=f"MASTER_PORT is {wrong}: start ranks with torchrun"):
            ddp.init(0, 2)
    monkeypatch.setenv("LOCAL_RANK", "")
    with pytest.raises(ValueError, match="transport must be one of"):
        ddp.init(0, 1, transport="pigeon")
    replicas = ddp.wrap([net()], ["cpu"])  # takes a process that nothing says a rank of for one alone
    assert replicas.world_size == ddp.get_world_size() == 1
    ddp.parallel.group.current().close()


def test_memory_alone_is_refused_where_ranks_share_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddp.comm.store_exchange._common_folder", lambda board, rank, held: (False, Path()))
    for result in run_together(2, lambda group: None):
        with pytest.raises(ValueError, match="transport=memory needs all ranks on one host"):
            raise result


def test_closing_ends_the_thread(together: Together) -> None:
    with no_thread_left("collectives"):
        together(2, lambda group: train(group, bucket_cap_mb=0.0002))


def meets_again(folder: Path) -> None:
    kept = []  # a wrapper, and with it its group, may live on
    for _ in range(4):
        group = ddp.init(timeout_s=GROUP_TIMEOUT_S)
        kept.append(ddp.DistributedDataParallel(net()))
        loss(kept[-1], batch(group.rank, 0)).backward()
        if group.rank == 0:
            time.sleep(0.1)  # the other one is back while the store that it knows still listens
        group.close()
        with pytest.raises(ddp.RankLost, match="this group is closed"):
            group.exchange("")


def test_ranks_started_by_hand_meet_again_at_their_port(tmp_path: Path) -> None:
    assert run(meets_again, tmp_path, 2) == [0, 0]


def test_a_second_group_at_a_store_reads_nothing_of_the_first() -> None:
    store, found = HashStore(), dict[int, list[list[str]]]()

    def act(rank: int) -> None:
        found[rank] = []
        for turn in range(2):
            group = make(rank, 2, torch.device("cpu"), store, "memory", GROUP_TIMEOUT_S)
            found[rank].append(group.exchange(f"{turn} of {rank}"))
            group.barrier()
            group.close()

    threads = [threading.Thread(target=act, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {rank: [[f"{turn} of 0", f"{turn} of 1"] for turn in range(2)] for rank in range(2)}

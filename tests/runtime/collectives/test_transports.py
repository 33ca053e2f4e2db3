"""Transports in real processes against a sum in one process: values, bits, and ranks that go."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from functools import reduce
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ddp.comm.transports import TRANSPORTS
from ddp.comm.transports.base import MAX, MEAN, SUM, ExchangeBroken, Transport, TransportConfig
from ddp.comm.transports.choice import choose
from ddp.comm.transports.memory import PIECE, SMALL_BYTES, STAGE_BYTES
from tests.processes import exit_codes
from tests.slow import slow
from tests.spread import WHOLE

CPU = [name for name in TRANSPORTS if name != "nccl"]
SMALL, STAGE = SMALL_BYTES // 4, STAGE_BYTES // 4
SIZES = (1, 15, 17, SMALL, SMALL + 1, 2 * PIECE + 7, STAGE + 33)
TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int64)
RARE = (torch.int16, torch.uint16, torch.uint32, torch.uint64)
CASES = [
    *((size, torch.float32, SUM, own) for size in SIZES for own in (True, False)),
    *((33, dtype, op, False) for dtype in TYPES for op in (SUM, MAX)),
    *((33, dtype, MAX, False) for dtype in RARE),
    *((SMALL + 5, dtype, SUM, True) for dtype in TYPES),
    *((size, dtype, MEAN, True) for dtype in TYPES[:3] for size in (33, SMALL + 5)),
]


SPACED = [(2, 0.01), (3, 0.01), *slow((1, 0.0), (4, 0.0), *([(2, 0.0), (3, 0.0)] if WHOLE else []))]
"""Numbers of ranks, and seconds by which they come apart."""


def value(case: int, rank: int, size: int, dtype: torch.dtype) -> Tensor:
    draw = torch.Generator().manual_seed(1000 * case + rank)
    drawn = torch.randn(size, generator=draw) * 100
    return drawn.to(torch.int64).to(dtype) if dtype in RARE else drawn.to(dtype)


def stand(folder: Path, name: str, rank: int, world_size: int, timeout_s: float = 10.0) -> Transport:
    torch.set_num_threads(1)
    transport = choose(name, TransportConfig(folder, rank, world_size, torch.device("cpu"), timeout_s))
    transport.join(range(world_size), 0)
    return transport


def reduce_all(folder: Path, name: str, rank: int, world_size: int, delay_s: float) -> None:
    """Every case, one after the other; ranks dawdle by chance before and after."""
    transport, dawdle, results = stand(folder, name, rank, world_size), random.Random(rank), []
    for number, (size, dtype, op, own) in enumerate(CASES):
        tensor = transport.empty(f"case{number}", size, dtype) if own else torch.empty(size, dtype=dtype)
        tensor.copy_(value(number, rank, size, dtype))
        time.sleep(delay_s * dawdle.random())
        transport.all_reduce(tensor, op)
        results.append(tensor.clone())
        time.sleep(delay_s * dawdle.random())
        tensor.zero_()
    torch.save(results, folder / f"results-{rank}.pt")
    transport.close()


def in_order(parts: list[Tensor], op: str) -> Tensor:
    """What one process makes of them."""
    if op == MAX:
        return reduce(torch.maximum, parts)
    wide = [part.float() if part.dtype is torch.bfloat16 else part for part in parts]
    if op == MEAN and len(parts) not in (1, 2, 4) and parts[0].dtype is torch.float32:
        wide = [part.double() for part in parts]
    total = wide[0].clone()
    for part in wide[1:]:
        total += part
    return (total / len(parts) if op == MEAN else total).to(parts[0].dtype)


def run(act: Callable[..., None], folder: Path, name: str, world_size: int, *more: object) -> list[int | None]:
    """Exit codes of ranks that act."""
    return exit_codes(act, [(folder, name, rank, world_size, *more) for rank in range(world_size)])


@pytest.mark.parametrize(("world_size", "delay_s"), SPACED)
@pytest.mark.parametrize("name", CPU)
def test_a_reduction_is_the_sum_in_one_process(name: str, world_size: int, delay_s: float, tmp_path: Path) -> None:
    assert run(reduce_all, tmp_path, name, world_size, delay_s) == [0] * world_size
    results = [torch.load(tmp_path / f"results-{rank}.pt") for rank in range(world_size)]
    for number, (size, dtype, op, _) in enumerate(CASES):
        truth = in_order([value(number, rank, size, dtype) for rank in range(world_size)], op)
        own = [each[number] for each in results]
        assert all(torch.equal(result, own[0]) for result in own), CASES[number]
        if name == "memory" or world_size <= 2:
            assert torch.equal(own[0], truth), CASES[number]
        else:
            torch.testing.assert_close(own[0], truth, rtol=1e-5, atol=4.0 if dtype is torch.bfloat16 else 1e-4)


def go(folder: Path, name: str, rank: int, world_size: int, how: str, size: int) -> None:
    """Rank 1 goes in the third reduction; the others are to notice, long before the time limit, and meet without it."""
    transport = stand(folder, name, rank, world_size, timeout_s=300.0)  # beyond what the test waits for processes
    tensor = transport.empty("tensor", size, torch.float32)
    for turn in range(3):
        tensor.fill_(rank + 1.0)
        if turn == 2 and rank == 1:
            if how == "exit":
                os._exit(0)
            if how == "leave":
                transport.leave()
                return
        if turn < 2:
            transport.all_reduce(tensor)
    with pytest.raises(ExchangeBroken):
        transport.all_reduce(tensor)
    transport.leave()
    with pytest.raises(ExchangeBroken):
        transport.all_reduce(tensor)
    transport.join([each for each in range(world_size) if each != 1], 1)
    tensor.fill_(rank + 1.0)
    transport.all_reduce(tensor)
    assert tensor.unique().tolist() == [sum(each + 1.0 for each in range(world_size) if each != 1)]
    transport.close()


@pytest.mark.parametrize("size", [7, SMALL + 7])
@pytest.mark.parametrize("how", ["exit", *slow("leave")])
@pytest.mark.parametrize("name", CPU)
def test_who_goes_is_noticed_and_the_others_meet_again(name: str, how: str, size: int, tmp_path: Path) -> None:
    assert run(go, tmp_path, name, 3, how, size) == [0, 0, 0]


def test_who_never_comes_is_noticed(tmp_path: Path) -> None:
    """A rank that ended after it had its transport, and before its first collective."""
    assert run(never_comes, tmp_path, "memory", 2) == [0, 0]


def never_comes(folder: Path, name: str, rank: int, world_size: int) -> None:
    transport = stand(folder, name, rank, world_size)
    (folder / f"there-{rank}").touch()
    while not all((folder / f"there-{each}").exists() for each in range(world_size)):
        time.sleep(0.01)
    if rank == 0:
        with pytest.raises(ExchangeBroken, match="rank 1 is gone"):
            transport.all_reduce(torch.ones(3))


def test_a_transport_that_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cluster.transport=nccl does not work here \(cpu\); use auto"):
        choose("nccl", TransportConfig(tmp_path, 0, 2, torch.device("cpu"), 1.0))


OWNED = [
    (size, dtype, own)
    for size in (33, SMALL + 1, 2 * PIECE + 7, STAGE + 33)
    for dtype in TYPES[:3]
    for own in (True, False)
]


def runs_of(size: int, world_size: int) -> list[tuple[int, int, int]]:
    """Unequal stretches, the last one empty; with more than one rank, rank 0 owns two."""
    cuts = [size * k * k // world_size**2 for k in range(world_size)] + [size - 3]
    runs = [(k, a, b) for k, (a, b) in enumerate(pairwise(cuts)) if a < b]
    return [*runs, (0, size - 3, size)]


def reduce_and_fetch(folder: Path, name: str, rank: int, world_size: int, delay_s: float) -> None:
    """Reduce what is owned, then fetch it from its owners into other memory; ranks dawdle by chance."""
    transport, dawdle, results = stand(folder, name, rank, world_size), random.Random(rank), []
    for number, (size, dtype, own) in enumerate(OWNED):
        runs = runs_of(size, world_size)
        tensor = transport.empty(f"owned{number}", size, dtype) if own else torch.empty(size, dtype=dtype)
        source, out = transport.empty(f"source{number}", size, dtype), torch.zeros(size, dtype=dtype)
        tensor.copy_(value(number, rank, size, dtype))
        time.sleep(delay_s * dawdle.random())
        transport.reduce_scatter(tensor, runs)
        for owner, start, stop in runs:
            if owner == rank:
                source[start:stop] = tensor[start:stop]
        tensor.zero_()
        time.sleep(delay_s * dawdle.random())
        transport.fence()
        waits = [transport.all_gather(out[a:b], source, [(k, a, b)]) for k, a, b in runs[:1]]
        waits.append(transport.all_gather(out[runs[1][1] :], source, runs[1:]) if len(runs) > 1 else lambda: None)
        for wait in waits:
            wait()
        results.append(out)
        transport.all_reduce(torch.zeros(1))
        source.fill_(-1)
    torch.save(results, folder / f"results-{rank}.pt")
    transport.close()


@pytest.mark.parametrize(("world_size", "delay_s"), SPACED)
@pytest.mark.parametrize("name", CPU)
def test_owners_sum_and_others_fetch(name: str, world_size: int, delay_s: float, tmp_path: Path) -> None:
    assert run(reduce_and_fetch, tmp_path, name, world_size, delay_s) == [0] * world_size
    results = [torch.load(tmp_path / f"results-{rank}.pt") for rank in range(world_size)]
    for number, (size, dtype, _) in enumerate(OWNED):
        truth = in_order([value(number, rank, size, dtype) for rank in range(world_size)], SUM)
        own = [each[number] for each in results]
        assert all(torch.equal(result, own[0]) for result in own), OWNED[number]
        if name == "memory" or world_size <= 2:
            assert torch.equal(own[0], truth), OWNED[number]
        else:
            # gloo sums bfloat16 in bfloat16: three roundings of numbers below 1024, whose last place is 4
            torch.testing.assert_close(own[0], truth, rtol=1e-5, atol=12.0 if dtype is torch.bfloat16 else 1e-4)


def go_from_owners(folder: Path, name: str, rank: int, world_size: int, size: int) -> None:
    """Rank 1 ends in the second reduction to owners; the others are to notice."""
    transport = stand(folder, name, rank, world_size)
    tensor = transport.empty("tensor", size, torch.float32).fill_(1.0)
    runs = [(k, size * k // world_size, size * (k + 1) // world_size) for k in range(world_size)]
    transport.reduce_scatter(tensor, runs)
    transport.fence()
    if rank == 1:
        os._exit(0)
    with pytest.raises(ExchangeBroken):
        reduce_then_fetch(transport, tensor, runs)
    transport.leave()


def reduce_then_fetch(transport: Transport, tensor: Tensor, runs: list[tuple[int, int, int]]) -> None:
    transport.reduce_scatter(tensor, runs)
    transport.all_gather(torch.empty_like(tensor), tensor, runs)()
    transport.fence()


@pytest.mark.parametrize("size", [33, *slow(SMALL + 7)])
@pytest.mark.parametrize("name", CPU)
def test_who_goes_from_owners_is_noticed(name: str, size: int, tmp_path: Path) -> None:
    assert run(go_from_owners, tmp_path, name, 3, size) == [0, 0, 0]

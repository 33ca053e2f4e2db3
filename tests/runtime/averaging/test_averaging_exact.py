"""How exact averages are: what is equal keeps its bits, and what is not is off by its rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch

from ddp.backends import allreduce
from ddp.backends.base import load
from ddp.backends.snapshot import Reducer
from ddp.comm.transports.base import ExchangeBroken
from ddp.core.messages.commands import Average, Join, Reduce
from ddp.core.messages.events import Reduced
from ddp.core.samples.spans import Batch
from ddp.core.settings.averaging import WIRES, Averaging
from ddp.core.worker import Step
from ddp.engine.loop import TrainingLoop
from ddp.replica.memory.buffers import signed
from ddp.replica.memory.weighted_mean import average
from ddp.replica.task import Job, Task
from tests.runtime import toy
from tests.runtime.averaging.scripted_ranks import (
    OWN,
    PLAIN_OUTER,
    Actor,
    in_processes,
    job,
    move,
    moved,
    play_rounds,
    start,
    wander,
)
from tests.runtime.averaging.test_averaging import quadratic
from tests.slow import few, slow


@pytest.mark.parametrize("backend", OWN)
def test_outer_sgd_of_rate_1_is_plain_averaging(tmp_path: Path, backend: str) -> None:
    """Bit for bit, after several rounds."""
    ends = []
    for name, averaging in (("plain", Averaging()), ("outer", PLAIN_OUTER)):
        (tmp_path / name).mkdir()
        seen = play_rounds(job(tmp_path / name, backend, averaging), partial(wander, (31, 7)), 3)
        ends.append(seen[0][-1]["own"])
    assert torch.equal(ends[0].view(torch.int32), ends[1].view(torch.int32))


@pytest.mark.parametrize(("wire", "ulp"), [("float32", 2.0**-24), ("bfloat16", 2.0**-8)])
def test_a_narrow_wire_is_off_by_its_rounding_of_the_differences(tmp_path: Path, wire: str, ulp: float) -> None:
    """And all ranks hold the same bits."""
    seen = play_rounds(job(tmp_path, "nccl", Averaging(wire=wire)), partial(wander, (25, 9)), 6)
    center = start(tmp_path)
    for index in range(6):
        own = [saw[index]["own"] for saw in seen]
        assert torch.equal(own[0].view(torch.int32), own[1].view(torch.int32))
        exact = (25 * moved(center, 0, index) + 9 * moved(center, 1, index)) / 34
        most = max(float(move(rank, index, center.size).abs().max()) for rank in range(2))
        error = np.abs(own[0].double().numpy() - exact).max()
        assert error <= 3 * ulp * most + 3e-7
        assert wire == "float32" or error > 0
        center = own[0].double().numpy()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("backend", OWN)
def test_averaging_right_after_an_average_changes_nothing(tmp_path: Path, backend: str, gamma: float) -> None:
    """Law 3 for every weighting: replicas that are one, as after a synchronous step, stay so bit for bit."""
    task = partial(toy.task, norm=True)
    seen = play_rounds(job(tmp_path, backend, Averaging(gamma=gamma), task=task), partial(once, (5, 3)), 3)
    for rank in range(2):
        for index in range(1, 3):
            assert torch.equal(seen[rank][index]["own"].view(torch.int32), seen[0][0]["own"].view(torch.int32))
            assert seen[rank][index]["divergence"] == 0.0


def once(samples: tuple[int, ...], rank: int, loop: TrainingLoop, index: int) -> int:
    return wander(samples, rank, loop, index) if index == 0 else samples[rank]


@pytest.mark.parametrize("fallen", [False, True])
def test_no_running_variance_becomes_negative_by_an_average(tmp_path: Path, fallen: bool) -> None:
    """Floating-point buffers become the average then; parameters and counters keep what was trained meanwhile."""
    course = job(tmp_path, "cpu", Averaging(), task=partial(toy.task, norm=True))
    done: list[Any] = []
    first, second = (Actor(course, rank, once) for rank in range(2))
    norms: list[Any] = [actor.loop.replica.model.get_submodule("1") for actor in (first, second)]
    norms[0].running_var.fill_(0.25)
    for actor in (first, second):
        actor.backend.snapshot(Average(actor.rank, 0, (0, 1), False, ""))
    with Reducer(course, done.append) as reducer:
        reducer._reduce(Reduce(0, (0, 1), (1, 1), ""))
    assert isinstance(done[-1], Reduced), done
    norms[1].weight.data.add_(1.0)
    norms[1].running_mean.sub_(0.5)  # a mean may be negative
    norms[1].num_batches_tracked.add_(2)
    norms[1].running_var[3] = 0.125 if fallen else 0.5
    second.backend.apply(0, exact=False)
    assert norms[1].weight.tolist() == [2.0] * 12
    assert int(norms[1].num_batches_tracked) == 2
    assert norms[1].running_mean.tolist() == [0.0 if fallen else -0.5] * 12
    assert norms[1].running_var.tolist() == [0.625] * 3 + [0.625 if fallen else 0.125] + [0.625] * 8


def exchanged(job: Job, rank: int) -> None:
    """A synchronous step with its exchange of gradients, then an average."""
    loop = TrainingLoop(job, rank, lambda event: None)
    backend = load(job.backend)(job, rank, loop)
    backend.join(Join(rank, 0, (0, 1), False, ""))
    loop.replica.gradient_sync = backend.gradient_sync(loop.replica)
    batch = (Batch(0, 0, 8, 13), Batch(0, 8, 13, 13))[rank]
    for _ in range(3):
        loop.train(Step(batch, 0.0, last=False))
    before = loop.replica.state.digest()
    change = backend.average(Average(rank, 0, (0, 1), True, ""), loop.samples)
    after = loop.replica.state.digest()
    (job.scratch / f"digests-{rank}.txt").write_text(f"{before} {after} {change.divergence}")
    backend.close()


def test_averaging_right_after_a_synchronous_step_changes_nothing(tmp_path: Path) -> None:
    """Bit for bit, statistics and counters too."""
    in_processes(exchanged, job(tmp_path, "nccl", Averaging(), task=partial(toy.task, norm=True)))
    said = {(tmp_path / f"digests-{rank}.txt").read_text() for rank in range(2)}
    before, after, divergence = said.pop().split()
    assert not said, "both ranks hold the same"
    assert (before, divergence) == (after, "0.0")


def missed(job: Job, rank: int) -> None:
    """Two rounds; the second one breaks on rank 1 behind its last collective, so it takes what rank 0 shares."""
    actor = Actor(job, rank, partial(wander, (3, 1)))
    backend = actor.backend
    assert isinstance(backend, allreduce.Backend)
    backend.join(Join(rank, 0, (0, 1), False, ""))
    backend.average(Average(rank, 0, (0, 1), True, ""), actor.train(0))
    last = Average(rank, 1, (0, 1), True, "")
    with patch.object(backend, "_take", Mock(side_effect=ExchangeBroken)) if rank else nullcontext():
        try:
            backend.average(last, actor.train(1))
        except ExchangeBroken:
            assert rank == 1
    if rank == 0:
        backend.send_state(1)
    backend.collectives.all_reduce([torch.zeros(1)])  # it lies there
    if rank == 1:
        backend.load_state(1)
    torch.save([actor.see(None)["mean"], *backend.average_state()], job.scratch / f"missed-{rank}.pt")
    backend.close()


@pytest.mark.parametrize(
    ("task", "wire", "more"),
    few([partial(toy.task, norm=True), quadratic], WIRES, [{}, {"elastic": 0.5}, {"outer": "nesterov"}]),
)
def test_a_rank_that_missed_a_round_takes_the_average_of_the_others(
    tmp_path: Path, task: Callable[[], Task], wire: str, more: dict[str, Any]
) -> None:
    """Bit for bit. Where the wire was of the parameters' own type it was no longer what had come over it."""
    in_processes(missed, job(tmp_path, "nccl", Averaging(wire=wire, **more), task=task))
    first, second = (torch.load(tmp_path / f"missed-{rank}.pt") for rank in range(2))
    assert len(first) == len(second) == 1 + ("outer" in more)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_what_is_equal_keeps_its_bits(dtype: torch.dtype) -> None:
    """Law 3 in the reducer: zeros of both signs, infinities, subnormal numbers, whatever the weights; and no excess."""
    values = torch.randn(300_001, generator=torch.Generator().manual_seed(0)).to(dtype)
    special = [-0.0, 0.0, float("inf"), -float("inf"), torch.finfo(dtype).smallest_normal / 4]
    for place, value in enumerate(special):
        values[place::11] = value
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    for weights in [(1, 1), (31, 7, 3), (0, 5, 0.3), (1000, 1), (1, 1000), (3, 0), (0, 0), tuple(range(1, 9))]:
        mean, replicas = torch.empty_like(values), [values.clone() for _ in weights]
        average(mean, replicas, weights, blend=1.0)
        assert torch.equal(mean.view(bits), values.view(bits))
        for excess in replicas:
            assert torch.equal((values - excess).view(bits), values.view(bits))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int64])
def test_integers_take_the_maximum_and_get_there_by_their_excess(dtype: torch.dtype) -> None:
    first, second = torch.tensor([1, 7, 255]).to(dtype), torch.tensor([5, 7, 0]).to(dtype)
    highest, replicas = torch.empty_like(first), [first.clone(), second.clone()]
    average(highest, replicas, (1, 1), blend=1.0)
    assert highest.tolist() == [5, 7, 255]
    for replica, excess in zip((first, second), replicas, strict=True):
        signed(replica).sub_(signed(excess))
        assert torch.equal(replica, highest)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 8, 11])
def test_the_mean_is_good_to_a_few_units_in_the_last_place(count: int) -> None:
    replicas = [torch.randn(100_003, generator=torch.Generator().manual_seed(k)) for k in range(count)]
    weights, mean = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)[:count], torch.empty(100_003)
    own = [replica.clone() for replica in replicas]
    norm, changes = average(mean, own, weights, blend=0.5)
    exact = sum(w * replica.double() for w, replica in zip(weights, replicas, strict=True)) / sum(weights)
    largest = torch.stack(replicas).abs().amax(dim=0).double()
    assert float(((mean - exact).abs() / (largest * 2.0**-23)).max()) < 2.0
    for replica, excess, change in zip(replicas, own, changes, strict=True):
        torch.testing.assert_close(excess, 0.5 * (replica - mean), rtol=0, atol=1e-7)
        assert change == pytest.approx(float((replica - mean).double().norm()) ** 2, rel=1e-5)
    assert norm == pytest.approx(float(mean.double().norm()) ** 2, rel=1e-5)


@pytest.mark.parametrize("why", ["no place", *slow("no room")])
def test_loops_are_compiled_where_nothing_can_be_kept(why: str, tmp_path: Path) -> None:
    """An installation that cannot be written, and a user without a home, or a full disk: compiled anew by each process."""
    where = {"NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}  # which has none, if nobody names a folder
    asked = (
        "from ddp.replica.memory import numba_kernels; import numpy as np; "
        "print(numba_kernels.excess(np.full(3, 2.0), np.ones(3), 1.0))"
    )
    if why == "no room":
        where["NUMBA_CACHE_DIR"] = str(tmp_path)
        asked = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000)); {asked}"
    done = subprocess.run([sys.executable, "-c", asked], env=os.environ | where, capture_output=True, text=True)
    assert done.stdout == "3.0\n", done.stderr

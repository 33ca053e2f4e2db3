"""Every synchronous engine, ours and PyTorch's, against one oracle: ranks, optimizers, models, bit for bit where it can be.

A spread-out part of the cross product by default; all of it with `make conformance`, or all of some engines with their names
in CONFORMANCE, as in `CONFORMANCE=zero1,zero2 pytest tests/conformance`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from bench import models
from bench.prove.entrants import distance as apart
from bench.prove.entrants import fingerprint
from bench.prove.oracle import OracleCourse, Rule, replay
from bench.prove.ranks import CourseResult
from tests.conformance import entrants
from tests.conformance.entrants import ENTRANTS, OPTIMIZERS, WHOLE, cells, course
from tests.slow import slow

SIZES = (1, 2, 3, 4)
CLOSE, CLOSE_DOUBLE = 1e-6, 1e-10
"""Most that a value may be off in the end where the order of a sum is not known, in single and in double precision."""
LONG, NEAR = 200 if WHOLE else 100, 1e-3
"""Steps of a long run; most that its loss may be off at any of them."""

LONGEST = ("zero1", "nccl_sync/gloo", "torch_ddp", "torch_zero1", "torch_fsdp")
"""Engines with a long run."""

EVERYWHERE = ("lenet", "mlp", "resnet_graph")
"""Models that every engine is tried with, small and with batch norm."""
OTHERS = [name for name in models.MODELS if name not in EVERYWHERE]


def chosen(name: str, world_size: int) -> list[tuple[str, str]]:
    """Return one cell of nine, others for other engines and sizes; with two ranks one more, of the other models, so that
    all engines together try each of these. Every second engine has three ranks, the others four: two cores are slow at
    that."""
    if WHOLE:
        return cells() if name in WHOLE else []
    if world_size == 3 + list(ENTRANTS).index(name) % 2:
        return []
    turn, everywhere = list(ENTRANTS).index(name) + world_size, cells(EVERYWHERE)
    picked = [everywhere[3 * model + (model + turn) % 3] for model in range(3)]
    if world_size != 2:
        return [picked[turn % 3]]
    return [picked[turn % 3], (OTHERS[turn % len(OTHERS)], list(OPTIMIZERS)[turn % 3])]


FIELD = {size: [(name, cell) for name in ENTRANTS for cell in chosen(name, size)] for size in SIZES}
"""Number of ranks -> the cells of all engines."""


def taken(name: str, world_size: int, cell: tuple[str, str], data: Path) -> OracleCourse:
    return course(*cell, world_size, data, exact=world_size <= ENTRANTS[name].exact)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return entrants.save_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def field(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int, tuple[str, str]], CourseResult]:
    """What each engine made of each of its cells. Those of a number of ranks are trained one after the other, by processes
    that are started once."""
    folders: dict[int, Path] = {}

    def of(name: str, size: int, cell: tuple[str, str]) -> CourseResult:
        if size not in folders:
            folders[size] = tmp_path_factory.mktemp(f"field-{size}")
            entrants.train([(ENTRANTS[n], taken(n, size, c, data)) for n, c in FIELD[size]], folders[size])
        return entrants.trained(FIELD[size].index((name, cell)), size, folders[size])

    return of


@cache
def truth(course: OracleCourse, rule: Rule) -> CourseResult:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    losses, digests, state = [], [], {}
    for loss, _, state in replay(course, rule):
        losses.append(loss)
        digests.append(fingerprint(state))
    torch.set_num_threads(threads)
    return CourseResult(losses, [digests], {name: value.clone() for name, value in state.items()})


def distance(one: CourseResult, other: CourseResult) -> float:
    """The largest difference of two values of the final states."""
    return apart(one.state, other.state)


COURSES = [(name, size) for name in ENTRANTS for size in SIZES if chosen(name, size)]


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "world_size"), [each if each[1] > 1 else slow(each)[0] for each in COURSES])
def test_an_engine_is_the_replay_of_its_ranks(
    name: str, world_size: int, data: Path, field: Callable[..., CourseResult], record_property: Callable[..., None]
) -> None:
    entrant = ENTRANTS[name]
    for cell in chosen(name, world_size):
        found = field(name, world_size, cell)
        exact = truth(taken(name, world_size, cell, data), entrant.rule)
        assert all(digests == found.digests[0] for digests in found.digests), f"{cell}: ranks differ"
        off = distance(found, exact)
        record_property("/".join(cell), off)
        if world_size <= entrant.exact:
            assert found.digests[0] == exact.digests[0], f"{cell}: off by {off}"
        else:
            assert off <= CLOSE_DOUBLE, f"{cell}: off by {off}"


@pytest.mark.timeout(600)
def test_no_rank_has_a_lone_sample_of_a_batch_norm(tmp_path: Path) -> None:
    """14 samples, batches of 4 on three ranks: the last two go to the first rank, and the model is that of this cut."""
    small = OracleCourse(entrants.normed_task, 3, batch=4, steps=2, tail=10, least=2)
    assert [batch.samples for batch in small.batches(1)] == [2, 0, 0]
    entrants.train([(entrant, small) for entrant in ENTRANTS.values()], tmp_path)
    for number, (name, entrant) in enumerate(ENTRANTS.items()):
        found, exact = entrants.trained(number, 3, tmp_path), truth(small, entrant.rule)
        assert all(digests == found.digests[0] for digests in found.digests), f"{name}: ranks differ"
        off = distance(found, exact)
        assert off <= (0.0 if entrant.exact >= 3 else CLOSE_DOUBLE), f"{name}: off by {off}"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_losses_stay_together_in_a_long_run(data: Path, tmp_path: Path, record_property: Callable[..., None]) -> None:
    """Three ranks: sums of gloo are in another order than the oracle's there. Of engines with the oracle's bits after every
    step, one stands for all, and one of FSDP's two."""
    long = replace(course("mlp", "AdamW", 3, data), steps=LONG, batch=2, tail=1)  # within one epoch
    tried = {name: ENTRANTS[name] for name in WHOLE or LONGEST}
    entrants.train([(entrant, long) for entrant in tried.values()], tmp_path, every_step=False)
    for number, (name, entrant) in enumerate(tried.items()):
        found, exact = entrants.trained(number, 3, tmp_path), truth(long, entrant.rule)
        assert len(found.losses) == LONG
        assert sum(exact.losses[-20:]) < 0.8 * sum(exact.losses[:20]), "it learns"
        off = max(abs(a - b) for a, b in zip(found.losses, exact.losses, strict=True))
        record_property(name, off)
        assert off <= NEAR, f"{name}: {off}"

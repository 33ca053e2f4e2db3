"""Sharding in real processes: bits, wrong use, memory, state dicts."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from ddp.runtime.engines import ENGINES
from tests.runtime import toy
from tests.runtime.conftest import Play, Played

KINDS = [name for name in ENGINES if name.startswith("zero")]


def module(name: str):
    from importlib import import_module

    return import_module(ENGINES[name])


def play_zero(play: Play, kind: str, task=toy.task, **fields) -> Played:
    return play("sync", "nccl", task, engine=module(kind), **fields)


OPTIMIZERS = {
    "SGD": {},
    "momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {"weight_decay": 0.1},
}


def task(name: str, norm: bool = True):
    from dataclasses import replace

    kind = {"momentum": "SGD"}.get(name, name)
    made = toy.task(norm=norm, samples=202 if norm else 195, schedule=toy.rising_schedule)
    return replace(made, optimizer=partial(getattr(torch.optim, kind), lr=0.05, **OPTIMIZERS[name]))


@pytest.mark.parametrize(("optimizer", "norm"), [*((name, True) for name in OPTIMIZERS), ("AdamW", False)])
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_all_kinds_have_the_bits_of_averaged_gradients(play: Play, world_size: int, optimizer: str, norm: bool) -> None:
    """The last batch of an epoch is smaller; without norm, one of four ranks has nothing of it."""
    fields = {"world_size": world_size, "transport": "memory", "epochs": 2}
    whole = play("sync", "nccl", partial(task, optimizer, norm), **fields)
    for kind in KINDS:
        played = play_zero(play, kind, partial(task, optimizer, norm), **fields)
        assert played.digests == whole.digests, kind
        assert played.accuracy() == whole.accuracy()

"""Tasks and comparisons for the tests of sharding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from tests.runtime import toy
from tests.runtime.conftest import Play, Played


def play_zero(play: Play, kind: str, task=toy.task, **fields) -> Played:
    return play("sync", kind, task, **fields)


OPTIMIZERS = {
    "SGD": {},
    "momentum": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "AdamW": {"weight_decay": 0.1},
}


def task(name: str, norm: bool = True):
    kind = {"momentum": "SGD"}.get(name, name)
    made = toy.task(norm=norm, samples=202 if norm else 195, schedule=toy.rising_schedule)
    return replace(made, optimizer=partial(getattr(torch.optim, kind), lr=0.05, **OPTIMIZERS[name]))

"""The learning rate of a schedule that rises, step by step, in real processes that do not wait for each other."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.core.policies import POLICIES
from ddp.replica.task import Task
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.slow import every
from tests.spread import spread


class Noting(torch.optim.SGD):
    """Writes down the rate of every step, in a file of its own."""

    def __init__(self, parameters: Any, folder: Path) -> None:
        super().__init__(parameters, lr=1.0)
        self.path = folder / f"rates-{os.getpid()}.txt"

    def step(self, closure: Any = None) -> Any:
        with self.path.open("a") as file:
            file.write(f"{self.param_groups[0]['lr']}\n")
        return super().step(closure)


def rising(folder: Path) -> Task:
    """157 samples."""
    return replace(toy.task(samples=157, schedule=toy.rising_schedule), optimizer=partial(Noting, folder=folder))


@pytest.mark.parametrize(("policy", "speeds"), every(2, spread(POLICIES, [(1.0, 0.3), (1.0, 0.9, 0.15)])))
def test_the_rate_never_steps_back(play: Play, tmp_path: Path, policy: str, speeds: tuple[float, ...]) -> None:
    play(policy, "cpu", partial(rising, tmp_path), epochs=4, world_size=len(speeds), speeds=speeds)
    courses = [[float(line) for line in path.read_text().split()] for path in tmp_path.iterdir()]
    assert len(courses) == len(speeds)
    assert sum(map(len, courses)) == 4 * 20, "batches of 8"
    for course in courses:
        assert course == sorted(course)
        assert course[-1] > 0.6, "it goes on to the end"

"""The audit of steps with an average of parameters inside, as in post-local SGD: what else is there afterwards is known."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from bench.audit.kept_files import OPTIMIZER, read
from ddp.backends.torch_local_sgd import LocalStep
from ddp.core.messages.events import Finished
from ddp.replica.task import Task
from tests.bench.audit.audited import audited, different
from tests.runtime import toy
from tests.runtime.conftest import Play
from tests.runtime.conftest import play as play

CLEAN: Callable[[], Task] = partial(toy.task, lr=0.01, optimizer="Adam", schedule=toy.rising_schedule)


def short() -> Task:
    """In a rank's own process, with a warm-up that is soon over."""
    if multiprocessing.parent_process() is not None:
        LocalStep.warmup = 6
    return CLEAN()


def halved() -> Task:
    """In a rank's own process, with moments that each average halves."""
    end = LocalStep.end

    def broken(self: Any) -> None:
        end(self)
        if self._begun > self.warmup and (self._begun - 1 - self.warmup) % self.period == 0:
            for state in self.replica.optimizer.state.values():
                state["exp_avg"].div_(2)

    if multiprocessing.parent_process() is not None:
        LocalStep.end = broken  # type: ignore[method-assign]
    return short()


@pytest.mark.parametrize("task", [short, halved])
def test_moments_are_held_to_steps_with_an_average(play: Play, task: Callable[[], Task]) -> None:
    played = play("sync", "torch_local_sgd", task, audit="w2-s3-test", batch_size=4)
    found = different(audited(played.job, played.records, task=CLEAN))
    kept = read(played.job.scratch, [file for end in played.of(Finished) for file in end.kept])
    averaged = [step for step in kept.steps if step.averaged]
    assert {step.rank for step in averaged} == {0, 1}
    assert {name.kind for step in averaged for name in step.after} == {OPTIMIZER}
    if task is short:
        assert found == []
    else:
        assert any("exp_avg" in line for line in found), found

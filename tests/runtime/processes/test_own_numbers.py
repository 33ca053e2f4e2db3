"""Each rank seeds Python's and NumPy's generators once, for itself: nothing that it does later begins them anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp.core.messages.commands import Evaluate
from ddp.core.messages.events import Finished
from ddp.core.samples.spans import Batch
from ddp.core.settings.averaging import Averaging
from ddp.core.worker import Step
from ddp.data import seeded
from ddp.data.seeded import others
from ddp.engine.loop import TrainingLoop
from ddp.engine.spare_ranks import prepared
from ddp.process import channel
from ddp.replica.evidence import keeper
from tests.runtime import toy
from tests.runtime.averaging.scripted_ranks import job


def states(folder: Path, rank: int) -> list[Any]:
    """What the generators are before and after two epochs of a rank, whose functions draw nothing from them."""
    loop = TrainingLoop(job(folder, "cpu", Averaging()), rank, lambda event: None)
    seen = [others()]
    for epoch in range(2):
        for start in (0, 8):
            loop.train(Step(Batch(epoch, start, start + 8, 8), 0.0, last=False))
            seen.append(others())
        loop.evaluate(Evaluate(rank, epoch, 0, 1, in_turn=False, reason=""))
        loop.contribute(epoch)
        seen.append(others())
    loop.close()
    return seen


def test_generators_go_on_over_epochs_and_evaluations_and_are_each_ranks_own(tmp_path: Path) -> None:
    first, second = (states(tmp_path, rank) for rank in range(2))
    assert all(state == first[0] for state in first)
    assert all(state == second[0] for state in second)
    assert first[0][0] != second[0][0]
    assert first[0][1] != second[0][1]


def test_a_task_that_draws_in_some_processes_only_leaves_the_model_of_spares_and_ranks_as_it_is(tmp_path: Path) -> None:
    """Modules that a user's task imports seed torch, or draw from it, where they are imported first."""
    counts = iter(range(1, 4))

    def task() -> Any:
        torch.rand(next(counts))
        return toy.task()

    plain = replace(job(tmp_path, "cpu", Averaging()), task=task)
    spare = replace(plain, task=prepared(plain))
    loops = [TrainingLoop(each, 0, lambda event: None) for each in (plain, spare, plain)]
    assert len({loop.replica.state.digest() for loop in loops}) == 1


def test_what_a_rank_ends_with_fits_into_a_message_after_any_number_of_epochs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run failed after its last epoch. 300 epochs here, with limits a hundred times lower."""
    monkeypatch.setattr(channel, "LIMIT", channel.LIMIT // 100)
    monkeypatch.setattr(seeded, "EPOCHS", seeded.EPOCHS // 100)
    monkeypatch.setattr(keeper, "EVALUATIONS", keeper.EVALUATIONS // 100)
    said: list[Any] = []
    loop = TrainingLoop(replace(job(tmp_path, "cpu", Averaging()), epochs=300, audit="key"), 0, said.append)
    assert loop.keeper is not None
    loop.evaluate(Evaluate(0, 0, 0, 1, in_turn=False, reason=""))
    for epoch in range(1, 300):
        loop.numbers.note()
        loop.numbers.note()
        loop.keeper.evaluated(epoch)
    loop.finish()
    loop.close()
    (end,) = (event for event in said if isinstance(event, Finished))
    assert len(channel._encoded(end)) < channel.LIMIT
    assert len(end.numbers) == 2 * seeded.EPOCHS + 1
    evaluated = {name for name, _, _ in end.kept if "evaluated" in name}
    assert "kept-0-evaluated-0.state" in evaluated
    assert keeper.EVALUATIONS // 2 <= len(evaluated) <= 2 * keeper.EVALUATIONS + 2

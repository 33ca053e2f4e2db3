"""Each rank seeds Python's and NumPy's generators once, for itself: nothing that it does later begins them anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddp.core.messages.commands import Evaluate
from ddp.core.samples.spans import Batch
from ddp.core.settings.averaging import Averaging
from ddp.core.worker import Step
from ddp.data.seeded import others
from ddp.engine.loop import TrainingLoop
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

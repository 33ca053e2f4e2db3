"""Every built-in model records its training metric, cheaply, and trains as if it did not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from bench import models
from bench.models.parts import classified, cross_entropy, recorded, right
from ddp.replica.scalars import Scalars, record_sum
from tests.models.measured import quick


@pytest.mark.parametrize("name", sorted(models.MODELS))
def test_every_model_records_the_metric_that_it_is_evaluated_by(name: str) -> None:
    setup = models.load(name)
    task = quick(name)
    torch.manual_seed(0)
    model = task.model().eval()  # without dropout: twice the same
    batch, scalars = task.train_data().batch(torch.arange(4)), Scalars()
    with scalars:
        loss = task.loss(model, batch)
    ((name_recorded, total, calls),) = scalars.drain()
    with torch.no_grad():
        _, metric = task.evaluate(model, batch)
    assert (name_recorded, calls) == (setup.metric, 4)
    assert total == pytest.approx(float(metric), rel=1e-5)
    assert loss.requires_grad


def test_a_recorded_loss_does_not_depend_on_how_many_steps_are_added_up_at_once() -> None:
    """The clock decides that. In single precision, two runs of one seed had other scalars, which `determinism` failed."""
    losses = torch.rand(64, generator=torch.Generator().manual_seed(0)) + 1.0
    totals = []
    for least in (1, 7, 64):
        scalars, total = Scalars(), 0.0
        for step, loss in enumerate(losses, 1):
            scalars.begin()
            with scalars:
                recorded("cross-entropy", loss, 16)
            if not step % least or step == len(losses):
                total += sum(part or 0.0 for _, part, _ in scalars.drain())
        totals.append(total)
    assert totals == pytest.approx(totals[:1] * 3, rel=1e-14, abs=0.0)


def test_what_is_recorded_changes_no_bit_of_a_step() -> None:
    images, labels = torch.randn(8, 6), torch.arange(8) % 3
    plain, recording = (nn.Linear(6, 3) for _ in range(2))
    recording.load_state_dict(plain.state_dict())
    cross_entropy(plain, (images, labels)).backward()  # type: ignore[no-untyped-call]
    with Scalars():
        classified(recording, (images, labels)).backward()  # type: ignore[no-untyped-call]
    for one, other in zip(plain.parameters(), recording.parameters(), strict=True):
        assert one.grad is not None
        assert other.grad is not None
        assert torch.equal(one.grad, other.grad)


def test_sums_of_many_steps_are_taken_together_and_one_that_is_undone_never() -> None:
    scalars, calls = Scalars(), []

    def total(logits: Tensor, labels: Tensor) -> Tensor:
        calls.append(len(labels))
        return right(logits, labels)

    logits = torch.eye(3)
    for step in range(130):
        scalars.begin()
        with scalars:
            size = 2 + step % 2
            record_sum("accuracy", size, total, logits[:size], torch.zeros(size, dtype=torch.int64))
    scalars.undo()
    ((name, found, samples),) = scalars.drain()
    assert (name, found, samples) == ("accuracy", 129.0, 322)
    assert len(calls) == 3, "64 at once, and the rest"
    record_sum("accuracy", 3, total, logits, torch.zeros(3, dtype=torch.int64))  # outside of a step
    assert scalars.drain() == ()

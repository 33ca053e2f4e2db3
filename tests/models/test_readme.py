"""The README's example of a user's own model works as printed."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from models.setup import Setup


def test_the_example_of_a_model_trains() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    names: dict[str, object] = {}
    exec(code, names)
    setup = names["SETUP"]
    assert isinstance(setup, Setup)
    task = setup.task(setup.recipes["quick"], "unused")
    model, train = task.model(), task.train_data()
    optimizer = task.optimizer(model.parameters())
    batch = train.batch(torch.arange(256))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]

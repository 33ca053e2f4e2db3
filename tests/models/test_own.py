"""The example of the README, a user's own data and model, works as printed."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import models
from models.data import DATA, Entry, prepare

TEXT = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_of_a_users_own_model_and_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in zip(("own_data", "own_model"), re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    monkeypatch.setitem(DATA, "touches", Entry("own_data"))
    monkeypatch.setitem(models.MODELS, "touch", "own_model")
    recipe = models.load("touch").recipes["quick"]

    with pytest.raises(ValueError, match=r"data set touches: put touches\.npz into"):
        prepare(recipe.data, str(tmp_path))
    labels = np.arange(200) % 2
    maps = np.random.default_rng(0).normal(size=(200, 1, 8, 8)) + labels[:, None, None, None]
    np.savez(tmp_path / "touches.npz", maps=maps, labels=labels)
    prepare(recipe.data, str(tmp_path))

    torch.manual_seed(0)
    task = models.make_task("touch", recipe, str(tmp_path))
    model, train, held_out = task.model(), task.train_data(), task.eval_data()
    assert (len(train), len(held_out)) == (160, 40)
    optimizer = task.optimizer(model.parameters())
    for _ in range(30):
        optimizer.zero_grad()
        task.loss(model, train.batch(torch.arange(64))).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        right = task.evaluate(model.eval(), held_out.batch(torch.arange(40)))[1]
    assert int(right) >= 38

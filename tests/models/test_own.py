"""The example of docs/how-to/own-model-and-data.md works as printed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench import models
from bench.config.user_parts import enrolled
from bench.models.data import prepare
from bench.models.setup import Recipe
from ddp import user_code
from ddp.core.guard import GUARDS
from ddp.registries import Unusable, broken, missing, sound
from ddp.registry import Registry, loaded
from ddp.settings import make_policy
from ddp.user_code import CodeDigest
from tests.warm import PICTURES, Warm

TEXT = (Path(__file__).parents[2] / "docs/how-to/own-model-and-data.md").read_text()


def write_example(folder: Path) -> None:
    """The printed files, and data in which a hand shows."""
    for name, code in zip(("touches", "touch"), re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL), strict=True):
        (folder / f"{name}.py").write_text(code)
    labels = np.arange(200) % 2
    maps = np.random.default_rng(0).normal(size=(200, 1, 8, 8)) + labels[:, None, None, None]
    np.savez(folder / "touches.npz", maps=maps, labels=labels)


def test_the_example_of_a_users_own_model_and_data(here: Path) -> None:
    write_example(here)
    assert models.own_model("touch.py") == "touch"
    assert models.MODELS["touch"] == str(here / "touch.py")
    recipe = models.load("touch").recipes["quick"]
    assert recipe.data == "touches"
    (here / "empty").mkdir()
    with pytest.raises(ValueError, match=r"data set touches: put touches\.npz into"):
        prepare(recipe.data, str(here / "empty"))
    prepare(recipe.data, str(here))

    torch.manual_seed(0)
    task = models.make_task("touch", recipe, str(here))
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


@pytest.mark.slow
def test_a_file_of_a_users_own_trains_and_is_audited_from_anywhere(warm: Warm, tmp_path: Path) -> None:
    home, elsewhere = tmp_path / "my touches", tmp_path / "elsewhere"
    home.mkdir()
    elsewhere.mkdir()
    write_example(home)
    words = ("model=touch.py", "mode=nccl_cadence", "data.dir=.", "train.epochs=1", "report=false")
    code, out, err = warm.start(home, "-m", "bench", *words, env={PICTURES: "none"}).result()
    assert code == 0, out + err
    code, out, err = warm.start(home, "-m", "bench", "more", "--show").result()
    assert f"model={home}/touch.py" in re.sub(r"['\"\\\\]", "", out), "what is printed to be run names the file"
    (run,) = (home / "runs/touch/nccl_cadence").iterdir()
    saved = json.loads((run / "config.json").read_text())
    assert {kind: part["source"] for kind, part in saved["code"].items()} == {
        "model": str(home / "touch.py"),
        "data": str(home / "touches.py"),
    }
    code, out, err = warm.start(elsewhere, "-m", "bench", "audit", str(run)).result()
    assert (code, out.split()[0]) == (0, "EQUAL"), out + err

    (home / "touches.py").write_text((home / "touches.py").read_text().replace("* 4 // 5", "* 3 // 5"))
    code, out, err = warm.start(elsewhere, "-m", "bench", "rerun", str(run)).result()
    assert code == 2
    assert f"{home}/touches.py was changed since" in err
    code, out, err = warm.start(home, "-m", "bench", "plan", *words).result()
    assert "0 finished, 1 to train" in out, out + err


def digest_of(folder: Path, name: str) -> str:
    user_code.digest.cache_clear()
    return user_code.digest(str(folder / name))


def test_the_digest_is_of_all_that_a_file_imports_beside_it_and_of_no_place(tmp_path: Path) -> None:
    for name in ("one", "other"):
        package = tmp_path / name / "mine"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "layers.py").write_text("def later():\n    from mine.deep import x\n")
        (package / "deep.py").write_text("x = 1")
        (package / "unused.py").write_text("y = 1")
        (package / "net.py").write_text("from . import layers\nimport torch")
    before = digest_of(tmp_path / "one/mine", "net.py")
    assert before == digest_of(tmp_path / "other/mine", "net.py")
    (tmp_path / "one/mine/unused.py").write_text("y = 2")
    assert digest_of(tmp_path / "one/mine", "net.py") == before
    (tmp_path / "one/mine/deep.py").write_text("x = 2")
    assert digest_of(tmp_path / "one/mine", "net.py") != before


def test_ranks_refuse_code_that_the_run_was_not_planned_with(here: Path) -> None:
    write_example(here)
    codes = tuple(
        CodeDigest(kind, name, str(here / f"{name}.py"), digest_of(here, f"{name}.py"))
        for kind, name in (("model", "touch"), ("data", "touches"))
    )
    task = models.make_own_task("touch", Recipe("touches", 1, 4, 0.1, 0.5), str(here), codes)
    assert len(task.train_data()) == 160
    with pytest.raises(ValueError, match=r"touch\.py is not what the run was planned with"):
        models.make_own_task("touch", Recipe("touches", 1, 4, 0.1, 0.5), str(here), (codes[0]._replace(sha256="0"),))


def test_a_module_of_a_package_in_the_present_folder_is_a_model(here: Path) -> None:
    (here / "mine").mkdir()
    (here / "mine/__init__.py").write_text("")
    (here / "mine/net.py").write_text("from bench.models.mlp import SETUP")
    assert models.own_model("mine.net") == "mine.net"
    assert models.MODELS["mine.net"] == str(here / "mine/net.py")
    assert models.load("mine.net").recipes["quick"].data == "noisy_digits"
    assert enrolled("model=mine.net,mlp") == "model=mine.net,mlp"


PLUG_INS = """
[elche_bench.models]
mine_net = mine.net
mlp = mine.net

[elche_bench.policies]
fixed = mine.parts:Fixed
torn = mine.torn:Policy

[elche_bench.backends]
wrong = mine.parts:Fixed
"""


def test_installed_packages_add_members_and_break_nothing(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "mine").mkdir()
    (here / "mine/__init__.py").write_text("")
    (here / "mine/net.py").write_text("from bench.models.mlp import SETUP")
    (here / "mine/parts.py").write_text("class Fixed:\n    pass\n")
    (here / "mine/torn.py").write_text("\n\nx = 1 / 0\n")
    (here / "mine-1.dist-info").mkdir()
    (here / "mine-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1\n")
    (here / "mine-1.dist-info/entry_points.txt").write_text(PLUG_INS)
    monkeypatch.syspath_prepend(str(here))
    named = Registry("models", {"mlp": "bench.models.mlp"}, lambda entry: entry.value)
    assert dict(named) == {"mlp": "bench.models.mlp", "mine_net": "mine.net"}
    assert not named.is_ours("mine_net")
    assert [*named.broken] == ["mlp (mine.net)"]
    policies: Registry[Any] = Registry("policies", {"sync": object}, loaded())
    assert [*policies] == ["sync", "fixed"]
    assert missing("policy", "torn", policies) == "policy torn: mine/torn.py:3: ZeroDivisionError: division by zero"
    assert missing("policy", "fixd", policies) == "unknown policy 'fixd'; did you mean 'fixed'?"
    with pytest.raises(Unusable, match=r"^policy torn: mine/torn\.py:3"):
        sound("policy", policies)
    monkeypatch.setitem(GUARDS.complete().broken, "torn", policies.broken["torn"])
    with pytest.raises(ValueError, match=r"^guard torn: mine/torn\.py:3: ZeroDivisionError: division by zero$"):
        make_policy("cadence", {"guard": "torn"})
    backends: Registry[Any] = Registry("backends", {}, loaded(Recipe))
    assert broken("backend", backends.complete(), "wrong").endswith("mine.parts:Fixed must be a Recipe, and is a type")


def test_an_experiment_names_a_model_by_its_file(warm: Warm, tmp_path: Path) -> None:
    write_example(tmp_path)
    (tmp_path / "own/experiment").mkdir(parents=True)
    (tmp_path / "own/experiment/mine.yaml").write_text("# @package _global_\nmodel:\n  name: touch.py\n")
    words = ("plan", "--config-dir=own", "experiment=mine", "mode=solo", "data.dir=.")
    code, out, err = warm.start(tmp_path, "-m", "bench", *words).result()
    assert code == 0, out + err
    assert "touch    solo" in out

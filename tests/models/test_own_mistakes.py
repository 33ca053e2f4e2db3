"""What is wrong with a user's own model or data set is one line that names it."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import StackDataset, TensorDataset

from bench import models
from bench.models import parts
from bench.models.data import DATA, DataSet, Entry, data_set, prepare
from bench.models.data.dataset import Origin
from bench.models.parts import accuracy, cross_entropy, task_on
from bench.models.setup import Recipe
from bench.runner.preflight import try_step
from ddp.core.settings.loader import Loading
from ddp.data import TensorSource
from ddp.registries import Unusable
from ddp.replica.task import Task

WRONG = {  # what is chosen -> what is said
    "nowhere.py": "nowhere.py: there is no file",
    "my-model.py": "rename it, with letters, digits and _",
    "mlp.py": "among the models there is another mlp",
    "json.py": "Python has another module json; rename the file",
    "flat.net": "has no __init__.py; add it, or give the file",
    "no.such.module": "is no module that Python finds here",
}


@pytest.mark.parametrize("word", WRONG)
def test_what_is_no_model_of_a_users_own(word: str, here: Path) -> None:
    for name in ("my-model.py", "mlp.py", "json.py", "flat/net.py"):
        (here / name).parent.mkdir(exist_ok=True)
        (here / name).write_text("x = 1")
    with pytest.raises(ValueError, match=re.escape(WRONG[word])):
        models.load(models.own_model(word))


def task_of(loaded: object) -> Task:
    """That of a model on a user's own data set, whose `load` gives this."""
    data = DataSet((1, 2, 2), 2, lambda: loaded)
    recipe = Recipe("own", 1, 4, 0.1, 0.5)
    return task_on(data, lambda data: torch.nn.Linear(4, 2), torch.optim.SGD, recipe, cross_entropy, accuracy)


def test_a_users_own_data_set_may_be_of_any_form() -> None:
    tensors = torch.rand(5, 1, 2, 2), torch.arange(5) % 2
    for form in (tensors, TensorDataset(*tensors), TensorSource(*tensors), StackDataset(*tensors)):
        task = task_of([form, form])
        for source in (task.train_data(), task.eval_data()):
            batch = source.to(torch.device("cpu")).batch(torch.tensor([3, 1]))
            assert all(torch.equal(one, whole[[3, 1]]) for one, whole in zip(batch, tensors, strict=True))


def test_what_is_no_pair_of_data_sets_is_said_with_its_name() -> None:
    source = TensorSource(torch.rand(5))
    for pair in (source, (source,), None):
        with pytest.raises(ValueError, match=r"^data set own: load must return two data sets, what is trained on and"):
            task_of(pair).train_data()
    with pytest.raises(ValueError, match=r"^data set own: a tuple or list as data set must hold tensors"):
        task_of((np.zeros(3), (np.zeros(3),))).train_data()


RAISES = "raise RuntimeError('no way')"
SETTING = "from bench.models.setup import Setup\nSETUP = Setup"
BROKEN = {  # code of a model file -> what is said of it
    f"\n{RAISES}": "own_broken.py:2: RuntimeError: no way",
    "from bench.models.setup import Recipe\nRecipe('digits', 1, 4, 0.1, 0.5, data_options={})": (
        "own_broken.py:2: TypeError: data_options must be DataOptions"
    ),
    "from bench.models.setup import Recipe\nRecipe('digits', 1, 4, 0.1, '0.5')": (
        "own_broken.py:2: TypeError: lr and target must be numbers"
    ),
    "import sys\nsys.exit()": "own_broken.py:2: SystemExit: no reason given",
    "class Own(BaseException):\n    pass\nraise Own(1)": "own_broken.py:3: Own: 1",
    "\n\ndef build(:": "own_broken.py:3: SyntaxError: invalid syntax",
    "import flaxx": "own_broken.py:1: ModuleNotFoundError: No module named 'flaxx'",
    "from bench.models.parts import classify": "own_broken.py:1: ImportError: cannot import name 'classify'",
    "x = 1": "own_broken.py has no SETUP, which must be a Setup",
    "SETUP = {}": "own_broken.py: SETUP must be a Setup, and is a dict",
    f"{SETTING}('a', 'b')": "own_broken.py:2: TypeError: Setup.__init__() missing",
    SETTING + "(*'abcd', True, {'quick': 1}, print)": "recipes must be a dict of name",
    SETTING + "(*'abcd', True, {}, None)": "own_broken.py:2: TypeError: task must be",
}


@pytest.mark.parametrize("code", BROKEN)
def test_what_is_wrong_with_a_users_own_model_is_one_line(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_broken.py").write_text(code)
    monkeypatch.delitem(sys.modules, "own_broken", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    monkeypatch.setitem(models.MODELS, "own", "own_broken")
    with pytest.raises(Unusable) as caught:
        models.load("own")
    assert str(caught.value).startswith("model own: ")
    assert BROKEN[code] in str(caught.value)
    assert "\n" not in str(caught.value)
    monkeypatch.delitem(sys.modules, "own_broken", raising=False)


@pytest.mark.parametrize("module", ["own_nowhere", "bench.models.nowhere", "nowhere.at.all"])
def test_a_model_whose_file_is_not_there(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.MODELS, "own", module)
    with pytest.raises(
        Unusable, match=f"model own: it is registered as module {module}, and there is none; write the file"
    ):
        models.load("own")


def test_a_mistake_in_a_users_own_data_set_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "from bench.models.data.dataset import Origin\n\n\ndef describe(folder, options):\n    return {}['x']\n\n\n"
        "ORIGIN = Origin(describe, describe)\n"
    )
    (tmp_path / "own_bad_data.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATA, "own", Entry("own_bad_data"))
    for use in (prepare, data_set):
        with pytest.raises(Unusable, match=r"^data set own: own_bad_data\.py:5: KeyError: 'x'$"):
            use("own", "data")


def test_a_module_that_cannot_be_imported_does_not_end_the_fork_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ddp.process import preloaded

    for name, code in (("own_raises", RAISES), ("own_exits", "raise SystemExit(1)"), ("own_sound", "")):
        (tmp_path / f"{name}.py").write_text(code)
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(preloaded.NAMES, "own_raises\nown_exits\nown_sound")
    importlib.reload(preloaded)
    assert "own_sound" in sys.modules
    assert not sys.modules.keys() & {"own_raises", "own_exits"}


class Wave(torch.nn.Module):
    """Its parameter is complex."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda data: Wave(), "parameter phase is complex64"),
        (lambda data: torch.nn.LazyLinear(2), "weight has no shape yet"),
    ],
)
def test_what_no_rank_could_train_is_said_at_once(make: Callable[[object], torch.nn.Module], said: str) -> None:
    data = DataSet((1, 2, 2), 2, lambda: [TensorSource(torch.rand(5, 1, 2, 2), torch.arange(5) % 2)] * 2)
    recipe = Recipe("own", 1, 4, 0.1, 0.5)
    task = task_on(data, make, torch.optim.SGD, recipe, cross_entropy, accuracy)
    with pytest.raises(ValueError, match=said):
        try_step(task, 4, Loading())


def test_a_helper_of_the_same_name_in_another_folder_is_refused(here: Path) -> None:
    """The first one's code was run, under the digest of the second."""
    for folder in ("one", "two"):
        (here / folder).mkdir()
        (here / folder / "own_layers.py").write_text(f"WHERE = {folder!r}")
        (here / folder / f"net_{folder}.py").write_text("import own_layers\nfrom bench.models.mlp import SETUP")
    models.load(models.own_model("one/net_one.py"))
    with pytest.raises(ValueError, match=r"Python has another module own_layers than .*two/own_layers\.py; rename"):
        models.load(models.own_model("two/net_two.py"))


def test_rows_of_numbers_are_told_how_to_be_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "data_set", lambda *about: DataSet((20,), 2, lambda: ((), ())))
    with pytest.raises(ValueError, match=r"rows of numbers the shape \(1, 1, n\)"):
        parts.images_of(Recipe("table", 1, 4, 0.1, 0.5), "")


def test_a_comma_that_lacks_is_no_tuple() -> None:
    """Each run of the data set ended in a traceback."""
    with pytest.raises(TypeError, match="options must be a tuple of names"):
        Origin(print, options=("path"))  # type: ignore[arg-type]  # as a user may write it

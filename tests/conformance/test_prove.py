"""`bench prove`: models as a new user brings them are proved in each way of averaging; what is wrong is not."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from bench.prove import proof
from bench.prove.entrants import TORCH, Entrant, entrant
from bench.prove.proof import Proof, prove
from bench.prove.provable import Way, provable_modes
from bench.prove.whole_batch import whole
from ddp.core.policies import DEFAULT, EVERY_STEP, POLICIES
from ddp.core.settings.steps import StepSettings
from ddp.replica.task import Task
from tests.runtime import toy
from tests.slow import slow
from tests.spread import WHOLE
from tests.warm import Warm

OWN = '''
"""`{name}`: {about}."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional as F

from bench.models.parts import SCHEDULES
from bench.models.setup import Recipe, Setup
from ddp.data import as_source
from ddp.replica.task import Task


class Pairs(torch.utils.data.Dataset):
    def __init__(self, count):
        draw = torch.Generator().manual_seed(count)
        self.x, self.y = torch.randn(count, 6, generator=draw), torch.randint(0, 6, (count,), generator=draw)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, index):
        return {sample}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.out, self.spare = nn.Linear(6, 6), nn.Linear(6, 6), nn.Parameter(torch.ones(3))
        {tie}

    def forward(self, x):
        hidden = self.into(x).tanh()
        return self.out(hidden), hidden


def loss(model, batch):
    logits, hidden = model({inputs})
    return {loss}


def evaluate(model, batch):
    logits, _ = model({inputs})
    return F.cross_entropy(logits, {labels}, reduction="sum"), (logits.argmax(1) == {labels}).sum()


def task(recipe, data_dir):
    adam = {optimizer}
    data = lambda: as_source(Pairs(200))
    return Task(Net, adam, loss, evaluate, data, data, SCHEDULES["constant"])


RECIPES = {{"quick": Recipe("digits", 1, 8, 1e-2, 0.5)}}
SETUP = Setup("own", "ours", "none", "accuracy", True, RECIPES, task)
'''
PLAIN = {
    "sample": "self.x[index], self.y[index]",
    "tie": "pass",
    "optimizer": "partial(torch.optim.AdamW, lr=recipe.lr)",
    "inputs": "batch[0]",
    "labels": "batch[1]",
    "loss": "F.cross_entropy(logits, batch[1])",
}
BROUGHT = {
    "tied": {"about": "one weight in two layers", "tie": "self.out.weight = self.into.weight"},
    "two_losses": {"about": "two losses", "loss": "F.cross_entropy(logits, batch[1]) + 0.1 * hidden.square().mean()"},
    "dictionary": {
        "about": "batches that are dictionaries",
        "sample": '{"x": self.x[index], "y": self.y[index]}',
        "inputs": 'batch["x"]',
        "labels": 'batch["y"]',
        "loss": 'F.cross_entropy(logits, batch["y"])',
    },
    "penalty": {
        "about": "two optimizers, and a gradient within the loss",
        "optimizer": "lambda parameters: [torch.optim.SGD(parameters[::2], 0.1), torch.optim.AdamW(parameters[1::2], 0.1)]",
        "loss": "F.cross_entropy(logits, batch[1])"
        " + torch.autograd.grad(logits.sum(), hidden, create_graph=True)[0].square().mean()",
    },
}


@pytest.mark.parametrize("modes", ["nccl_sync,zero3", *slow("solo,nccl_cadence")])
def test_models_as_a_new_user_brings_them_are_proved(warm: Warm, tmp_path: Path, modes: str) -> None:
    for name, parts in BROUGHT.items():
        (tmp_path / f"{name}.py").write_text(OWN.format(name=name, **PLAIN | parts))
    words = (f"model={','.join(f'{name}.py' for name in BROUGHT)}", f"mode={modes}")
    code, out, err = warm.start(tmp_path, "-m", "bench", "prove", *words, "--steps", "2", "--json", "out.json").result()
    assert code == 0, out + err
    proofs = json.loads((tmp_path / "out.json").read_text())["proofs"]
    assert [(each["model"], each["verdict"]) for each in proofs] == [
        (name, "exact") for name in BROUGHT for _ in range(2)
    ]
    for each in proofs:
        assert each["replicas_equal"] is True
        for step in each["steps"]:
            assert not step["parameters"]
            assert not step["gradients"]
            assert step["loss"] < 1e-6


def normed() -> Task:
    return replace(toy.task(norm=True, optimizer="AdamW", lr=0.01), model=partial(net, 0.0))


def dropping() -> Task:
    return replace(normed(), model=partial(net, 0.3))


def random_only() -> Task:
    return replace(normed(), model=lambda: nn.Sequential(nn.Linear(6, 12), nn.Dropout(0.5), nn.Linear(12, 2)))


def summed() -> Task:
    task = toy.task()
    return replace(task, loss=lambda model, batch: task.loss(model, batch) * len(batch[0]))


def net(share: float) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.Dropout(share), nn.Linear(12, 2))


def way(mode: str, backend: str | None, policy: str = EVERY_STEP, ranks: int = 2, engine: str = "elche") -> Way:
    return Way(mode, engine, backend, POLICIES[policy](), ranks)


def proved(ways: list[Way], steps: int = 2) -> list[Proof]:
    return list(prove(dropping, ways, steps, 4))


def test_each_kind_of_average_is_proved_and_says_how_far_it_is_off() -> None:
    ways = [
        way("nccl_sync", "nccl", ranks=3),
        way("cpu_async", "cpu", DEFAULT),
        way("nccl_cadence", "nccl", DEFAULT, ranks=3),
        way("torch_ddp", "torch_ddp", ranks=3),
        way("graph_sync", None, engine="graph"),
    ]
    found = {each.mode: each for each in proved(ways)}
    assert [found[each.mode].verdict for each in ways] == ["exact", "close", "exact", "close", "exact"]
    assert all(found[mode].precision == "float64" for mode in ("cpu_async", "torch_ddp"))
    assert found["nccl_sync"].steps[1].gradients == 0.0
    assert not any(each.failed for each in found.values())


def test_what_only_another_engine_runs_is_not_called_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks in processes were compared instead, and the engine virtual never ran."""

    def broken(*_: object) -> None:
        raise AssertionError("the engine virtual ran")

    monkeypatch.setattr("ddp.virtual.engine.run", broken)
    ways = [
        way("virtual_nccl_sync", "nccl", engine="virtual"),
        way("virtual_cpu_async", "cpu", DEFAULT, engine="virtual"),
    ]
    found = proved([*ways, way("nccl_sync", "nccl")])
    assert {each.mode: each.verdict for each in found} == {
        "virtual_nccl_sync": "not proved",
        "virtual_cpu_async": "not proved",
        "nccl_sync": "exact",
    }
    assert all("by tests/virtual" in each.why for each in found if each.mode != "nccl_sync")
    assert not any(mode.startswith("virtual") for mode in provable_modes())
    assert {"solo", "nccl_sync", "cpu_async", "zero3", "torch_ddp", "graph_cadence"} <= {*provable_modes()}


def test_data_that_is_split_by_drawn_numbers_is_the_same_in_engine_and_oracle() -> None:
    (found,) = prove(toy.drawn, [way("graph_sync", None, engine="graph")], 2, 4)
    assert found.verdict == "exact", found.why


def test_more_samples_than_the_data_has_are_refused() -> None:
    """A step of 120 samples of both ranks, and windows of three such steps; the data has 203."""
    for each, steps in ((way("nccl_sync", "nccl"), 2), (way("nccl_cadence", "nccl", DEFAULT), 1)):
        with pytest.raises(ValueError, match="more than the 203 of the data: give a smaller --batch"):
            list(prove(dropping, [each], steps, 60))


def test_another_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that did with buffers what another one does would be as far off as this."""
    monkeypatch.setattr(proof, "entrant", lambda backend: Entrant("nccl", "memory", replace(TORCH, flat=True), 4))
    (found,) = proved([way("nccl_sync", "nccl")])
    assert found.failed
    assert found.verdict == "different"
    assert (found.worst("parameters") or 0) > 0


def test_a_rank_that_fails_is_said_and_the_others_are_proved() -> None:
    first, then = proved([way("zero1", "zero1"), way("nccl_sync", "nccl")], steps=1)
    assert (first.verdict, then.verdict) == ("exact", "exact")
    bad = replace(entrant("nccl"), module="nowhere.at.all")
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(proof, "entrant", lambda name: bad if name == "zero1" else entrant(name))
        first, then = proved([way("zero1", "zero1"), way("nccl_sync", "nccl")], steps=1)
    assert first.verdict == "not proved"
    assert "ModuleNotFoundError: No module named 'nowhere'" in first.why
    assert then.verdict == "exact"


class Spare(nn.Sequential):
    """Has a parameter that no loss depends on."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 2))
        self.spare = nn.Parameter(torch.zeros(3))


def spared() -> Task:
    return replace(toy.task(), model=Spare)


def test_what_an_engine_refuses_is_in_the_table_alone(capfd: pytest.CaptureFixture[str]) -> None:
    refused, taken = prove(spared, [way("torch_ddp", "torch_ddp"), way("nccl_sync", "nccl")], 1, 4)
    assert (refused.verdict, taken.verdict) == ("not proved", "exact")
    assert "does not depend on spare in this step, which torch_ddp does not take" in refused.why
    assert "Traceback" not in capfd.readouterr().err


def test_slices_are_the_whole_batch_but_for_what_a_model_sees_of_it() -> None:
    bare = partial(toy.task, optimizer="AdamW", lr=0.01)
    rounding = whole(bare, 2, 2, 4)
    assert rounding.why.startswith("rounding")
    assert max(rounding.gradients, rounding.loss) < 1e-6
    assert whole(random_only, 2, 1, 4).why.startswith("random numbers")
    assert whole(summed, 2, 1, 4).why.startswith("more than rounding")
    assert whole(normed, 2, 2, 4).why.startswith("batch norm")
    assert whole(normed, 2, 2, 4).gradients > 1e-6
    assert isinstance(normed().loss(net(0.0), (torch.randn(4, 6), torch.tensor([0, 1, 0, 1]))), Tensor)


@pytest.mark.parametrize(
    ("how", "part"),
    [
        *slow(
            (StepSettings(accumulate=2), slice(0, None, 2)),
            (StepSettings(precision="bf16"), slice(1, None, 2)),
        ),
        (StepSettings(accumulate=3, precision="bf16"), slice(None)),
    ],
)
def test_steps_of_micro_batches_and_in_half_precision_are_proved(how: StepSettings, part: slice) -> None:
    """Each alone on every second backend, both on all."""
    steps = ("nccl", "zero1", "zero2", "zero3", "torch_ddp", "torch_fsdp")
    ways = [way(backend, backend) for backend in (steps if WHOLE else steps[part])]
    ways += [
        way("solo", None, ranks=1, engine="solo"),
        way("nccl_cadence", "nccl", DEFAULT),
        way("cpu_async", "cpu", DEFAULT),
    ]
    found = {each.mode: each for each in prove(dropping, ways, 2, 4, how=how)}
    assert not [each for each in found.values() if each.failed], found
    assert {name for name, each in found.items() if each.verdict != "exact"} <= {"cpu_async"}
    assert whole(dropping, 2, 1, 4, how=how).why.startswith("batch norm")


@pytest.mark.parametrize(
    ("word", "mode"),
    [
        ("train.precision=fp16", "solo"),
        ("train.compile=true", "solo"),
        ("train.max_grad_norm=0.1", "solo"),
        ("averaging.elastic=0.5", "nccl_cadence"),
    ],
)
def test_what_the_oracle_does_not_do_is_not_called_proved(warm: Warm, tmp_path: Path, word: str, mode: str) -> None:
    command = ("-m", "bench", "prove", "model=mlp", f"mode={mode}", "data.name=digits", word)
    code, out, err = warm.start(tmp_path, *command).result()
    assert (code, out) == (2, "")
    assert f"bench: {word.replace('true', 'True')} cannot be proved" in err

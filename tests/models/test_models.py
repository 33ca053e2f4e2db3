"""Every model of the matrix: one step trains all of it. And ResNet-20 is the paper's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import models
from ddp.runtime.task import Task
from models import resnet_graph
from models.data import data_set
from models.lenet import build as build_lenet
from models.mlp import build as build_mlp
from models.parts import SCHEDULES

DIGITS, MNIST = data_set("digits"), data_set("mnist")
CIFAR = replace(MNIST, shape=(3, 32, 32))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads, much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def quick(name: str) -> Task:
    return models.make_task(name, models.load(name).recipes["quick"], "")


@pytest.mark.parametrize("name", models.MODELS)
def test_a_setup_is_complete(name: str) -> None:
    setup = models.load(name)
    assert {"quick", "published"} <= set(setup.recipes)
    assert setup.recipes["quick"].data == "digits"
    for recipe in setup.recipes.values():
        assert recipe.schedule in SCHEDULES
        assert recipe.epochs > 0
        assert recipe.batch_size > 0
    for text in (setup.summary, setup.citation, setup.published, setup.metric):
        assert text
        assert "\n" not in text


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_trains_one_step(name: str) -> None:
    torch.manual_seed(0)
    task = quick(name)
    model, batch = task.model(), task.train_data().batch(torch.arange(32))
    optimizer = task.optimizer(model.parameters())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = task.loss(model, batch)
    assert loss.item() == pytest.approx(math.log(10), rel=0.1)
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    assert task.loss(model, batch) < loss


@pytest.mark.parametrize("name", models.MODELS)
def test_evaluation_sums_over_samples(name: str) -> None:
    torch.manual_seed(0)
    task = quick(name)
    model, batch = task.model().eval(), task.eval_data().batch(torch.arange(50))
    with torch.no_grad():
        loss, right = task.evaluate(model, batch)
        parts = [task.evaluate(model, tuple(t[chosen] for t in batch)) for chosen in (slice(20), slice(20, 50))]
    assert loss.item() / 50 == pytest.approx(task.loss(model, batch).item(), rel=1e-4)
    assert sum(part[0].item() for part in parts) == pytest.approx(loss.item(), rel=1e-4)
    assert sum(part[1].item() for part in parts) == right.item()


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_repeats_from_its_seed(name: str) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(quick(name).model().state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


def test_data_is_read_once_for_both_halves() -> None:
    task = quick("mlp")
    assert task.train_data() is task.train_data()
    assert len(task.eval_data()) == 359


def test_schedules() -> None:
    assert [SCHEDULES["constant"](x) for x in (0.0, 1.0)] == [1, 1]
    assert [SCHEDULES["steps"](x) for x in (0.0, 0.49, 0.5, 0.74, 0.75, 1.0)] == [1, 1, 0.1, 0.1, 0.01, 0.01]
    assert [round(SCHEDULES["cosine"](x), 9) for x in (0.0, 0.5, 1.0, 1.1)] == [1, 0.5, 0, 0]


def test_bad_recipes() -> None:
    recipe = models.load("mlp").recipes["quick"]
    with pytest.raises(ValueError, match="unknown data set 'cifar10'"):
        models.make_task("resnet_graph", models.load("resnet_graph").recipes["published"], "")
    with pytest.raises(ValueError, match="unknown schedule 'linear'; choose one of constant, cosine, steps"):
        models.make_task("mlp", replace(recipe, schedule="linear"), "")


def test_mlp_is_the_published_one() -> None:
    assert [tuple(p.shape) for p in build_mlp(data_set("mnist")).parameters()] == [(256, 784), (256,), (10, 256), (10,)]


class Block(nn.Module):
    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, out // channels, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        if y.shape != x.shape:
            x = torch.cat([x[:, :, ::2, ::2], torch.zeros_like(x[:, :, ::2, ::2])], 1)
        return F.relu(x + y)


class ByHand(nn.Module):
    """ResNet-20 as one would write it without a builder."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, 1, 1, bias=False)
        self.norm = nn.BatchNorm2d(16)
        widths = [16, 16, 16, 16, 32, 32, 32, 64, 64, 64]
        self.blocks = nn.Sequential(*(Block(a, b) for a, b in pairwise(widths)))
        self.classifier = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.classifier(F.adaptive_avg_pool2d(x, 1).flatten(1))


@pytest.mark.parametrize("data", [CIFAR, DIGITS, MNIST], ids=["cifar", "digits", "mnist"])
def test_resnet_equals_one_written_by_hand_bit_for_bit(data: object) -> None:
    torch.manual_seed(0)
    graph, hand = resnet_graph.build(data), ByHand(data.shape[0])
    hand.load_state_dict(dict(zip(hand.state_dict(), graph.state_dict().values(), strict=True)))
    x, labels = torch.randn(4, *data.shape), torch.arange(4)
    for model in (graph, hand):
        F.cross_entropy(model(x), labels).backward()
    for ours, theirs in zip(graph.parameters(), hand.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)
    for ours, theirs in zip(graph.buffers(), hand.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    graph.eval(), hand.eval()
    assert torch.equal(graph(x), hand(x))


def test_resnet_has_the_papers_layers() -> None:
    graph = resnet_graph.build(CIFAR)
    assert sum(p.numel() for p in graph.parameters()) == 269_722  # The paper: 0.27M.
    layers = [m for m in graph.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len(layers) == 20
    shapes = {}
    for name, module in graph.named_children():
        module.register_forward_hook(lambda _m, _i, out, name=name: shapes.update({name: tuple(out.shape[1:])}))
    assert graph(torch.randn(2, 3, 32, 32)).shape == (2, 10)
    assert shapes["stem"] == (16, 32, 32)
    stages = [[shapes[f"stage{s}_block{b}"] for b in (1, 2, 3)] for s in (1, 2, 3)]
    assert stages == [[(16, 32, 32)] * 3, [(32, 16, 16)] * 3, [(64, 8, 8)] * 3]


def test_resnet_starts_from_even_odds() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        loss = F.cross_entropy(resnet_graph.build(CIFAR)(torch.randn(32, 3, 32, 32)), torch.arange(32) % 10)
        assert loss.item() == pytest.approx(math.log(10), rel=0.1)


def test_resnet_structure_is_known() -> None:
    hashes = {resnet_graph.build(data).structural_hash for data in (CIFAR, CIFAR, DIGITS)}
    assert len(hashes) == 2


@pytest.mark.parametrize(("data", "features"), [("mnist", 400), ("digits", 64)])
def test_lenet_has_the_papers_widths(data: str, features: int) -> None:
    shapes = [
        tuple(layer.weight.shape) for layer in build_lenet(data_set(data)) if isinstance(layer, nn.Conv2d | nn.Linear)
    ]
    assert shapes == [(6, 1, 5, 5), (16, 6, 5, 5), (120, features), (84, 120), (10, 84)]
    assert (
        sum(p.numel() for p in build_lenet(data_set(data)).parameters())
        == 150 + 12 + 2400 + 32 + 120 * features + 11_134
    )

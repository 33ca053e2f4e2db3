"""ResNets: of modules, of the builder and by hand the same bits, with the depth asked for and the paper's layers."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import models
from bench.models import resnet, resnet34, resnet_graph
from bench.models.data import DataSet
from tests.models.measured import CIFAR, DIGITS, MNIST, shapes_of, size


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


@pytest.mark.parametrize("depth", [8, 20, 32])
@pytest.mark.parametrize("data", [CIFAR, DIGITS], ids=["cifar", "digits"])
def test_modules_and_builder_make_one_resnet_bit_for_bit(data: DataSet, depth: int) -> None:
    """Of one seed: parameters and their order, outputs, gradients, running statistics, and outputs after training."""
    x, labels, made = torch.randn(2, *data.shape), torch.arange(2), []
    for build in (resnet.build, resnet_graph.build):
        torch.manual_seed(7)
        model = build(data, depth)
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
        start, gradients = [parameter.detach().clone() for parameter in model.parameters()], []
        for _ in range(2):
            optimizer.zero_grad()
            F.cross_entropy(model(x), labels).backward()
            gradients += [parameter.grad.clone() for parameter in model.parameters()]
            optimizer.step()
        made.append((start, gradients, list(model.parameters()), list(model.buffers()), [model(x), model.eval()(x)]))
    for plain, graph in zip(*made, strict=True):
        assert len(plain) > 1
        assert all(torch.equal(one, other) for one, other in zip(plain, graph, strict=True))


@pytest.mark.parametrize("name", ["resnet", "resnet_graph"])
def test_a_resnet_has_the_depth_asked_for(name: str) -> None:
    recipe = models.load(name).recipes["quick"]
    for depth in (20, 32):
        model = models.make_task(name, replace(recipe, depth=depth), "").model()
        assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == depth
    for depth, nearest in ((21, 20), (2, 8), (30, 32)):
        with pytest.raises(ValueError, match=rf"model\.depth={depth} is not 6n \+ 2, .* {nearest} is the nearest"):
            models.make_task(name, replace(recipe, depth=depth), "")


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


def test_resnet34_has_the_papers_layers() -> None:
    model = resnet34.build(replace(CIFAR, classes=100))
    assert (
        size(model) == 21_328_292
    )  # torchvision's for 100 classes, less what the smaller first convolution lacks: 7,680
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d) and m.weight.shape[-1] != 1]
    assert len(layers) == 34, "without the projections of shortcuts"
    shapes = shapes_of(model, model, torch.randn(2, 3, 32, 32))
    assert shapes[3:19] == [*[(64, 32, 32)] * 3, *[(128, 16, 16)] * 4, *[(256, 8, 8)] * 6, *[(512, 4, 4)] * 3]
    assert shapes[-1] == (100,)
    assert F.cross_entropy(model(torch.randn(2, 3, 32, 32)), torch.arange(2)).item() == pytest.approx(
        math.log(100), 0.1
    )


def test_resnet_starts_from_even_odds() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        loss = F.cross_entropy(resnet_graph.build(CIFAR)(torch.randn(32, 3, 32, 32)), torch.arange(32) % 10)
        assert loss.item() == pytest.approx(math.log(10), rel=0.1)


def test_resnet_structure_is_known() -> None:
    hashes = {resnet_graph.build(data).structural_hash for data in (CIFAR, CIFAR, DIGITS)}
    assert len(hashes) == 2

"""What is told of a model's graph."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from bench import models
from bench.models.data import data_set
from bench.runner.modelgraph import follow


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).relu()
        return torch.cat([x + self.second(x), x], 1).chunk(2, dim=1)[0]


def test_layers_shapes_parameters_and_what_skips_layers() -> None:
    graph = follow(Residual(), torch.zeros(1, 4))
    assert [(n["type"], n["name"], n["out"], n["parameters"]) for n in graph["nodes"]] == [
        ("Linear", "first", [4], 20),
        ("Linear", "second", [4], 16),
        ("add", "add", [4], 0),
        ("cat", "cat", [8], 0),
    ]
    assert graph["edges"] == [(0, 1), (0, 2), (0, 3), (1, 2), (2, 3)]
    assert graph["parameters"] == 36


def test_a_layer_that_is_called_twice_is_there_twice_and_its_parameters_once() -> None:
    shared = nn.Linear(3, 3)
    graph = follow(nn.Sequential(shared, nn.ReLU(), shared), torch.zeros(1, 3))
    assert [node["parameters"] for node in graph["nodes"]] == [12, 0, 0]
    assert graph["edges"] == [(0, 1), (1, 2)]


@pytest.mark.parametrize("name", ["mlp", "char_rnn", "gpt_nano", "resnet_graph"])
def test_models_of_every_kind_can_be_followed(name: str) -> None:
    setup = models.load(name)
    recipe = setup.recipes["quick"]
    data = data_set(recipe.data, "data", recipe.data_options)
    model = setup.task(recipe, "data").model().eval()
    before = torch.random.get_rng_state()
    graph = follow(model, torch.zeros(1, *data.shape, dtype=torch.int64 if data.is_text else torch.float32))
    json.dumps(graph, allow_nan=False)
    assert torch.equal(before, torch.random.get_rng_state())
    counted = sum(node["parameters"] for node in graph["nodes"])
    outside = sum(p.numel() for m in model.modules() if list(m.children()) for p in m.parameters(recurse=False))
    assert counted + outside == graph["parameters"] == sum(p.numel() for p in model.parameters())
    fed = {b for _, b in graph["edges"]}
    assert graph["edges"]
    assert all(a < b for a, b in graph["edges"])
    assert len(fed) >= len(graph["nodes"]) - 2  # tokens and positions begin side by side

"""Each model is the published one, in sizes and shapes, and does what its kind promises."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from bench.models import char_rnn, conv_ae, gpt_nano, vit
from bench.models.data import data_set
from bench.models.lenet import build as build_lenet
from bench.models.mlp import build as build_mlp
from tests.models.measured import CIFAR, MNIST, quick, shapes_of, size


def test_mlp_is_the_published_one() -> None:
    assert [tuple(p.shape) for p in build_mlp(data_set("mnist")).parameters()] == [(256, 784), (256,), (10, 256), (10,)]


def test_the_models_of_text_have_the_published_sizes() -> None:
    text = data_set("pydoc")
    rnn, gpt = char_rnn.CharRNN(text), gpt_nano.GPT(text)
    assert [tuple(p.shape) for p in rnn.lstm.parameters()][:2] == [(1024, 128), (1024, 256)]
    assert (rnn.lstm.num_layers, rnn.lstm.dropout, rnn.tokens.weight.shape) == (2, 0.2, (96, 128))
    assert size(gpt) == 834_304
    tokens = torch.randint(96, (2, 128))
    assert shapes_of(gpt, gpt.layers, tokens) == [(128, 128)] * 4
    assert rnn(tokens).shape == gpt(tokens).shape == (2, 128, 96)


@pytest.mark.parametrize("name", ["char_rnn", "gpt_nano"])
def test_a_model_of_text_sees_no_token_that_is_yet_to_come(name: str) -> None:
    task = quick(name)
    model, tokens = task.model().eval(), torch.randint(20, (1, 20))
    other = tokens.clone()
    other[0, 12] = (other[0, 12] + 1) % 20
    with torch.no_grad():
        before, after = model(tokens), model(other)
    torch.testing.assert_close(before[:, :12], after[:, :12])
    assert (before[:, 12] - after[:, 12]).abs().max() > 1e-3
    assert (before[:, 19] - after[:, 19]).abs().max() > 0, "it looks back as far"


@pytest.mark.parametrize("name", ["char_rnn", "gpt_nano"])
def test_dropout_comes_from_the_seed_of_the_step_and_is_off_in_evaluation(name: str) -> None:
    task = quick(name)
    model, batch, losses = task.model(), task.train_data().batch(torch.arange(4)), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(task.loss(model, batch).item())
    assert losses[0] == losses[1] != losses[2]
    model.eval()
    assert task.loss(model, batch).item() == task.loss(model, batch).item()


def test_vit_has_the_published_sizes() -> None:
    model = vit.ViT(CIFAR)
    assert size(model) == 2_697_610
    x = torch.randn(20, 3, 32, 32)
    assert shapes_of(model, model.layers, x) == [(65, 192)] * 9
    assert F.cross_entropy(model(x), torch.arange(20) % 10).item() == pytest.approx(math.log(10), rel=0.1)
    with pytest.raises(ValueError, match="images of 3x8 pixels are smaller than a patch of 4x4"):
        vit.ViT(replace(CIFAR, shape=(1, 3, 8)))


@pytest.mark.parametrize(("shape", "maps"), [((1, 28, 28), 32), ((3, 32, 32), 32), ((1, 7, 9), 8)])
def test_the_autoencoder_gives_back_what_it_was_given(shape: tuple[int, ...], maps: int) -> None:
    x = torch.randn(2, *shape)
    model = conv_ae.ConvAE(replace(MNIST, shape=shape))
    assert model(x).shape == x.shape
    assert model.encode(x).shape == (2, maps, -(-shape[1] // 4), -(-shape[2] // 4))


def test_the_autoencoders_error_is_in_pixels_from_0_to_1() -> None:
    loss, evaluate = conv_ae.judged(replace(MNIST, shape=(2, 2, 2), std=(0.5, 0.25)))
    images = torch.ones(3, 2, 2, 2)
    assert loss(nn.Identity(), (images,)).item() == 0
    silent = nn.Threshold(2.0, 0.0)
    assert loss(silent, (images,)).item() == pytest.approx((0.25 + 0.0625) / 2)
    assert [value.item() for value in evaluate(silent, (images,))] == pytest.approx([3 * 0.15625] * 2)


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


@pytest.mark.parametrize("shape", [(1, 32, 8), (1, 8, 32), (1, 4, 4), (3, 17, 15)])
def test_lenet_takes_images_of_any_form(shape: tuple[int, ...]) -> None:
    """A width below that of the second kernel was not padded."""
    assert build_lenet(replace(MNIST, shape=shape))(torch.randn(2, *shape)).shape == (2, 10)


def test_lenet_refuses_images_of_which_nothing_would_be_left() -> None:
    with pytest.raises(ValueError, match="too small for lenet"):
        build_lenet(replace(MNIST, shape=(1, 3, 20)))

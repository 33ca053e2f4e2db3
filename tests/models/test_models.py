"""Every model of the matrix: one step trains all of it. And each is the published one, in sizes and shapes."""

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
from ddp.data.draws import Draws
from ddp.runtime.task import Task
from models import char_rnn, conv_ae, gpt_nano, resnet, resnet34, resnet_graph, vit
from models.data import DataOptions, DataSet, data_set
from models.data.options import PLAIN
from models.lenet import build as build_lenet
from models.mlp import build as build_mlp
from models.parts import SCHEDULES

DIGITS, MNIST = data_set("digits"), data_set("mnist")
EXPECTED = {"conv_ae": 0.3760**2}
"""Loss before training, where it is not that of even odds: a decoder that says nothing leaves the variance of a pixel."""
SIZES = {
    "char_rnn": 958_560,
    "conv_ae": 13_265,
    "gpt_nano": 826_112 - 32 * 128,
    "lenet": 21_408,
    "logistic": 650,
    "mlp": 19_210,
    "resnet": 269_434,
    "resnet34": 1_334_330,
    "resnet_graph": 269_434,
    "vit": 2_679_946,
}
"""Parameters under `quick`; texts in pieces of 32."""
CIFAR = replace(MNIST, shape=(3, 32, 32))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors are slower on several threads, much slower on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def quick(name: str) -> Task:
    """The quick task; of text, short pieces."""
    recipe = models.load(name).recipes["quick"]
    if recipe.data == "pydoc":
        recipe = replace(recipe, data_options=DataOptions(seq_len=32))
    return models.make_task(name, recipe, "")


def classes(name: str) -> int:
    return data_set(models.load(name).recipes["quick"].data).classes


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", models.MODELS)
def test_a_setup_is_complete(name: str) -> None:
    setup = models.load(name)
    assert {"quick", "published"} <= set(setup.recipes)
    assert setup.recipes["quick"].data in ("digits", "pydoc")
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
    for group in optimizer.param_groups:
        group["lr"] /= 10  # some warm up first
    before = [parameter.detach().clone() for parameter in model.parameters()]
    loss = task.loss(model, batch)
    assert loss.item() == pytest.approx(EXPECTED.get(name, math.log(classes(name))), rel=0.1)
    loss.backward()
    for key, parameter in model.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().sum() > 0, key
    optimizer.step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    for _ in range(3):
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()
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
    assert sum(part[1].item() for part in parts) == pytest.approx(right.item(), rel=1e-4)
    if models.load(name).metric != "accuracy":
        assert not models.load(name).higher_is_better
        assert right.item() == loss.item(), "the loss is the metric"


@pytest.mark.parametrize("name", models.MODELS)
def test_a_model_repeats_from_its_seed(name: str) -> None:
    states = []
    for _ in range(2):
        torch.manual_seed(3)
        states.append(quick(name).model().state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", models.MODELS)
def test_the_number_of_parameters_is_known(name: str) -> None:
    assert size(quick(name).model()) == SIZES[name]


def test_data_is_read_once_for_both_halves() -> None:
    task = quick("mlp")
    assert task.train_data() is task.train_data()
    assert len(task.eval_data()) == 359


def test_schedules() -> None:
    assert [SCHEDULES["constant"](x) for x in (0.0, 1.0)] == [1, 1]
    assert [SCHEDULES["steps"](x) for x in (0.0, 0.49, 0.5, 0.74, 0.75, 1.0)] == [1, 1, 0.1, 0.1, 0.01, 0.01]
    assert [round(SCHEDULES["cosine"](x), 9) for x in (0.0, 0.5, 1.0, 1.1)] == [1, 0.5, 0, 0]
    assert [round(SCHEDULES["warm_up_10"](x), 9) for x in (0.0, 0.05, 0.1, 0.55, 1.0)] == [0, 0.5, 1, 0.5, 0]
    rates = [3e-4 * SCHEDULES["warm_up_20"](x) for x in (0.0, 0.1, 0.2, 0.6, 1.0)]
    assert rates == pytest.approx([0, 1.5e-4, 3e-4, 1.55e-4, 1e-5])


def test_bad_recipes() -> None:
    recipe = models.load("mlp").recipes["quick"]
    with pytest.raises(ValueError, match="unknown data set 'cifar11'"):
        models.make_task("resnet_graph", replace(models.load("resnet_graph").recipes["published"], data="cifar11"), "")
    with pytest.raises(ValueError, match="data set pydoc is text: only images are augmented"):
        models.make_task("char_rnn", replace(models.load("char_rnn").recipes["quick"], augment=True), "")
    with pytest.raises(ValueError, match=r"unknown schedule 'linear'; choose one of constant, .*, warm_up_20"):
        models.make_task("mlp", replace(recipe, schedule="linear"), "")


def test_a_model_refuses_data_of_another_kind() -> None:
    for name, data, said in (
        ("mlp", "pydoc", "sees images, and data set pydoc is text"),
        ("vit", "pydoc", "sees images"),
    ):
        with pytest.raises(ValueError, match=said):
            models.make_task(name, replace(models.load(name).recipes["quick"], data=data), "")
    recipe = replace(models.load("char_rnn").recipes["quick"], data="digits", data_options=PLAIN)
    with pytest.raises(ValueError, match=r"reads text, and data set digits is of images; choose data\.name=pydoc"):
        models.make_task("char_rnn", recipe, "")


@pytest.mark.parametrize("name", models.MODELS)
def test_what_is_published_for_colour_images_is_augmented_and_quick_is_not(name: str) -> None:
    quick_one, published = models.load(name).recipes["quick"], models.load(name).recipes["published"]
    assert models.make_task(name, quick_one, "").augment is None
    task = models.make_task(name, published, "")
    assert (task.augment is not None) == published.data.startswith("cifar")
    if task.augment is not None:
        images, labels = torch.ones(8, 3, 32, 32), torch.arange(8)
        changed, same = task.augment((images, labels), Draws(7, 0, torch.arange(8)))
        assert torch.equal(same, labels)
        assert changed.shape == images.shape
        assert not torch.equal(changed, images), "shifted: zeros come in"


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


def shapes_of(model: nn.Module, layers: nn.Sequential, x: Tensor) -> list[tuple[int, ...]]:
    """What each of the layers makes of `x`, without the number of samples."""
    shapes: list[tuple[int, ...]] = []
    for layer in layers:
        layer.register_forward_hook(lambda _module, _inputs, out: shapes.append(tuple(out.shape[1:])))
    model(x)
    return shapes


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


def test_the_models_of_text_have_the_published_sizes() -> None:
    text = data_set("pydoc")
    rnn, gpt = char_rnn.build(text), gpt_nano.build(text)
    assert [tuple(p.shape) for p in rnn.lstm.parameters()][:2] == [(1024, 128), (1024, 256)]
    assert (rnn.lstm.num_layers, rnn.lstm.dropout, rnn.tokens.weight.shape) == (2, 0.2, (96, 128))
    assert size(gpt) == 834_304
    tokens = torch.randint(96, (2, 128))
    assert shapes_of(gpt, gpt.layers, tokens) == [(128, 128)] * 4
    assert rnn(tokens).shape == gpt(tokens).shape == (2, 128, 96)


@pytest.mark.parametrize("name", ["char_rnn", "gpt_nano"])
def test_a_model_of_text_sees_no_token_that_is_yet_to_come(name: str) -> None:
    task = quick(name)
    model, tokens = task.model().eval(), torch.randint(96, (1, 20))
    other = tokens.clone()
    other[0, 12] = (other[0, 12] + 1) % 96
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
    model = vit.build(CIFAR)
    assert size(model) == 2_697_610
    x = torch.randn(20, 3, 32, 32)
    assert shapes_of(model, model.layers, x) == [(65, 192)] * 9
    assert F.cross_entropy(model(x), torch.arange(20) % 10).item() == pytest.approx(math.log(10), rel=0.1)
    with pytest.raises(ValueError, match="images of 3x8 pixels are smaller than a patch of 4x4"):
        vit.build(replace(CIFAR, shape=(1, 3, 8)))


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 7, 9)])
def test_the_autoencoder_gives_back_what_it_was_given(shape: tuple[int, ...]) -> None:
    x = torch.randn(2, *shape)
    model = conv_ae.build(replace(MNIST, shape=shape))
    assert model(x).shape == x.shape
    assert model.encode(x).shape == (2, 32, -(-shape[1] // 4), -(-shape[2] // 4))


def test_the_autoencoders_error_is_in_pixels_from_0_to_1() -> None:
    loss, evaluate = conv_ae.judged(replace(MNIST, shape=(2, 2, 2), std=(0.5, 0.25)))
    images = torch.ones(3, 2, 2, 2)
    assert loss(nn.Identity(), (images,)).item() == 0
    silent = nn.Threshold(2.0, 0.0)
    assert loss(silent, (images,)).item() == pytest.approx((0.25 + 0.0625) / 2)
    assert [value.item() for value in evaluate(silent, (images,))] == pytest.approx([3 * 0.15625] * 2)


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


@pytest.mark.parametrize("shape", [(1, 32, 8), (1, 8, 32), (1, 4, 4), (3, 17, 15)])
def test_lenet_takes_images_of_any_form(shape: tuple[int, ...]) -> None:
    """A width below that of the second kernel was not padded."""
    assert build_lenet(replace(MNIST, shape=shape))(torch.randn(2, *shape)).shape == (2, 10)


def test_lenet_refuses_images_of_which_nothing_would_be_left() -> None:
    with pytest.raises(ValueError, match="too small for lenet"):
        build_lenet(replace(MNIST, shape=(1, 3, 20)))


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_models_begin_at_even_odds_whatever_the_seed(name: str) -> None:
    task = quick(name)
    batch = task.train_data().batch(torch.arange(400))
    for seed in range(20):
        torch.manual_seed(seed)
        assert task.loss(task.model(), batch).item() == pytest.approx(math.log(10), rel=0.1)

"""Every model of the matrix: one step trains all of it, it repeats from its seed, and it refuses data of another kind."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bench import models
from bench.models.data import data_set
from bench.models.data.options import PLAIN
from bench.models.parts import SCHEDULES
from ddp.data.draws import Draws
from tests.models.measured import quick, size

EXPECTED = {"conv_ae": 0.3515**2}
"""Loss before training, where it is not that of even odds: a decoder that says nothing leaves the variance of a pixel."""
SIZES = {
    "char_rnn": 929_300,
    "conv_ae": 7_273,
    "gpt_nano": 802_560,
    "lenet": 21_408,
    "logistic": 650,
    "mlp": 19_210,
    "resnet": 269_434,
    "resnet34": 1_334_330,
    "resnet_graph": 269_434,
    "vit": 2_679_946,
}
"""Parameters under `quick`; texts in pieces of 32."""


def classes(name: str) -> int:
    return data_set(models.load(name).recipes["quick"].data).classes


@pytest.mark.parametrize("name", models.MODELS)
def test_a_setup_is_complete(name: str) -> None:
    setup = models.load(name)
    assert {"quick", "published"} <= set(setup.recipes)
    assert setup.recipes["quick"].data in ("noisy_digits", "toy_language"), "bundled"
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


@pytest.mark.parametrize("name", SIZES)
def test_the_number_of_parameters_is_known(name: str) -> None:
    assert size(quick(name).model()) == SIZES[name]


def test_data_is_read_once_for_both_halves() -> None:
    task = quick("mlp")
    assert task.train_data() is task.train_data()
    assert len(task.eval_data()) == 8 * 719


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
    with pytest.raises(ValueError, match="data set toy_language is text: only images are augmented"):
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


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_models_begin_at_even_odds_whatever_the_seed(name: str) -> None:
    task = quick(name)
    batch = task.train_data().batch(torch.arange(400))
    for seed in range(20):
        torch.manual_seed(seed)
        assert task.loss(task.model(), batch).item() == pytest.approx(math.log(10), rel=0.1)

"""Settings of averaging: what they refuse, what they mean by default, and what a rank weighs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ddp.core.settings.averaging import STEEPEST, Averaging


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ({"gamma": -1.0}, "gamma=-1.0 must be 0 or more"),
        ({"gamma": float("nan")}, "gamma=nan must be 0 or more"),
        ({"gamma": 150.0}, "gamma=150.0 must be 0 or more, 16 at most"),  # 200 samples of it are beyond a double
        ({"elastic": 0.0}, "elastic=0.0 must be above 0 and at most 1"),
        ({"outer": "adam"}, "is not one of none, momentum, nesterov"),
        ({"outer_lr": 0.5}, "need an outer optimizer"),
        ({"outer": "momentum", "outer_lr": 0.0}, "outer_lr=0.0 must be above 0"),
        ({"outer": "nesterov", "outer_momentum": 1.0}, r"outer_momentum=1.0 must be in \[0, 1\)"),
        ({"wire": "int8"}, "is not one of float64, float32, bfloat16"),
        ({"optimizer_state": True, "optimizer_reset": True}, "drop one"),
    ],
)
def test_a_mistake_is_named_with_its_remedy(said: dict[str, Any], remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy):
        Averaging(**said)


def test_outer_optimizers_bring_their_published_rates() -> None:
    assert Averaging().outer_rates == (1.0, 0.0)
    assert Averaging(outer="momentum").outer_rates == (1.0, 0.9)
    assert Averaging(outer="nesterov").outer_rates == (0.7, 0.9)
    assert Averaging(outer="nesterov", outer_lr=0.5, outer_momentum=0.0).outer_rates == (0.5, 0.0)
    assert Averaging(outer="nesterov").resets
    assert not Averaging(outer="nesterov", optimizer_reset=False).resets
    assert not Averaging(outer="nesterov", optimizer_state=True).resets
    assert not Averaging(outer="momentum").resets


def test_settings_that_mean_the_same_are_resolved_to_the_same() -> None:
    plain = Averaging(outer="nesterov")
    assert plain.resolved() == Averaging(outer="nesterov", outer_lr=0.7, outer_momentum=0.9, optimizer_reset=True)
    assert plain.resolved() == replace(plain, outer_lr=0.7).resolved()
    assert Averaging().resolved() == Averaging() == Averaging(optimizer_reset=False).resolved()


@pytest.mark.parametrize("gamma", [0.0, 0.5, 1.0, 2.0])
def test_a_rank_weighs_its_samples_to_the_power_of_gamma(gamma: float) -> None:
    samples = np.array([640, 10, 1, 160])
    weights = np.array([Averaging(gamma=gamma).weight(int(n)) for n in samples])
    np.testing.assert_allclose(weights / weights.sum(), samples**gamma / (samples**gamma).sum(), rtol=1e-15)
    assert Averaging(gamma=gamma).weight(0) == 0.0, "an idle rank weighs nothing"


def test_the_steepest_weights_are_still_numbers_whatever_the_samples_and_parameters() -> None:
    heaviest = Averaging(gamma=STEEPEST).weight(2**40)
    assert math.isfinite(64 * heaviest * 3.5e38)

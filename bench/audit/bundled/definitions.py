"""The losses and metrics of the bundled models by definition, computed from a model's outputs in double precision by
NumPy.

The audit calls the same functions of a set-up as the run did, so these cannot show their own errors. Must not import
them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
NEAR, TINY = 1e-3, 1e-4
"""Relative and absolute tolerance of a loss for single precision and another order of sums. It is generous, as the loss
of a nearly certain sample is the difference of much larger numbers."""


def _surprise(scores: Floats, answers: NDArray[np.int64]) -> Floats:
    """Return -log softmax(scores)[answer] of each row, nats, shape [n]."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    surprise: Floats = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(answers)), answers]
    return surprise


def _classes(scores: Floats, answers: NDArray[np.int64]) -> tuple[float, float]:
    """Return (sum of the cross-entropy, number of samples whose answer has the highest score); scores [n, classes]."""
    return float(_surprise(scores, answers).sum()), float((scores.argmax(axis=1) == answers).sum())


def _tokens(scores: Floats, answers: NDArray[np.int64]) -> tuple[float, float]:
    """Return the sum over samples of their mean cross-entropy per token, as both loss and metric; scores [n, tokens,
    symbols]."""
    total = float(_surprise(scores.reshape(-1, scores.shape[-1]), answers.reshape(-1)).mean()) * len(scores)
    return total, total


Definition = Callable[[Floats, NDArray[np.int64]], tuple[float, float]]
"""(outputs, answers) -> (sum of the loss over samples, sum of the metric)."""
_OF_IMAGES = ("lenet", "logistic", "mlp", "resnet", "resnet34", "resnet_graph", "vit")
_OF_TEXT = ("char_rnn", "gpt_nano")
DEFINITIONS: dict[str, Definition] = {**dict.fromkeys(_OF_IMAGES, _classes), **dict.fromkeys(_OF_TEXT, _tokens)}
"""Bundled model -> its definition. For other models the functions of the set-up are trusted."""


def is_near(loss: float, mean: float) -> bool:
    """Return whether a mean loss equals its definition up to rounding."""
    return abs(loss - mean) <= NEAR * abs(mean) + TINY


def defined(model: str, outputs: object, batch: tuple[Tensor, ...]) -> tuple[float, float] | None:
    """Return (sum of the loss, sum of the metric) over a batch from a model's outputs; None: the model has no
    definition here."""
    definition = DEFINITIONS.get(model)
    if definition is None or not isinstance(outputs, Tensor):
        return None
    scores = outputs.detach().double().numpy(force=True)
    return definition(scores, batch[1].numpy(force=True)) if len(scores) else (0.0, 0.0)

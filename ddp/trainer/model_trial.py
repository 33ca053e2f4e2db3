"""Tries a user's model with a few samples: traces its layers, and tells a loss that is a sum. Must not know who draws
the layers."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from ddp.data.dataset import collated
from ddp.data.fingerprint import undisturbed
from ddp.graph.scatter import leaves
from ddp.graph.structure import describe, digest
from ddp.monitor.harness import layers
from ddp.replica.passes import evaluating
from ddp.replica.scalars import Scalars
from ddp.replica.trainable import is_sum
from ddp.trainer.mistakes import make_model
from ddp.trainer.task import Parts


def sketch(parts: Parts, metric: str, model: nn.Module | None = None) -> dict[str, Any] | None:
    """Return the layers of `model` (None: make it) and their structural hash; None if the model cannot be traced.
    Leaves random generators unchanged."""
    with undisturbed():
        try:
            model = make_model(parts.model_factory) if model is None else model
            batch = collated(parts.dataset, parts.collate_fn).batch(torch.zeros(1, dtype=torch.int64))
            with Scalars(), evaluating(model):
                graph = layers(model, lambda: parts.train_step(model, batch))
            known = {"structural_hash": digest(describe(model))}
            inputs = leaves(batch)
            shape = list(inputs[0].shape[1:]) if inputs else []
        except (Exception, SystemExit):  # a user's code may raise anything; a missing picture must not end the run
            return None
    return {"metric": metric, "input": shape, **known, **graph}


def sums(parts: Parts, model: nn.Module | None = None) -> bool:
    """Return whether the training step returns a sum over the batch, tried with `model` (None: make it). Return False
    where it cannot be tried. Leaves random generators unchanged."""

    @cache
    def made() -> nn.Module:
        return make_model(parts.model_factory) if model is None else model

    def loss(indices: Tensor) -> Tensor:
        with evaluating(made()):
            return parts.train_step(made(), collated(parts.dataset, parts.collate_fn).batch(indices))

    in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    with undisturbed(gpus=in_use):  # a script that starts ranks need not use CUDA itself
        return is_sum(loss, len(parts.dataset))
